"""Every Python block of the README and the docs runs, every command can be read, and every link points to a file.

Blocks run with the files of the wheel and nothing else of the checkout, in a process of their own, each in an empty
folder and without the packages of extras, but for those of an extra that the block names: `# needs the extra 'report'`.
"""

from __future__ import annotations

import json
import re
import select
import shlex
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from parallel_agents.cli import parse

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
EXTRAS = {
    "report": ("matplotlib", "imageio", "imageio.v3"),
    "video": ("imageio_ffmpeg",),
    "data": ("duckdb", "pyarrow"),
    "bigquery": ("google.cloud.bigquery",),
    "tensorboard": ("tensorboard", "torch.utils.tensorboard"),
    "zoo": ("mpe2", "minigrid"),
    "ray": ("ray",),
    "tune": ("ray", "ray.tune", "pyarrow"),
    "docs": ("zensical", "mkdocstrings"),
}
"""The modules of each extra."""
ELSEWHERE = ("examples", "tests", "benchmarks", "tools", "scipy", "onnx", "onnxruntime", "wandb", "mlflow", "optuna")
"""Modules that a checkout has, and an installed package has not."""


def blocks(language: str) -> list[tuple[Path, int, str]]:
    """Return the blocks of a language on all pages."""
    return [
        (page, number, text)
        for page in PAGES
        for number, (kind, text) in enumerate(re.findall(r"^```(\w*)[^\n]*\n(.*?)^```", page.read_text(), re.S | re.M))
        if kind == language
    ]


def test_a_wheel_holds_the_files_that_blocks_run_with(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=250)
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        packed = {name: wheel.read(name) for name in wheel.namelist() if ".dist-info/" not in name}
    package = [path for path in (ROOT / "parallel_agents").rglob("*") if path.is_file() and path.suffix != ".pyc"]
    files = {str(path.relative_to(ROOT)): path.read_bytes() for path in package}
    games = {f"parallel_agents/examples/{path.name}": path.read_bytes() for path in (ROOT / "examples").glob("*.py")}
    assert packed == files | {name: content for name, content in games.items() if not name.endswith("__init__.py")}
    strays = [name for name, text in packed.items() if re.search(rb"^(from|import) examples\b", text, re.MULTILINE)]
    assert strays == [], "a wheel has no package `examples`"


@pytest.fixture(scope="module")
def runner() -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-W", "error", "-P", str(Path(__file__).with_name("run_blocks.py")), str(ROOT)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(timeout=30)
        finally:
            process.kill()


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(
            text,
            id=f"{page.relative_to(ROOT)}-{number}",
            marks=pytest.mark.slow if page.name == "ray.md" else (),  # each starts a Ray
        )
        for page, number, text in blocks("python")
    ],
)
def test_the_python_block_runs(text: str, runner: subprocess.Popen[str], tmp_path: Path) -> None:
    assert runner.stdin is not None
    assert runner.stdout is not None
    named = {extra for extra in EXTRAS if f"extra '{extra}'" in text}
    installed = {name for extra in named for name in EXTRAS[extra]}
    hidden = [name for names in EXTRAS.values() for name in names if name not in installed]
    runner.stdin.write(json.dumps({"text": text, "folder": str(tmp_path), "hidden": [*hidden, *ELSEWHERE]}) + "\n")
    runner.stdin.flush()
    if not select.select([runner.stdout], [], [], 280.0)[0]:
        runner.kill()  # a late answer would be taken for that of another block
        pytest.fail("no answer")
    error = json.loads(runner.stdout.readline())
    assert error is None, error


def test_the_extras_are_those_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(EXTRAS) == set(project["optional-dependencies"]) - {"dev"}


def commands() -> list[str]:
    """Return every documented command, without the words beside it; not those whose optional words are in brackets."""
    lines = [line for _, _, text in blocks("") for line in re.sub(r"\\\n\s*", "", text).splitlines()]
    found = [re.split(r"\s{2,}|\s#\s", line.removeprefix("$ "))[0] for line in lines]
    return sorted(
        {line for line in found if re.match(r"parallel-agents [a-z]", line) and not re.search(r" \[| \|", line)}
    )


@pytest.mark.parametrize("line", commands())
def test_the_command_can_be_read(line: str) -> None:
    parse(shlex.split(line, comments=True)[1:])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_points_to_a_file(page: Path) -> None:
    for target in re.findall(r"\]\((?!http|#)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}, which is not there"
