from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parallel_agents.errors import ConfigError, NonFiniteError, ShapeError
from parallel_agents.tracking import plots
from parallel_agents.tracking.plots import binned, learning_curve
from parallel_agents.tracking.statistics import mean_interval

CURVE = np.array([[0.0, 1.0, 2.0], [2.0, 3.0, 7.0]])


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The figures that were drawn."""
    figures: list[Any] = []
    make = plots._figure

    def noted() -> Any:
        figures.append(make())
        return figures[-1]

    monkeypatch.setattr(plots, "_figure", noted)
    return figures


def test_a_curve_has_its_mean_its_band_and_its_lines(tmp_path: Path, drawn: list[Any]) -> None:
    out = tmp_path / "curve.png"
    learning_curve({"trained": CURVE}, out, lines={"random": 0.5}, over="seeds", title="hunt")
    assert out.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    (axes,) = drawn[0].axes
    mean, random = axes.lines
    assert mean.get_xdata().tolist() == [1, 2, 3]
    assert mean.get_ydata().tolist() == [1.0, 2.0, 4.5]
    assert list(random.get_ydata()) == [0.5, 0.5]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["trained", "random"]
    assert (axes.get_title(), axes.get_ylabel()) == ("hunt", "mean reward, 95% interval over seeds")
    edge = axes.collections[0].get_paths()[0].vertices
    _, low, high = mean_interval(CURVE[:, 2])
    assert edge[edge[:, 0] == 3, 1].min() == pytest.approx(low)
    assert edge[edge[:, 0] == 3, 1].max() == pytest.approx(high)


def test_several_curves_of_different_lengths(tmp_path: Path, drawn: list[Any]) -> None:
    learning_curve({"a": CURVE, "b": np.zeros((4, 1000))}, tmp_path / "curve.png", points=50)
    assert [len(line.get_xdata()) for line in drawn[0].axes[0].lines] == [3, 50]


def test_one_sample_is_drawn_without_a_band(tmp_path: Path, drawn: list[Any]) -> None:
    learning_curve({"a": CURVE[:1]}, tmp_path / "curve.png")
    assert drawn[0].axes[0].lines[0].get_ydata().tolist() == [0.0, 1.0, 2.0]
    assert (tmp_path / "curve.png").exists()


def test_bins_hold_every_epoch_once() -> None:
    table = np.arange(7.0)[None]
    epochs, means = binned(table, 3)
    assert epochs.tolist() == [1.5, 3.5, 6.0]
    assert means.tolist() == [[0.5, 2.5, 5.0]]
    epochs, means = binned(table, 100)
    assert epochs.tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert means.tolist() == table.tolist()


def test_matplotlib_is_asked_for_by_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ConfigError, match=r"needs matplotlib, which is not installed: install parallel-agents\[rep"):
        learning_curve({"a": CURVE}, tmp_path / "curve.png")
    assert list(tmp_path.iterdir()) == []


def test_bad_curves_are_named(tmp_path: Path) -> None:
    with pytest.raises(ShapeError, match="a plot of no curve at all was asked for"):
        learning_curve({}, tmp_path / "curve.png")
    with pytest.raises(ShapeError, match=r"curve 'a' has shape \(3,\): give \(samples, epochs\)"):
        learning_curve({"a": CURVE[0]}, tmp_path / "curve.png")
    with pytest.raises(NonFiniteError, match="curve 'a' holds NaN or infinity"):
        learning_curve({"a": CURVE * np.nan}, tmp_path / "curve.png")
    with pytest.raises(ConfigError, match=r"0 points were asked for: give at least 1"):
        learning_curve({"a": CURVE}, tmp_path / "curve.png", points=0)
