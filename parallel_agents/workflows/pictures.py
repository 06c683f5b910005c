"""Panels and pictures of scores, orders, trainings, searches and episodes; files need the extra `report`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from parallel_agents.core.types import Array, EpochStats, RunInfo
from parallel_agents.tracking.callbacks import BaseCallback, Throttle
from parallel_agents.tracking.plots import (
    Panel,
    chart,
    intervals,
    line,
    new_figure,
    save_figure,
    table,
    write_animation,
    write_section,
)
from parallel_agents.tracking.statistics import Interval
from parallel_agents.workflows.evaluation import Z95, Episode, Score
from parallel_agents.workflows.network import ACTION_NAMES, HOST_NAMES, NetworkWorlds
from parallel_agents.workflows.network.scenario import HOSTS, LENGTHS, N_HOSTS
from parallel_agents.workflows.orders import ORDERS
from parallel_agents.workflows.search import posterior

if TYPE_CHECKING:
    from parallel_agents.workflows.trainer import TrainingHistory, WorkflowResult

_ACCESS = {"no access": "#d8e8d8", "user access": "#f2b84b", "privileged access": "#c8342f"}
_COLOURS = list(_ACCESS.values())
_MARKS = {
    "Analyse": ("o", "#3b6fb6"),
    "Remove": ("v", "#6a3d9a"),
    "Restore": ("s", "#111111"),
    "Decoy": ("D", "#1b9e77"),
}
_COLUMN = {"User": 0, "Enterprise": 1, "Operational": 2}
_SUBNETS = [host.subnet for host in HOSTS]
_PLACES = [(_COLUMN[subnet], _SUBNETS[:h].count(subnet)) for h, subnet in enumerate(_SUBNETS)]
_LINKS = [(h, HOST_NAMES.index(host.link)) for h, host in enumerate(HOSTS) if host.link is not None]
_LAST_TRAININGS = 8  # of a search, in one chart


def training_panels(histories: Mapping[str, TrainingHistory]) -> dict[str, Panel]:
    """Return charts of compliance, by the rule and by the documented measure, and of the return over the episodes."""
    columns = {"compliance": "compliance", "documented": "compliance, documented measure", "returns": "return"}
    return {
        column: chart(
            ylabel.capitalize(), [],
            [line(name, getattr(history, column)) | {"x": list(range(1, history.episodes + 1))}
             for name, history in histories.items()],
            xlabel="episode", ylabel=ylabel, note="mean over environments",
        )
        for column, ylabel in columns.items()
    }  # fmt: skip


def search_panels(results: Sequence[WorkflowResult], noise: float | None = None) -> dict[str, Panel]:
    """Return the Gaussian process over all 120 orders, best first, the last trainings, and the orders tried."""
    trials = [result.trial for result in results]
    mean, deviation = posterior(trials, noise)
    rank = np.argsort(-mean)
    place, x = np.argsort(rank) + 1, list(range(1, len(ORDERS) + 1))
    low, high = (mean - 2 * deviation)[rank], (mean + 2 * deviation)[rank]
    measured = sorted((int(place[trial.index]), trial.value) for trial in trials)
    tried = line("evaluated", [value for _, value in measured])
    tried |= {"x": [at for at, _ in measured], "points": True}
    gaussian = chart(
        "Posterior over all orders", x, [line("mean", mean[rank], low, high) | {"x": x}, tried],
        xlabel="orders, best first", ylabel="return", note=f"±2 deviations; best: {' > '.join(ORDERS[rank[0]])}",
    )  # fmt: skip
    columns = ["number", "order", "return", "± (95 %)", "script", "compliance", "documented", "episodes", "stopped"]
    rows = [
        [number, " > ".join(result.order), f"{result.evaluation.value:.1f}", f"{Z95 * result.evaluation.error:.1f}",
         f"{result.evaluation.script:.1f}", f"{result.evaluation.compliance:.2f}",
         f"{result.evaluation.documented:.2f}", result.training.episodes, "yes" if result.training.stopped else "no"]
        for number, result in enumerate(results, 1)
    ]  # fmt: skip
    trainings = [(str(number), result.training) for number, result in enumerate(results, 1)]
    last = training_panels(dict(trainings[-_LAST_TRAININGS:]))
    return {"posterior": gaussian, **last, "orders": table("Orders tried", columns, rows)}


def score_panels(scores: Mapping[str, Score]) -> list[Panel]:
    """Return the totals of a defender in the variants of the game as a table, and the nine means with intervals."""
    rows = [[name, f"{score.total:.2f}", f"{Z95 * score.total_error:.2f}"] for name, score in scores.items()]
    means: dict[str, Interval] = {}
    for name, score in scores.items():
        for red in score.means:
            for length, mean, error in zip(LENGTHS, score.means[red], score.errors[red], strict=True):
                means[f"{name}: {red} {length}"] = Interval(mean, mean - Z95 * error, mean + Z95 * error)
    episodes = next(iter(scores.values())).episodes
    note = f"95 % intervals over {episodes} episodes against each attacker"
    return [table("Scores", ["game", "total", "± (95 %)"], rows, note=note),
            intervals("Mean return after 30, 50 and 100 turns", means, xlabel="mean return", note=note)]  # fmt: skip


def orders_picture(values: Mapping[str, NDArray[np.float64]], out: Path) -> None:
    """Draw quantities (120,) of all orders as maps: a row per first and second type, a column per order of the rest."""
    figure = new_figure(6.5 * len(values), 7)
    figure.set_layout_engine("constrained")
    rows = [order[:2] for order in ORDERS[::6]]
    for axes, (name, column) in zip(np.atleast_1d(figure.subplots(1, len(values))), values.items(), strict=True):
        image = axes.imshow(column.reshape(20, 6), aspect="auto")
        axes.set(title=name, yticks=range(20), yticklabels=[" > ".join(row) for row in rows], xticks=range(6))
        axes.set_xlabel("the six orders of the other three types, as in ORDERS")
        axes.tick_params(labelsize=7)
        for (row, place), value in np.ndenumerate(column.reshape(20, 6)):
            colour = "black" if image.norm(value) > 0.6 else "white"
            axes.text(place, row, f"{value:.3g}", ha="center", va="center", fontsize=6, color=colour)
        figure.colorbar(image, ax=axes, shrink=0.6)
    save_figure(figure, out)


def timeline_picture(episode: Episode, out: Path) -> None:
    """Draw an episode: who holds which host when, each blue action at its host, red's target, and the points lost."""
    figure = new_figure(14, 6.5)
    figure.set_layout_engine("constrained")
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(4, 1))
    turns = episode.first_turn + np.arange(1, len(episode.actions) + 1)
    edges = (episode.first_turn + 0.5, turns[-1] + 0.5, N_HOSTS - 0.5, -0.5)
    from matplotlib.colors import ListedColormap

    colours = ListedColormap(_COLOURS)
    top.imshow(episode.access[1:].T, aspect="auto", cmap=colours, vmin=0, vmax=2, extent=edges, interpolation="nearest")
    top.set(yticks=range(N_HOSTS), yticklabels=HOST_NAMES)
    for kind, marks in _MARKS.items():
        at = [(turn, action.split()[1]) for turn, action in zip(turns, episode.actions, strict=True)
              if action.startswith(kind)]  # fmt: skip
        x, y = [turn for turn, _ in at], [HOST_NAMES.index(host) for _, host in at]
        top.scatter(x, y, marker=marks[0], c=marks[1], s=26, linewidths=1, label=f"blue: {kind}", zorder=3)
    hit = [(turn, name.split(":")[1]) for turn, name in zip(turns, episode.red_actions, strict=True)
           if name.split(":")[-1] in HOST_NAMES]  # fmt: skip
    top.scatter(
        [turn for turn, _ in hit], [HOST_NAMES.index(host) + 0.32 for _, host in hit], marker="_", c="black", s=14,
        label="red's target",
    )  # fmt: skip
    top.legend(ncols=6, frameon=False, fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    bottom.bar(turns, episode.costs, width=1.0, color="0.4")
    for turn in turns[~episode.running[1:]]:
        bottom.axvspan(turn - 0.5, turn + 0.5, color="#c8342f", alpha=0.15, linewidth=0)
    bottom.set(
        xlabel="turn (shaded below: the service is down)", ylabel=f"points lost\n{episode.costs.sum():.1f} in all"
    )
    save_figure(figure, out)


def network_frames(episode: Episode) -> list[dict[str, Any]]:
    """Return an episode as the frames of a network panel: before the first turn, then after each."""
    actions = zip(("start", *episode.actions), ("", *episode.red_actions), strict=True)
    totals = 0.0 - np.concatenate([[0.0], episode.costs.cumsum()])
    return [
        _frame(episode.first_turn + turn, episode.access[turn], bool(episode.running[turn]), *names, totals[turn])
        for turn, names in enumerate(actions)
    ]


def _frame(turn: int, access: Array, running: bool, blue: str, red: str, total: float) -> dict[str, Any]:
    """Return red's access to each host, and a text about the turn."""
    text = (
        f"turn {turn:3d}   blue: {blue}\nreturn {total:7.1f}   red: {red}   service {'runs' if running else 'IS DOWN'}"
    )
    return {"levels": [int(level) for level in access], "text": text}


def network_panel(frames: Sequence[Mapping[str, Any]], title: str, *, label: str = "") -> Panel:
    """Return an episode in the network as a panel, turn by turn; `label` says which episode it is."""
    hosts = [{"name": host.name, "x": x, "y": y} for host, (x, y) in zip(HOSTS, _PLACES, strict=True)]
    return {"kind": "network", "title": title, "columns": list(_COLUMN), "hosts": hosts, "links": _LINKS,
            "levels": list(_ACCESS), "frames": list(frames), "label": label}  # fmt: skip


class NetworkRecorder(BaseCallback):
    """Keep an episode of the first world in the run folder, a new one every two seconds and the last.

    The environment calls `capture` after each turn.
    """

    def __init__(self, worlds: NetworkWorlds, folder: Path) -> None:
        self._worlds, self._folder = worlds, folder
        self._throttle = Throttle(every=2.0)
        self.is_due = True
        """Whether this epoch is recorded."""
        self._last_epoch, self._total = 0, 0.0
        self._frames: list[dict[str, Any]] = []

    def on_start(self, run: RunInfo) -> None:
        self._last_epoch = run.epochs

    def capture(self, actions: Array, rewards: Array) -> None:
        """Keep the turn that was just played, if this epoch is recorded."""
        if self.is_due:
            worlds, self._total = self._worlds, self._total + float(rewards[0])
            names = ACTION_NAMES[int(actions[0])], worlds.red_actions[0]
            frame = _frame(worlds.turn, worlds.access[0], bool(worlds.ot_running[0]), *names, self._total)
            self._frames.append(frame)

    def on_epoch(self, stats: EpochStats) -> None:
        if self._frames:
            panel = network_panel(self._frames, "The network", label=f"epoch {stats.epoch}")
            write = partial(write_section, self._folder, "network", "The defended network", [panel])
            self._throttle.call(write, always=stats.epoch == self._last_epoch)
        self.is_due = self._throttle.is_due or stats.epoch + 1 == self._last_epoch
        self._total, self._frames = 0.0, []


def episode_animation(episode: Episode, out: Path, *, fps: float = 2.0) -> int:
    """Write an episode as a GIF or MP4 and return its number of frames.

    Hosts are coloured by red's access; both sides' actions are written below.
    """
    scene = _Scene()
    frames = [scene.draw(frame) for frame in network_frames(episode)]
    write_animation(out, frames, fps=fps)
    return len(frames)


class _Scene:
    """The drawing of the network; a frame changes only colours and text."""

    def __init__(self) -> None:
        self._figure = new_figure(6.4, 4.4)
        axes = self._figure.add_axes((0, 0, 1, 1))
        axes.set(xlim=(-0.6, 2.6), ylim=(-1.15, 5.2))
        axes.axis("off")
        x, y = np.array(_PLACES, float).T * [[1.0], [-1.0]] + [[0.0], [4.0]]
        for subnet, column in _COLUMN.items():
            axes.text(column, 4.85, subnet, ha="center", weight="bold")
        for link in _LINKS:
            axes.plot(x[[*link]], y[[*link]], color="0.85", zorder=0)
        for h, host in enumerate(HOSTS):
            axes.text(x[h] + 0.14, y[h], host.name, va="center", fontsize=8)
        self._dots = axes.scatter(x, y, s=260, c=[_COLOURS[0]] * N_HOSTS, edgecolors="0.3", zorder=2)
        self._text = axes.text(-0.5, -1.0, "", fontsize=9, family="monospace")

    def draw(self, frame: Mapping[str, Any]) -> NDArray[np.uint8]:
        """Return a picture of a frame, (height, width, 3)."""
        self._dots.set_facecolor([_COLOURS[level] for level in frame["levels"]])
        self._text.set_text(frame["text"])
        canvas = self._figure.canvas
        canvas.draw()
        return np.asarray(canvas.buffer_rgba())[..., :3].copy()
