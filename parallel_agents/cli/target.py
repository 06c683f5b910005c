"""Find the environment class that a target on the command line names, and the games that come with the package."""

from __future__ import annotations

import ast
import difflib
import importlib
import importlib.util
import inspect
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import parallel_agents
from parallel_agents.core.errors import TargetError

if TYPE_CHECKING:
    from parallel_agents.env import Environment


@dataclass(frozen=True, slots=True)
class ShippedGame:
    """A game of the package, which can be trained by its name."""

    name: str
    path: Path
    about: str
    """The first line of its docstring, without its title."""

    @property
    def command(self) -> str:
        return f"parallel-agents train {self.name} --worlds 8"


def shipped_games() -> dict[str, ShippedGame]:
    """Return the games of `examples/` by name. An installed package has them in `parallel_agents/examples`.

    The files are read and not imported, so that a list of games costs little.
    """
    package = Path(parallel_agents.__file__).parent
    folders = [folder for folder in (package / "examples", package.parent / "examples") if folder.is_dir()]
    texts = {path: path.read_text(encoding="utf-8") for path in sorted(folders[0].glob("*.py"))} if folders else {}
    return {
        path.stem: ShippedGame(path.stem, path, _about(text))
        for path, text in texts.items()
        if "(GridEnvironment):" in text
    }


def _about(text: str) -> str:
    first = (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]
    about = first.partition(": ")[2] or first
    return about[:1].upper() + about[1:]


def load_target(target: str) -> type[Environment]:
    """Return the environment class of a shipped game, a Python file, `module:Class`, or a foreign environment.

    A file may import modules of its own folder. A module is looked for in the current folder first. Foreign
    environments come from installed packages: for them nothing in the current folder is imported.
    """
    if target.endswith(".py"):
        path = Path(target)
        if not path.is_file():
            raise TargetError(f"no file {target}{_hint_for_file(path)}")
        return _only_environment(_load_file(path), target)
    if target.startswith("gymnasium:"):
        from parallel_agents.env.adapters.gymnasium import gymnasium_environment

        return gymnasium_environment(target.split(":", 1)[1])
    if target.startswith("pettingzoo:"):
        from parallel_agents.env.adapters.pettingzoo import pettingzoo_environment

        return pettingzoo_environment(target.split(":", 1)[1])
    if ":" in target:
        return _load_class(*target.split(":", 1))
    games = shipped_games()
    if target in games:
        return _only_environment(_load_file(games[target].path), target)
    raise TargetError(f"no game {target!r}{_hint_for_game(target)}")


def _hint_for_file(path: Path) -> str:
    """Return the likely fix for a file that does not exist."""
    neighbours = [other.stem for other in path.parent.glob("*.py")] if path.parent.is_dir() else []
    similar = difflib.get_close_matches(path.stem, neighbours, n=1, cutoff=0.7)
    if similar:
        return f"; did you mean {path.with_stem(similar[0])}?"
    if path.stem in shipped_games():
        return f"; the game that comes with the package is trained by its name: {path.stem}"
    return ": give a Python file that holds one environment, or make one: parallel-agents new NAME"


def _hint_for_game(target: str) -> str:
    """Return the likely fix for a game that does not exist."""
    if Path(f"{target}.py").is_file():
        return f"; did you mean the file {target}.py?"
    similar = difflib.get_close_matches(target, shipped_games(), n=1)
    hint = f"; did you mean {similar[0]}?" if similar else ":"
    return f"{hint} Give a game of `parallel-agents games`, a Python file, module:Class, or gymnasium:NAME"


def _load_class(module_name: str, class_name: str) -> type[Environment]:
    from parallel_agents.env import Environment

    module = _import_module(module_name)
    cls = getattr(module, class_name, None)
    if cls is None:
        similar = difflib.get_close_matches(class_name, [*vars(module)], n=1)
        hint = f"; did you mean {module_name}:{similar[0]}?" if similar else ": name a class that it defines"
        raise TargetError(f"module {module_name} has no {class_name}{hint}")
    if not (inspect.isclass(cls) and issubclass(cls, Environment)):
        raise TargetError(f"{module_name}:{class_name} is not a subclass of ParallelEnvironment")
    return cls


def _import_module(module_name: str) -> ModuleType:
    if module_name.partition(".")[0] not in sys.modules:  # a loaded package, such as this one, needs no search
        _add_to_path(Path.cwd())
    try:
        return importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        raise TargetError(f"cannot import {module_name}: {type(error).__name__}: {error}") from error


def _load_file(path: Path) -> ModuleType:
    name = f"parallel_agents_target_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise TargetError(f"{path} cannot be loaded as a Python file")
    _add_to_path(path.resolve().parent)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look up their module there
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # a script without a main guard may call sys.exit
        del sys.modules[name]
        raise TargetError(f"{path} raised while it was loaded: {type(error).__name__}: {error}") from error
    return module


def _add_to_path(folder: Path) -> None:
    """Put a folder first on `sys.path`, so that a target can import its neighbours as a script can.

    From then on every import looks there first. Therefore this is done only for targets that are code of that folder.
    """
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _only_environment(module: ModuleType, target: str) -> type[Environment]:
    from parallel_agents.env import Environment

    classes = [
        value
        for value in vars(module).values()
        if inspect.isclass(value) and issubclass(value, Environment) and value.__module__ == module.__name__
    ]
    if len(classes) != 1:
        names = ", ".join(cls.__name__ for cls in classes) or "none"
        raise TargetError(
            f"{target} must define exactly one subclass of ParallelEnvironment; found {names}. "
            "Name one with module:Class, or move the others to a module of their own"
        )
    return classes[0]
