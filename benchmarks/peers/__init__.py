"""Other people's libraries that rows are measured against: none is a dependency, each is installed for itself.

They live in `benchmarks/.venvs`, which `make clean` leaves alone. What cannot be had makes its rows skipped, with the
reason in the row.

    python -m benchmarks.peers sorrel         install sorrel beside this package on Python 3.12, whatever the size
    python -m benchmarks.peers sorrel 3.13    the same on Python 3.13
    python -m benchmarks.peers jax            install JAX now; likewise rllib, sb3, sbx, torchrl and tianshou
"""

from __future__ import annotations

import importlib
import json
import select
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.measure import Done

ROOT = Path(__file__).parents[2]
VENVS = ROOT / "benchmarks" / ".venvs"
CPPRB, BOX2D = "cpprb==11.0.0", "Box2D==2.3.10"
PACKAGES = {
    "jax": ("jax==0.10.2",),
    "jax_learning": ("jax==0.10.2", "gymnasium==1.4.0", "mpe2==1.1.1", "minigrid==3.2.0", "Box2D==2.3.10"),
    "rllib": ("ray[rllib]==2.60.0", "torch==2.13.0"),
    "sb3": ("stable-baselines3==2.9.2", "torch==2.13.0"),
    "sbx": ("sbx-rl==0.28.0", "jax==0.10.2", "torch==2.13.0"),
    "tianshou": ("tianshou==2.0.1", "torch==2.13.0"),
    "torchrl": ("torchrl==0.14.1", "torch==2.13.0"),
}
"""What is installed into the environment of each peer that runs on the Python of the benchmarks."""
SORREL = ("sorrel==1.6.0", "torch==2.13.0")
PATIENCE = 1800.0
"""Seconds that an installation may take."""
ANSWER_PATIENCE = 600.0
"""Seconds to wait for one answer of a peer."""
_READY = "installed"
"""A file in each environment that says it is complete: an interrupted installation is made anew."""


class Unavailable(Exception):
    """A peer that cannot be had here, with the reason."""


def cpprb() -> Any:
    """The cpprb module; its own dependencies are not needed for what is measured."""
    return _module("cpprb", CPPRB)


def box2d() -> Any:
    """The Box2D module, which Gymnasium's LunarLander needs."""
    return _module("Box2D", BOX2D)


def _module(name: str, package: str) -> Any:
    """Return a module from a folder of its own, which is put on the path."""
    folder = VENVS / name
    if not (folder / _READY).exists():
        shutil.rmtree(folder, ignore_errors=True)
        _pip(sys.executable, "install", "--no-deps", "--target", str(folder), package)
        (folder / _READY).touch()
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    return importlib.import_module(name)


def sorrel_python(version: str = "3.12", *, any_size: bool = False) -> Path:
    """The interpreter of an environment that holds sorrel and this package with its tests, made at the first call.

    sorrel needs Python 3.12 or later, and torch: where the package index offers only torch's build for CUDA, of several
    gigabytes, it is not installed unless `any_size`. CUDA's libraries cannot be left out: `libtorch_python.so` is
    linked against `libtorch_cuda.so`, and that against them.
    """
    folder = VENVS / f"sorrel-{version}"
    python = folder / "bin" / "python"
    if (folder / _READY).exists():
        return python
    base = _python(version)
    shutil.rmtree(folder, ignore_errors=True)
    _run([base, "-m", "venv", str(folder)])
    _pip(str(python), "install", "--upgrade", "pip")  # an old pip downloads whole packages to learn what they need
    if not any_size:
        report = _pip(str(python), "install", "--dry-run", "--quiet", "--report", "-", *SORREL)
        names = [package["metadata"]["name"].lower() for package in json.loads(report)["install"]]
        if large := [name for name in names if name.startswith("nvidia-")]:
            raise Unavailable(
                f"only torch's build for CUDA is to be had here ({len(large)} packages, several gigabytes); "
                "`python -m benchmarks.peers sorrel` installs it all the same"
            )
    _pip(str(python), "install", *SORREL, "--editable", f"{ROOT}[dev]")
    (folder / _READY).touch()
    return python


def peer_python(name: str) -> Path:
    """The interpreter of an environment that holds a peer of `PACKAGES`, made at the first call."""
    folder = VENVS / name
    python = folder / "bin" / "python"
    if not (folder / _READY).exists():
        shutil.rmtree(folder, ignore_errors=True)
        _run([sys.executable, "-m", "venv", str(folder)])
        _pip(str(python), "install", "--no-compile", *PACKAGES[name])  # of torch and Ray little is imported
        (folder / _READY).touch()
    return python


def torchrl_python() -> Path:
    """The interpreter of TorchRL's environment, with the extension that its prioritised buffer needs.

    The extension of a wheel fits one version of torch only. For another it is compiled from the sources in the wheel,
    which takes a minute.
    """
    python = peer_python("torchrl")
    check = [str(python), "-c", "import torchrl._torchrl"]
    try:
        _run(check)
    except Unavailable:
        try:
            _run([str(python), str(Path(__file__).parent / "torchrl_extension.py")])
            _run(check)
        except Unavailable as error:
            reason = "TorchRL's extension was compiled for another version of torch, and cannot be compiled here"
            raise Unavailable(f"{reason}: {error}") from error
    return python


def ask(
    peer: subprocess.Popen[str], question: dict[str, Any], answer: dict[str, Any], patience: float = ANSWER_PATIENCE
) -> Done:
    """Let the process of a peer do some work; write what it says about itself into `answer`."""
    assert peer.stdin is not None
    assert peer.stdout is not None
    peer.stdin.write(json.dumps(question) + "\n")
    peer.stdin.flush()
    if not select.select([peer.stdout], [], [], patience)[0]:
        raise TimeoutError(f"{peer.args} gave no answer within {patience:g} s")
    line = peer.stdout.readline()
    if not line:
        raise RuntimeError(f"{peer.args} ended with {peer.wait(10)}; its message is above")
    answer.update(json.loads(line))
    return Done(answer.pop("counts"), None, answer.pop("seconds"))


def _python(version: str) -> str:
    """A Python of some version on the path, also one that pyenv has and does not offer."""
    name = f"python{version}"
    found = shutil.which(name)
    tries = [[found]] if found else []
    if shutil.which("pyenv"):
        listed = subprocess.run(
            ["pyenv", "versions", "--bare"], capture_output=True, text=True, timeout=60, check=False
        )
        offered = [own.strip() for own in listed.stdout.split() if own.strip().startswith(f"{version}.")]
        tries += [["env", f"PYENV_VERSION={own}", name] for own in offered]
    for command in tries:
        asked = [*command, "-c", "import sys; print(sys.executable, '%d.%d' % sys.version_info[:2])"]
        answer = subprocess.run(asked, capture_output=True, text=True, timeout=60, check=False).stdout.split()
        if answer[1:] == [version]:
            return answer[0]
    raise Unavailable(f"sorrel needs Python {version}, and there is no {name} on the path")


def _pip(python: str, *arguments: str) -> str:
    return _run([python, "-m", "pip", "--disable-pip-version-check", *arguments])


def _run(command: list[str]) -> str:
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"{' '.join(command[1:])}: {error}") from error
    if ended.returncode:
        last = (ended.stderr.strip().splitlines() or ["no message"])[-1]
        raise Unavailable(f"{' '.join(command[1:])} failed: {last}")
    return ended.stdout
