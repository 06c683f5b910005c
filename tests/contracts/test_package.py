"""What holds for the whole package: layers, names, and what must never be called."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import parallel_agents

ROOT = Path(parallel_agents.__file__).parents[1]
SOURCES = sorted((ROOT / "parallel_agents").rglob("*.py"))
NAMES = [
    found.name
    for found in pkgutil.walk_packages(parallel_agents.__path__, "parallel_agents.")
    if not found.name.rpartition(".")[2].startswith("_")
]


CORE = tuple(
    f"parallel_agents/{name}/"
    for name in ("acting", "cli", "environment", "learning", "memory", "models", "networks", "runtime")
)


UPPER = tuple(f"parallel_agents/{name}/" for name in ("cli", "environment", "models", "runtime"))


def _where(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _trees() -> Iterator[tuple[str, ast.Module]]:
    for path in SOURCES:
        yield _where(path), ast.parse(path.read_text(encoding="utf-8"))


def _dotted(node: ast.expr) -> str:
    """`np.random.seed` of an expression, as far as it is one."""
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def _calls() -> Iterator[tuple[str, str]]:
    for where, tree in _trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                yield f"{where}:{node.lineno}", _dotted(node.func)


def test_every_module_says_what_it_is_for() -> None:
    silent = [where for where, tree in _trees() if not ast.get_docstring(tree)]
    assert silent == []


@pytest.mark.parametrize("name", NAMES)
def test_what_a_module_offers_is_there_and_is_documented(name: str) -> None:
    module = importlib.import_module(name)
    offered = getattr(module, "__all__", [])
    assert len(offered) == len(set(offered))
    missing = [each for each in offered if not hasattr(module, each)]
    assert missing == []
    undocumented = [
        each
        for each in offered
        if callable(getattr(module, each))
        and getattr(getattr(module, each), "__module__", "") == name
        and not getattr(module, each).__doc__
    ]
    assert undocumented == []


def test_every_public_class_and_function_of_a_module_is_in_its_all() -> None:
    forgotten = []
    for where, tree in _trees():
        if where.endswith("__init__.py") or not where.startswith(UPPER):
            continue
        offered: list[str] = []
        for node in tree.body:
            if isinstance(node, ast.Assign) and _dotted(node.targets[0]) == "__all__":
                offered = ast.literal_eval(node.value)
        defined = [node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)]
        forgotten += [f"{where}: {name}" for name in defined if not name.startswith("_") and name not in offered]
    assert forgotten == []


def test_the_public_names_are_found_where_they_are_said_to_be() -> None:
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
    found = [f"{where} {call}" for where, call in _calls() if GLOBAL_DRAWS.match(call) or TORCH_DRAWS.match(call)]
    assert found == []


def test_generators_are_made_in_one_place_only() -> None:
    makers = {where.split(":")[0] for where, call in _calls() if re.search(r"random\.(Generator|Philox)$", call)}
    assert makers == {"parallel_agents/seeding.py"}


FORBIDDEN = re.compile(
    r"^(eval|exec|print|breakpoint|((c|cloud)?[pP]ickle|dill|marshal|shelve|joblib|torch)\.(load|loads))$"
)


IN_MEMORY = {
    ("parallel_agents/networks/architecture.py", "pickle.loads"),
    ("parallel_agents/adapters/processes.py", "cloudpickle.loads"),
}
"""What a parent hands to the worker it has spawned: bytes from its own memory, through the worker's pipe."""


def test_nothing_is_unpickled_from_files_evaluated_or_printed() -> None:
    found = {(where.split(":")[0], call) for where, call in _calls() if FORBIDDEN.match(call)}
    assert found == IN_MEMORY


@pytest.mark.parametrize(
    "code",
    ["np.random.seed(0)", "np.random.default_rng()", "random.random()", "torch.randn(3)", "torch.manual_seed(1)"],
)
def test_the_search_for_global_draws_finds_them(code: str) -> None:
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


def test_every_error_of_the_library_is_in_its_tree() -> None:
    from parallel_agents import errors

    own = [getattr(errors, name) for name in errors.__all__ if name != "Interrupted"]  # that one is no `Exception`
    assert all(issubclass(error, errors.ParallelAgentsError) for error in own)
    assert all(error.__name__ in (errors.__doc__ or "") or error.__name__ == "CorruptCheckpoint" for error in own)
    builtin = {"Exception", "KeyError", "RuntimeError", "TypeError", "ValueError"}
    assert [f"{where} {call}" for where, call in _raised() if call in builtin and where.startswith(CORE)] == []


def _raised() -> Iterator[tuple[str, str]]:
    """What public functions raise; a private one may use a builtin error as a signal to its caller."""
    for where, tree in _trees():
        for function in ast.walk(tree):
            if isinstance(function, ast.FunctionDef) and not function.name.startswith("_"):
                for node in ast.walk(function):
                    if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
                        yield f"{where}:{node.lineno}", _dotted(node.exc.func)
