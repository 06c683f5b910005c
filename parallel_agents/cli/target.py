"""Find the environment class that a target on the command line names, and the games that come with the package."""

from __future__ import annotations

import ast
import difflib
import importlib
import importlib.util
import inspect
import re
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import parallel_agents.examples
from parallel_agents.core import PACKAGE
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
    """Return the games of `parallel_agents.examples` by name.

    The files are read and not imported, so that a list of games costs little.
    """
    texts = {path: path.read_text(encoding="utf-8") for path in _examples().values()}
    return {
        path.stem: ShippedGame(path.stem, path, _about(text))
        for path, text in texts.items()
        if "(GridEnvironment):" in text
    }


def _examples() -> dict[str, Path]:
    """Return the files of `parallel_agents.examples` by name."""
    files = [path for folder in parallel_agents.examples.__path__ for path in sorted(Path(folder).glob("*.py"))]
    return {path.stem: path for path in files if path.stem != "__init__"}


def _about(text: str) -> str:
    first = (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]
    about = first.partition(": ")[2] or first
    return about[:1].upper() + about[1:]


_loading: list[Path] = []
"""Files of targets that are being loaded."""
_INSTALLED = {"site-packages", "dist-packages"}
"""Folders of packages that were installed."""


def load_target(target: type[Environment] | str, place: Path | None = None) -> type[Environment]:
    """Return the environment class of a shipped game, a Python file, `file.py:Class`, `module:Class`, or a foreign one.

    A class is returned as it is. place: where the target's file is now.

    A file may import modules of its own folder. A module is looked for in the current folder first. Foreign
    environments come from installed packages: for them nothing in the current folder is imported. With a place, modules
    are looked for there first.
    """
    if isinstance(target, type):
        return target
    if re.fullmatch(r"(gymnasium|pettingzoo):[^:]+\.py", target):
        library, _, file = target.partition(":")
        name = Path(file).stem + (":ITS-ID" if library == "gymnasium" else "")
        raise TargetError(f"{target} is a file: give the module, which must be on PYTHONPATH: {library}:{name}")
    file, _, name = target.partition(".py:")
    if target.endswith(".py") or name:
        path = place or Path(f"{file}.py" if name else target)
        if not path.is_file():
            raise TargetError(f"no file {path}{_hint_for_file(path)}")
        module = _load_file(path)
        return _environment_class(module, f"{file}.py", name) if name else _only_environment(module, target)
    if place is not None and (module_name := _module_name(target)):
        _add_to_path(_root(module_name, place))
    if target.startswith("gymnasium:"):
        from parallel_agents.env.adapters.gymnasium import gymnasium_environment

        return gymnasium_environment(target.split(":", 1)[1])
    if target.startswith("pettingzoo:"):
        from parallel_agents.env.adapters.pettingzoo import pettingzoo_environment

        return pettingzoo_environment(target.split(":", 1)[1])
    if ":" in target:
        module_name, name = target.split(":", 1)
        return _environment_class(_import_module(module_name), module_name, name)
    if target in _examples():
        return _only_environment(_import_module(f"parallel_agents.examples.{target}"), target)
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
    if re.fullmatch(r"(\w+/)?[\w.]+-v\d+", target):
        return f"; did you mean gymnasium:{target}?"
    similar = difflib.get_close_matches(target, shipped_games(), n=1)
    hint = f"; did you mean {similar[0]}? Give" if similar else ": give"
    return f"{hint} a game of `parallel-agents games`, a Python file, module:Class, or gymnasium:NAME"


def load_algorithm(config: Mapping[str, Any], place: Path | None = None) -> None:
    """Register the class that `model.algorithm` names as `file.py:Class` or `module:Class`; leave other names alone.

    place: where the file is now.
    """
    model = config.get("model", {})
    name = model.get("algorithm") if isinstance(model, Mapping) else None
    if not isinstance(name, str) or ":" not in name or "<locals>" in name:  # a class of a function is only registered
        return
    from parallel_agents.algorithms import register_algorithm

    owner, class_name = name.rsplit(":", 1)
    path = place or Path(owner)
    if owner.endswith(".py") and not path.is_file():
        raise TargetError(f"--algo {name}: no file {path}; give FILE.py:Class, module:Class, or a name")
    if place is not None and not owner.endswith(".py"):
        _add_to_path(_root(owner, place))
    cls = load_object(f"{path}:{class_name}" if owner.endswith(".py") else name)
    if not callable(getattr(cls, "take_action", None)):
        raise TargetError(f"--algo {name}: {class_name} has no take_action(state), so it is no learner")
    register_algorithm(name, cls)


def load_callback(name: str) -> Any:
    """Return the callback of `module:Class` or `file.py:Class`, made without arguments."""
    if ":" not in name:
        raise TargetError(f"--listener {name!r}: give module:Class or FILE.py:Class")
    return load_object(name)()


def load_object(name: str) -> Any:
    """Return what `module:Name` or `file.py:Name` names; a module is looked for in the current folder first."""
    owner, _, member = name.rpartition(":")
    module = _load_file(Path(owner)) if owner.endswith(".py") else _import_module(owner)
    return _member(module, owner, member)


def is_packaged(name: str) -> bool:
    """Return True for a target or algorithm that this package brings along."""
    return name in _examples() or name.startswith("parallel_agents.")


def source_files(name: str) -> dict[str, Path]:
    """Return the files that a loaded target or algorithm came from, by their places below one folder.

    The first is the one that is named, then come its neighbours that it imports, directly or not: from a folder that
    holds them all, the target can be loaded. Installed packages are left out, of this one all but its examples.
    """
    if name in _examples():
        return {f"{name}.py": _examples()[name]}
    module_name = _module_name(name)
    if module_name.endswith(".py"):  # loaded under another name, or the script that runs
        file, package = _own_file(module_name), ""
    else:
        module = sys.modules.get(module_name)
        file, package = _own_file(getattr(module, "__file__", None)), getattr(module, "__package__", None) or ""
    if file is None:
        return {}
    root = file.parent if module_name.endswith(".py") else _root(module_name, file)
    found, waiting = {str(file.relative_to(root)): file}, [(file, package)]
    while waiting:
        for imported in map(sys.modules.get, _imports(*waiting.pop())):
            path = _own_file(getattr(imported, "__file__", None))
            if path is not None and root in path.parents and path not in found.values():
                found[str(path.relative_to(root))] = path
                waiting.append((path, getattr(imported, "__package__", None) or ""))
    return found


def _module_name(name: str) -> str:
    """Return the module, or the file, that a target or algorithm names; empty if it names none."""
    if name.startswith("pettingzoo:"):
        return name.partition(":")[2]
    if name.startswith("gymnasium:"):
        return name.partition(":")[2].rpartition(":")[0]
    return name if name.endswith(".py") else name.rpartition(":")[0]


def _root(module_name: str, file: Path) -> Path:
    """Return the folder from which a file is imported under a name."""
    return file.resolve().parents[module_name.count(".") + (file.stem == "__init__")]


def _own_file(name: str | None) -> Path | None:
    """Return the source file of a module as a path; None if it is not there or was installed."""
    file = Path(name or "").resolve()
    if file.suffix != ".py" or not file.is_file() or _INSTALLED & {*file.parts}:
        return None
    return None if {PACKAGE, Path(sysconfig.get_path("stdlib")).resolve()} & {*file.parents} else file


def _imports(file: Path, package: str) -> Iterator[str]:
    """Yield the names that a file of a package imports, whether modules or not, and the packages that hold them."""
    names = [package]
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            origin = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            names += [f"{origin}.{alias.name}" for alias in node.names]
    for name in names:
        parts = name.split(".")
        yield from (".".join(parts[:length]) for length in range(1, len(parts) + 1))


def _member(module: ModuleType, owner: str, name: str) -> Any:
    """Return what a module defines under a name; raise TargetError with the most similar name."""
    found = getattr(module, name, None)
    if found is None:
        similar = difflib.get_close_matches(name, [*vars(module)], n=1)
        hint = f"; did you mean {owner}:{similar[0]}?" if similar else ": name a class that it defines"
        raise TargetError(f"module {owner} has no {name}{hint}")
    return found


def _environment_class(module: ModuleType, owner: str, name: str) -> type[Environment]:
    from parallel_agents.env import Environment

    cls = _member(module, owner, name)
    if not (inspect.isclass(cls) and issubclass(cls, Environment)):
        raise TargetError(f"{owner}:{name} is not a subclass of ParallelEnvironment{_hint_for_foreign(module, owner)}")
    return cls


def _hint_for_foreign(module: ModuleType, owner: str) -> str:
    """Return the target to give instead, for a module that defines a PettingZoo or Gymnasium environment."""
    name = Path(owner).stem if owner.endswith(".py") else owner
    own = [value for value in vars(module).values() if inspect.isclass(value) and value.__module__ == module.__name__]
    for cls in own:
        bases = {(base.__module__.partition(".")[0], base.__name__) for base in cls.__mro__}
        if bases & {("pettingzoo", "ParallelEnv"), ("pettingzoo", "AECEnv")}:
            return (
                f"; {cls.__name__} is a PettingZoo environment: give pettingzoo:{name}, a module on PYTHONPATH with "
                "parallel_env() or env()"
            )
        if ("gymnasium", "Env") in bases:
            return f"; {cls.__name__} is a Gymnasium environment: register it, and give gymnasium:{name}:ITS-ID"
    return ""


def _import_module(module_name: str) -> ModuleType:
    if module_name.partition(".")[0] not in sys.modules:  # a loaded package, such as this one, needs no search
        _add_to_path(Path.cwd())
    try:
        return importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        raise TargetError(
            f"cannot import {module_name}: {type(error).__name__}: {error}. Give a file, such as my_file.py:Name, or a "
            "module in the current folder or installed"
        ) from error


def _name_of_file(path: Path) -> str:
    """Return the name under which a file is loaded as a module."""
    return f"parallel_agents_target_{path.stem}"


def is_loading() -> bool:
    """Return True while the file of a target is being loaded: then it must define things and run nothing."""
    return bool(_loading)


def _load_file(path: Path) -> ModuleType:
    main = sys.modules["__main__"]
    if Path(getattr(main, "__file__", None) or "").resolve() == path.resolve():
        return main  # a script that loads a run of its own class must not run again
    name = _name_of_file(path)
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise TargetError(f"{path} cannot be loaded as a Python file")
    _add_to_path(path.resolve().parent)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look up their module there
    _loading.append(path)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # a script without a main guard may call sys.exit
        del sys.modules[name]
        raise TargetError(f"{path} raised while it was loaded: {type(error).__name__}: {error}") from error
    finally:
        _loading.pop()
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
        advice = f". Name one with {target}:Class" if classes else _hint_for_foreign(module, target)
        raise TargetError(f"{target} must define exactly one subclass of ParallelEnvironment; found {names}{advice}")
    return classes[0]
