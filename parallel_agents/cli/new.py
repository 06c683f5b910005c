"""`parallel-agents new NAME`: a game of one's own that trains at once."""

from __future__ import annotations

import importlib.util
import json
import keyword
import re
from importlib import resources
from pathlib import Path

from parallel_agents.cli.answers import answer
from parallel_agents.errors import ConfigError

__all__ = ["class_name", "new_game"]

_STARTER, _STARTER_CLASS = "my_game", "MyGame"


def new_game(name: str, *, as_json: bool) -> None:
    """Write `NAME.py` into this folder and say what to do with it."""
    path = Path(f"{_checked(name)}.py")
    text = resources.files("parallel_agents.cli").joinpath("starter.txt").read_text(encoding="utf-8")
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text.replace(_STARTER_CLASS, class_name(name)).replace(_STARTER, name))
    except FileExistsError as error:
        raise ConfigError(f"{path} is there already: choose another name, or move it away") from error
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}; go to a folder that can be written to") from error
    steps = {
        "look at it": f"python {path}",
        "train it": f"parallel-agents train {path} --worlds 8",
        "watch it": "parallel-agents eval RUN --watch",
    }
    if as_json:
        answer(json.dumps({"file": str(path), **steps}) + "\n")
        return
    told = "".join(f"  {what:<11} {command}\n" for what, command in steps.items())
    answer(f"wrote {path}\n{told}Its rules are in build() and settle(): change them, and train again.\n")


def class_name(name: str) -> str:
    """
    >>> class_name("berry_hunt_2")
    'BerryHunt2'
    """
    return "".join(part.capitalize() for part in name.split("_"))


def _checked(name: str) -> str:
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        near = re.sub(r"\W+", "_", name.removesuffix(".py")).strip("_0123456789").lower()
        hint = f", for example {near}" if near and not keyword.iskeyword(near) else ""
        raise ConfigError(f"a game cannot be called {name!r}: give small letters, digits and underscores{hint}")
    if not Path(f"{name}.py").exists() and importlib.util.find_spec(name) is not None:
        raise ConfigError(f"{name} is the name of a Python module, which {name}.py would hide: choose another name")
    return name
