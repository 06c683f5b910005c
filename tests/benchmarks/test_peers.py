"""Environments of peers."""

from pathlib import Path

import pytest

from benchmarks import peers

PYTHON = Path("python")


class Commands:
    """Stands for commands: whether TorchRL's extension can be imported, and whether it can be compiled."""

    def __init__(self, *, imports: bool, compiles: bool) -> None:
        self.imports, self.compiles = imports, compiles
        self.compiled = 0

    def run(self, command: list[str]) -> str:
        if command[1:] == ["-c", "import torchrl._torchrl"]:
            if not self.imports:
                raise peers.Unavailable("import failed: undefined symbol")
        else:
            self.compiled += 1
            if not self.compiles:
                raise peers.Unavailable("torchrl_extension.py failed: there is no g++")
            self.imports = True
        return ""


@pytest.mark.parametrize("imports", [True, False])
def test_torchrl_s_extension_is_compiled_where_that_of_the_wheel_cannot_be_imported(
    imports: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = Commands(imports=imports, compiles=True)
    monkeypatch.setattr(peers, "peer_python", lambda _: PYTHON)
    monkeypatch.setattr(peers, "_run", commands.run)
    assert peers.torchrl_python() == PYTHON
    assert commands.compiled == (not imports)


def test_a_torchrl_extension_that_cannot_be_compiled_is_a_reason_to_skip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "peer_python", lambda _: PYTHON)
    monkeypatch.setattr(peers, "_run", Commands(imports=False, compiles=False).run)
    with pytest.raises(peers.Unavailable, match=r"compiled for another version of torch.*there is no g\+\+"):
        peers.torchrl_python()
