"""The picture of the packages shows the imports as they are."""

from __future__ import annotations

from tools import architecture


def test_the_stored_picture_shows_todays_imports() -> None:
    assert architecture.PICTURE.read_text() == architecture.picture(), "run: python -m tools.architecture"


def test_imports_that_a_longer_path_implies_are_left_out() -> None:
    pairs = architecture.imports({name for row in architecture.layers() for name in row})
    assert ("engine", "execution") in pairs
    assert ("engine", "core") not in pairs
