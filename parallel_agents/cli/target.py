"""From a target on the command line to an environment class."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from parallel_agents.cli.games import shipped_games
from parallel_agents.errors import TargetError

if TYPE_CHECKING:
    from parallel_agents.environment import Environment

__all__ = ["load_target"]


def load_target(target: str) -> type[Environment]:
    """Return the environment class of a shipped game, a Python file, `module:Class`, or a foreign environment.

    A file may import what lies beside it, and a module is looked for in the current folder first. Foreign environments
    come from installed packages: for them nothing in the current folder is imported.
    """
    if target.endswith(".py"):
        path = Path(target)
        if not path.is_file():
            raise TargetError(f"no file {target}{_near_file(path)}")
        return _only_environment(_module_from(path), target)
    if target.startswith("gymnasium:"):
        from parallel_agents.adapters.gymnasium import gymnasium_environment

        return gymnasium_environment(target.split(":", 1)[1])
    if target.startswith("pettingzoo:"):
        from parallel_agents.adapters.pettingzoo import pettingzoo_environment

        return pettingzoo_environment(target.split(":", 1)[1])
    if ":" in target:
        return _named(*target.split(":", 1))
    games = shipped_games()
    if target in games:
        return _only_environment(_module_from(games[target].path), target)
    raise TargetError(f"no game {target!r}{_near_game(target)}")


def _near_file(path: Path) -> str:
    """The likely fix for a file that is not there."""
    beside = [other.stem for other in path.parent.glob("*.py")] if path.parent.is_dir() else []
    near = difflib.get_close_matches(path.stem, beside, n=1, cutoff=0.7)
    if near:
        return f"; did you mean {path.with_stem(near[0])}?"
    if path.stem in shipped_games():
        return f"; the game that comes with the package is trained by its name: {path.stem}"
    return ": give a Python file that holds one environment, or make one: parallel-agents new NAME"


def _near_game(target: str) -> str:
    """The likely fix for a name that is no game."""
    if Path(f"{target}.py").is_file():
        return f"; did you mean the file {target}.py?"
    near = difflib.get_close_matches(target, shipped_games(), n=1)
    hint = f"; did you mean {near[0]}?" if near else ":"
    return f"{hint} Give a game of `parallel-agents games`, a Python file, module:Class, or gymnasium:NAME"


def _named(module_name: str, class_name: str) -> type[Environment]:
    from parallel_agents.environment import Environment

    module = _imported(module_name)
    found = getattr(module, class_name, None)
    if found is None:
        near = difflib.get_close_matches(class_name, [*vars(module)], n=1)
        hint = f"; did you mean {module_name}:{near[0]}?" if near else ": name a class that it defines"
        raise TargetError(f"module {module_name} has no {class_name}{hint}")
    if not (inspect.isclass(found) and issubclass(found, Environment)):
        raise TargetError(f"{module_name}:{class_name} is not a subclass of ParallelEnvironment")
    return found


def _imported(module_name: str) -> ModuleType:
    if module_name.partition(".")[0] not in sys.modules:  # what is loaded, such as this package, is not looked for
        _importable(Path.cwd())
    try:
        return importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        raise TargetError(f"cannot import {module_name}: {type(error).__name__}: {error}") from error


def _module_from(path: Path) -> ModuleType:
    name = f"parallel_agents_target_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise TargetError(f"{path} cannot be loaded as a Python file")
    _importable(path.resolve().parent)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickling look their module up there
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # a script without a main guard may call sys.exit
        del sys.modules[name]
        raise TargetError(f"{path} raised while it was loaded: {type(error).__name__}: {error}") from error
    return module


def _importable(folder: Path) -> None:
    """Let a target import what lies beside it, as it could if it were run as a script.

    Every import from here on looks there first, so it is done only for targets that are code of that folder.
    """
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _only_environment(module: ModuleType, target: str) -> type[Environment]:
    from parallel_agents.environment import Environment

    found = [
        value
        for value in vars(module).values()
        if inspect.isclass(value) and issubclass(value, Environment) and value.__module__ == module.__name__
    ]
    if len(found) != 1:
        names = ", ".join(cls.__name__ for cls in found) or "none"
        raise TargetError(
            f"{target} must define exactly one subclass of ParallelEnvironment; found {names}. "
            "Name one with module:Class, or move the others to a module of their own"
        )
    return found[0]
