"""Rules for the whole package: layers, names, and calls that are forbidden."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import parallel_agents

ROOT = Path(parallel_agents.__file__).parents[1]
SOURCES = sorted((ROOT / "parallel_agents").rglob("*.py"))
MODULES = [
    module.name
    for module in pkgutil.walk_packages(parallel_agents.__path__, "parallel_agents.")
    if not module.name.rpartition(".")[2].startswith("_")
]


@cache
def _trees() -> list[tuple[str, ast.Module]]:
    """Return the path and the syntax tree of every module."""
    return [(str(path.relative_to(ROOT)), ast.parse(path.read_text(encoding="utf-8"))) for path in SOURCES]


def _dotted(node: ast.expr) -> str:
    """Return the dotted name of an expression, such as `np.random.seed`; empty if it has none."""
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


@cache
def _calls() -> list[tuple[str, str]]:
    """Return the place and the dotted name of every call."""
    return [
        (f"{where}:{node.lineno}", _dotted(node.func))
        for where, tree in _trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
    ]


def test_every_module_has_a_docstring() -> None:
    without = [where for where, tree in _trees() if not ast.get_docstring(tree)]
    assert without == []


@pytest.mark.parametrize("name", MODULES)
def test_every_exported_name_exists(name: str) -> None:
    module = importlib.import_module(name)
    exported = getattr(module, "__all__", [])
    assert len(exported) == len(set(exported))
    assert [each for each in exported if not hasattr(module, each)] == []


def test_every_public_class_and_function_has_a_docstring() -> None:
    undocumented = [
        f"{where}: {node.name}"
        for where, tree in _trees()
        for node in tree.body
        if isinstance(node, ast.ClassDef | ast.FunctionDef)
        and not node.name.startswith("_")
        and not any(_dotted(decorator) == "overload" for decorator in node.decorator_list)
        and ast.get_docstring(node) is None
    ]
    assert undocumented == []


def test_only_packages_list_what_they_export() -> None:
    """In a module, a leading underscore says what is private."""
    listed = [
        where
        for where, tree in _trees()
        if not where.endswith("__init__.py")
        and any(isinstance(node, ast.Assign) and _dotted(node.targets[0]) == "__all__" for node in tree.body)
    ]
    assert listed == []


def test_every_public_name_of_the_package_can_be_loaded() -> None:
    for name in parallel_agents.__all__:
        assert getattr(parallel_agents, name) is not None
    assert sorted(parallel_agents.__all__) == dir(parallel_agents)
    with pytest.raises(AttributeError, match="has no attribute 'Enviroment'"):
        _ = parallel_agents.Enviroment


def test_importing_the_package_sets_the_numeric_mode_and_imports_nothing_heavy() -> None:
    code = (
        "import os, sys; import parallel_agents; assert os.environ['MKL_CBWR'] == 'AUTO'; "
        "assert not {'torch', 'numpy', 'numba'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_imports_go_one_way() -> None:
    linter = Path(sys.executable).with_name("lint-imports")
    ended = subprocess.run(
        [str(linter), "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False, timeout=100
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr


GLOBAL_DRAWS = re.compile(r"^(random|np\.random|numpy\.random|torch\.random)\.(?!Generator$|Philox$|BitGenerator$)\w+$")
TORCH_DRAWS = re.compile(
    r"^torch\.(manual_seed|seed|rand|randn|randint|randperm|normal|bernoulli|multinomial)(_like)?$"
)


def test_no_draw_comes_from_a_global_generator() -> None:
    draws = {
        (where.split(":")[0], call) for where, call in _calls() if GLOBAL_DRAWS.match(call) or TORCH_DRAWS.match(call)
    }
    # a forked worker seeds numpy's generator afresh, so that users' worlds in two workers do not draw the same numbers
    # whether a user's own learner has moved a global generator is seen in that generator's state
    # sorrel's models draw from global generators: the process that trains them seeds its own, from the game's
    assert draws == {
        *(
            ("parallel_agents/env/adapters/sorrel.py", draw)
            for draw in ("np.random.randint", "np.random.seed", "random.seed", "torch.manual_seed")
        ),
        ("parallel_agents/execution/forkserver.py", "np.random.seed"),
        ("parallel_agents/engine/standalone.py", "np.random.get_state"),
        ("parallel_agents/engine/standalone.py", "random.getstate"),
    }


def test_generators_are_made_in_one_place_only() -> None:
    makers = {where.split(":")[0] for where, call in _calls() if re.search(r"random\.(Generator|Philox)$", call)}
    assert makers == {"parallel_agents/core/seeding.py"}


FORBIDDEN = re.compile(
    r"^(eval|exec|print|breakpoint|((c|cloud)?[pP]ickle|dill|marshal|shelve|joblib|torch)\.(load|loads))$"
)


IN_MEMORY = {
    ("parallel_agents/nn/user_module.py", "pickle.loads"),
    ("parallel_agents/execution/forkserver.py", "pickle.load"),  # from the parent process, through a pipe
    ("parallel_agents/env/adapters/worker_envs.py", "cloudpickle.loads"),
    ("parallel_agents/env/adapters/sorrel.py", "cloudpickle.loads"),
}
"""Bytes that a parent and a worker it has spawned send each other from their memory, through the worker's pipe."""


def test_nothing_is_unpickled_from_files_evaluated_or_printed() -> None:
    forbidden = {(where.split(":")[0], call) for where, call in _calls() if FORBIDDEN.match(call)}
    assert forbidden == IN_MEMORY


@pytest.mark.parametrize(
    "code",
    ["np.random.seed(0)", "np.random.default_rng()", "random.random()", "torch.randn(3)", "torch.manual_seed(1)"],
)
def test_the_patterns_match_calls_of_global_generators(code: str) -> None:
    call = _dotted(ast.parse(code, mode="eval").body.func)  # type: ignore[attr-defined]
    assert GLOBAL_DRAWS.match(call) or TORCH_DRAWS.match(call)


def test_no_exception_is_swallowed() -> None:
    swallowed = []
    for where, tree in _trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.ExceptHandler) and all(isinstance(step, ast.Pass) for step in node.body):
                swallowed.append(f"{where}:{node.lineno}")
            if isinstance(node, ast.ExceptHandler) and node.type is None:
                swallowed.append(f"{where}:{node.lineno} bare except")
    assert swallowed == []


def test_every_error_has_one_base_and_says_what_it_means() -> None:
    from parallel_agents.core import errors

    kinds = [
        kind for kind in vars(errors).values() if isinstance(kind, type) and kind is not errors.Interrupted
    ]  # that is no `Exception`
    assert all(issubclass(kind, errors.ParallelAgentsError) for kind in kinds)
    assert all(kind.__doc__ for kind in kinds)


def test_public_functions_raise_no_builtin_errors() -> None:
    builtin = {"Exception", "KeyError", "RuntimeError", "TypeError", "ValueError"}
    raised = [f"{where} {call}" for where, call in _raised() if call in builtin]
    assert [text for text in raised if not text.startswith("parallel_agents/core/files.py")] == []


def _raised() -> Iterator[tuple[str, str]]:
    """Yield the errors that public functions raise; private ones may use a builtin error as a signal to their caller."""
    for where, tree in _trees():
        for function in ast.walk(tree):
            if isinstance(function, ast.FunctionDef) and not function.name.startswith("_"):
                for node in ast.walk(function):
                    if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
                        yield f"{where}:{node.lineno}", _dotted(node.exc.func)
