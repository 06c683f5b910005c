"""`parallel-agents games`: the games that come with the package, and how to train them.

They are the files of `examples/`; an installed package carries them in `parallel_agents/examples`.
"""

from __future__ import annotations

import ast
import json
from dataclasses import dataclass
from pathlib import Path

import parallel_agents
from parallel_agents.cli.answers import answer

__all__ = ["ShippedGame", "games", "shipped_games"]


@dataclass(frozen=True, slots=True)
class ShippedGame:
    """A game that can be trained by its name."""

    name: str
    path: Path
    about: str
    """The first line of its docstring, without its title."""

    @property
    def command(self) -> str:
        return f"parallel-agents train {self.name} --worlds 8"


def shipped_games() -> dict[str, ShippedGame]:
    """The games by name, read and not run, so that listing them costs nothing."""
    package = Path(parallel_agents.__file__).parent
    folders = [folder for folder in (package / "examples", package.parent / "examples") if folder.is_dir()]
    texts = {path: path.read_text(encoding="utf-8") for path in sorted(folders[0].glob("*.py"))} if folders else {}
    return {
        path.stem: ShippedGame(path.stem, path, _about(text))
        for path, text in texts.items()
        if "(GridEnvironment):" in text
    }


def games(*, as_json: bool) -> None:
    """Print a line for each game, with a command that trains it."""
    found = shipped_games()
    if as_json:
        rows = [
            {"name": game.name, "about": game.about, "file": str(game.path), "train": game.command}
            for game in found.values()
        ]
        answer(json.dumps({"games": rows}) + "\n")
        return
    lines = [f"{game.name:<18} {game.about}\n{'':<18} {game.command}\n" for game in found.values()]
    answer("\n".join(lines) + "\nWrite one of your own: parallel-agents new NAME\n")


def _about(text: str) -> str:
    first = (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]
    about = first.partition(": ")[2] or first
    return about[:1].upper() + about[1:]
