"""Pictures of a search and of an episode. They need the extra `report`: matplotlib and imageio."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parallel_agents.core.errors import ConfigError
from parallel_agents.core.files import write_atomically
from parallel_agents.workflows.blue_policies import Policy
from parallel_agents.workflows.network import ACTION_NAMES, HOST_NAMES, NetworkWorlds
from parallel_agents.workflows.network.scenario import HOSTS, N_HOSTS
from parallel_agents.workflows.orders import ORDERS
from parallel_agents.workflows.search import posterior
from parallel_agents.workflows.trainer import WorkflowResult

_ACCESS_COLOURS = ("#d8e8d8", "#f2b84b", "#c8342f")  # none, user-level, privileged
_COLUMN = {"User": 0, "Enterprise": 1, "Operational": 2}


def training_picture(results: Sequence[WorkflowResult], out: Path) -> None:
    """Draw compliance and return over the episodes of every workflow, later workflows darker."""
    figure = _figure(9, 4)
    left, right = figure.subplots(1, 2)
    for k, result in enumerate(results):
        shade = str(0.8 - 0.8 * k / max(1, len(results) - 1))
        episodes = np.arange(1, result.training.episodes + 1)
        left.plot(episodes, result.training.compliance, color=shade, linewidth=1)
        right.plot(episodes, result.training.returns, color=shade, linewidth=1)
    left.set(xlabel="episode", ylabel="compliance, mean over environments", ylim=(0, 1.02))
    right.set(xlabel="episode", ylabel="return, mean over environments")
    _save(figure, out)


def posterior_picture(results: Sequence[WorkflowResult], out: Path) -> None:
    """Draw the Gaussian process over all 120 orders, best first, with the values measured."""
    trials = [result.trial for result in results]
    mean, deviation = posterior(trials)
    rank = np.argsort(-mean)
    place = np.empty(len(ORDERS), np.int64)
    place[rank] = np.arange(len(ORDERS))
    figure = _figure(9, 4)
    axes = figure.add_subplot()
    x = np.arange(len(ORDERS))
    axes.plot(x, mean[rank], label="posterior mean")
    axes.fill_between(x, (mean - 2 * deviation)[rank], (mean + 2 * deviation)[rank], alpha=0.2, label="±2 deviations")
    places, values = [place[trial.index] for trial in trials], [trial.value for trial in trials]
    axes.scatter(places, values, color="0.2", s=14, label="evaluated")
    axes.set(xlabel="orders, best first", ylabel="return", title=" > ".join(ORDERS[rank[0]]))
    axes.legend(frameon=False)
    _save(figure, out)


def episode_animation(worlds: NetworkWorlds, policy: Policy, out: Path, *, fps: float = 2.0) -> int:
    """Write one episode of the first world as a GIF and return its number of frames.

    Hosts are coloured by red's access; both sides' actions are written below.
    """
    scene, frames = _Scene(), []
    observations, total = worlds.reset(0), 0.0
    frames.append(scene.frame(worlds, "start", 0.0))
    for turn in range(worlds.late_start, worlds.steps):
        actions = policy(observations, 0, turn)
        observations, rewards, _ = worlds.step(actions)
        total += float(rewards[0])
        frames.append(scene.frame(worlds, ACTION_NAMES[int(actions[0])], total))
    content = io.BytesIO()
    _imageio().imwrite(content, np.stack(frames), extension=".gif", duration=1000.0 / fps, loop=0)
    write_atomically(out, [content.getvalue()])
    return len(frames)


class _Scene:
    """The drawing of the network; a frame changes only colours and text."""

    def __init__(self) -> None:
        self._figure = _figure(6.4, 4.4)
        axes = self._figure.add_axes((0, 0, 1, 1))
        axes.set(xlim=(-0.6, 2.6), ylim=(-1.15, 5.2))
        axes.axis("off")
        subnets = [host.subnet for host in HOSTS]
        x = np.array([_COLUMN[subnet] for subnet in subnets], float)
        y = np.array([4.0 - subnets[:h].count(subnet) for h, subnet in enumerate(subnets)])
        for subnet, column in _COLUMN.items():
            axes.text(column, 4.85, subnet, ha="center", weight="bold")
        for h, host in enumerate(HOSTS):
            if host.link is not None:
                linked = HOST_NAMES.index(host.link)
                axes.plot(x[[h, linked]], y[[h, linked]], color="0.85", zorder=0)
            axes.text(x[h] + 0.14, y[h], host.name, va="center", fontsize=8)
        self._dots = axes.scatter(x, y, s=260, c=[_ACCESS_COLOURS[0]] * N_HOSTS, edgecolors="0.3", zorder=2)
        self._text = axes.text(-0.5, -1.0, "", fontsize=9, family="monospace")

    def frame(self, worlds: NetworkWorlds, blue: str, total: float) -> NDArray[np.uint8]:
        """Return a picture of the first world now, (height, width, 3)."""
        self._dots.set_facecolor([_ACCESS_COLOURS[level] for level in worlds.access[0]])
        service = "runs" if worlds.ot_running[0] else "IS DOWN"
        self._text.set_text(
            f"turn {worlds.turn:3d}   blue: {blue}\nreturn {total:7.1f}   red: {worlds.red_actions[0]}"
            f"   service {service}"
        )
        canvas = self._figure.canvas
        canvas.draw()
        return np.asarray(canvas.buffer_rgba())[..., :3].copy()


def _figure(width: float, height: float) -> Any:
    """Return an empty figure of this size in inches; raise ConfigError without matplotlib."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError(
            "drawing needs matplotlib, which is not installed: install parallel-agents with the extra 'report'"
        ) from error
    figure = Figure(figsize=(width, height), dpi=100)
    FigureCanvasAgg(figure)
    return figure


def _imageio() -> Any:
    """Return the module that writes GIFs; raise ConfigError without imageio."""
    try:
        from imageio import v3
    except ImportError as error:
        raise ConfigError(
            "writing a GIF needs imageio, which is not installed: install parallel-agents with the extra 'report'"
        ) from error
    return v3


def _save(figure: Any, out: Path) -> None:
    """Write a figure as PNG."""
    figure.tight_layout()
    content = io.BytesIO()
    figure.savefig(content, format="png")
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, [content.getvalue()])
