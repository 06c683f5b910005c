"""The documentation site builds without warnings, holds every page, and fetches nothing."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").rglob("*.md"))


def build(folder: Path) -> subprocess.CompletedProcess[str]:
    """Build the site in a folder."""
    command = [Path(sys.executable).with_name("zensical"), "build", "--strict"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)


def test_the_site_builds_without_warnings_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    for name in ("docs", "parallel_agents", "tools"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    result = build(tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    for page in PAGES:
        html = (tmp_path / "build/site" / page.relative_to(ROOT / "docs")).with_suffix(".html").read_text()
        loaded = re.findall(r"<(?:script|link|img)[^>]*(?:src|href)=\"?(https?://[^\"\s>]+)", html)
        assert loaded == [], f"{page.name} loads {loaded}"


def test_a_link_to_a_page_that_is_not_there_fails_the_build(tmp_path: Path) -> None:
    """A site of one page, with the settings of ours."""
    settings, _, _ = (ROOT / "mkdocs.yml").read_text().partition("\nnav:")
    (tmp_path / "mkdocs.yml").write_text(f"{settings}\nnav:\n  - Home: index.md\n")
    (tmp_path / "docs").mkdir()
    for target, fails in (("index.md", False), ("nothing.md", True)):
        (tmp_path / "docs/index.md").write_text(f"# Home\n\n[a page]({target})\n")
        result = build(tmp_path)
        assert (result.returncode != 0) is fails, result.stdout + result.stderr
        assert ("page does not exist" in result.stdout + result.stderr) is fails


def test_the_navigation_names_every_page() -> None:
    named = set(re.findall(r": ([\w/.-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), flags=re.M))
    assert named == {str(page.relative_to(ROOT / "docs")) for page in PAGES}


def find(dotted: str) -> Any:
    """Return what a dotted name means."""
    parts = dotted.split(".")
    for end in range(len(parts), 0, -1):
        try:
            found = import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        for name in parts[end:]:
            found = getattr(found, name)
        return found
    raise AssertionError(f"{dotted} is not there")


NAMES = re.findall(r"\| `(parallel_agents[\w.]+)` \|", (ROOT / "docs/names.md").read_text())


@pytest.mark.parametrize("dotted", NAMES)
def test_a_name_of_the_source_documents_can_be_imported(dotted: str) -> None:
    assert find(dotted) is not None


def test_the_table_of_names_is_read() -> None:
    assert len(NAMES) > 25
