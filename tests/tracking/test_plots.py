from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parallel_agents.core.errors import ConfigError, NonFiniteError, ShapeError
from parallel_agents.tracking import plots
from parallel_agents.tracking.plots import bin_epochs, chart, intervals, learning_curve, line, scatter
from parallel_agents.tracking.statistics import Interval, mean_interval

CURVE = np.array([[0.0, 1.0, 2.0], [2.0, 3.0, 7.0]])


@pytest.fixture
def figures_drawn(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return a list that collects the figures drawn in a test."""
    figures: list[Any] = []
    new_figure = plots.new_figure

    def recorded(*size: float) -> Any:
        figures.append(new_figure(*size))
        return figures[-1]

    monkeypatch.setattr(plots, "new_figure", recorded)
    return figures


def test_a_curve_has_its_mean_its_interval_and_horizontal_lines(tmp_path: Path, figures_drawn: list[Any]) -> None:
    out = tmp_path / "curve.png"
    learning_curve({"trained": CURVE}, out, lines={"random": 0.5}, over="seeds", title="hunt")
    assert out.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    (axes,) = figures_drawn[0].axes
    mean, random = axes.lines
    assert mean.get_xdata().tolist() == [1, 2, 3]
    assert mean.get_ydata().tolist() == [1.0, 2.0, 4.5]
    assert list(random.get_ydata()) == [0.5, 0.5]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["trained", "random"]
    assert (axes.get_title(), axes.get_ylabel()) == ("hunt", "mean reward, 95% interval over seeds")
    edge = axes.collections[0].get_paths()[0].vertices
    _, low, high = mean_interval(CURVE[:, 2])
    assert edge[edge[:, 0] == 3, 1].min() == pytest.approx(low, rel=1e-5)
    assert edge[edge[:, 0] == 3, 1].max() == pytest.approx(high, rel=1e-5)


def test_curves_of_different_lengths_are_drawn_together(tmp_path: Path, figures_drawn: list[Any]) -> None:
    learning_curve({"a": CURVE, "b": np.zeros((4, 1000))}, tmp_path / "curve.png", points=50)
    assert [len(line.get_xdata()) for line in figures_drawn[0].axes[0].lines] == [3, 50]


def test_one_sample_is_drawn_without_an_interval(tmp_path: Path, figures_drawn: list[Any]) -> None:
    learning_curve({"a": CURVE[:1]}, tmp_path / "curve.png")
    assert figures_drawn[0].axes[0].lines[0].get_ydata().tolist() == [0.0, 1.0, 2.0]
    assert (tmp_path / "curve.png").exists()


def test_epochs_may_stand_at_their_steps(tmp_path: Path, figures_drawn: list[Any]) -> None:
    learning_curve({"a": CURVE}, tmp_path / "curve.pdf", x={"a": [10, 30, 60]}, xlabel="steps", ylabel="return")
    (axes,) = figures_drawn[0].axes
    assert axes.lines[0].get_xdata().tolist() == [10, 30, 60]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("steps", "return, 95% interval over agents")
    assert (tmp_path / "curve.pdf").read_bytes().startswith(b"%PDF")


def test_every_epoch_is_in_one_bin() -> None:
    table = np.arange(7.0)[None]
    epochs, means = bin_epochs(table, 3)
    assert epochs.tolist() == [1.5, 3.5, 6.0]
    assert means.tolist() == [[0.5, 2.5, 5.0]]
    epochs, means = bin_epochs(table, 100)
    assert epochs.tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert means.tolist() == table.tolist()


def test_a_missing_matplotlib_is_reported_with_the_extra_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ConfigError, match=r"needs matplotlib, which is not installed: install parallel-agents\[rep"):
        learning_curve({"a": CURVE}, tmp_path / "curve.png")
    assert list(tmp_path.iterdir()) == []


def test_invalid_curves_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ShapeError, match="a plot of no curve at all was asked for"):
        learning_curve({}, tmp_path / "curve.png")
    with pytest.raises(ShapeError, match=r"curve 'a' has shape \(3,\): give \(samples, epochs\)"):
        learning_curve({"a": CURVE[0]}, tmp_path / "curve.png")
    with pytest.raises(NonFiniteError, match="curve 'a' holds NaN or infinity"):
        learning_curve({"a": CURVE * np.nan}, tmp_path / "curve.png")
    with pytest.raises(ConfigError, match=r"0 points were asked for: give at least 1"):
        learning_curve({"a": CURVE}, tmp_path / "curve.png", points=0)


PANELS = [
    chart(
        "Loss",
        [1, 2, 3],
        [line("mean", [1.0, np.nan, 0.5], [0.5, 0.5, 0.25], [2, 2, 2]), line("points", [1, 2, 3]) | {"points": True}],
    ),
    intervals(
        "Score", {"a": Interval(1.0, 0.5, 2.0), "b": Interval(3.0, np.nan, np.nan)}, xlabel="reward", reference=0.0
    ),
    scatter(
        "Worlds",
        [{"x": 1.0, "y": 2.0, "group": "calm", "value": 3.0}],
        xlabel="rivals",
        ylabel="crisis",
        value="reward",
    ),
]


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["kind"])
def test_every_plot_is_written_as_png_svg_and_csv(panel: plots.Panel, tmp_path: Path) -> None:
    plots.draw_panel(panel, tmp_path / "plot.png")
    plots.draw_panel(panel, tmp_path / "plot.svg")
    plots.write_csv(panel, tmp_path / "plot.csv")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    assert (
        panel["title"] in re.sub("<[^>]*>", "", (tmp_path / "plot.svg").read_text())
        or "<svg" in (tmp_path / "plot.svg").read_text()
    )
    rows = (tmp_path / "plot.csv").read_text().splitlines()
    expected = {"chart": "mean,2.0,,0.5,2.0", "intervals": "a,1.0,0.5,2.0", "scatter": "1.0,2.0,calm,3.0"}
    assert expected[panel["kind"]] in rows


def test_a_plot_of_another_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"plot.bmp: give a file name that ends in .png, .svg or .pdf"):
        plots.draw_panel(PANELS[0], tmp_path / "plot.bmp")
