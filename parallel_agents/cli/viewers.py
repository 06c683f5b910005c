"""Show or record episodes: a view of grid games in the terminal; a GIF or MP4 of whatever can be drawn."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from rich.console import Console, Group
from rich.live import Live

from parallel_agents.core.errors import ConfigError
from parallel_agents.core.types import EpochStats, RunInfo
from parallel_agents.env import Environment
from parallel_agents.env.adapters.adapted import AdaptedEnvironment
from parallel_agents.games import GridEnvironment, terminal_view
from parallel_agents.games.kernels import Bytes
from parallel_agents.tracking.callbacks import BaseCallback
from parallel_agents.tracking.plots import load_imageio, write_animation


def require_grid_game(environment: Environment, option: str) -> GridEnvironment:
    """Return the environment if it can be drawn; raise a ConfigError that names the option if not."""
    if not isinstance(environment, GridEnvironment):
        if type(environment).__name__ == "NetworkDefence":
            raise ConfigError(
                f"{option} draws grid games: a network defender is drawn by `parallel-agents workflow evaluate RUN "
                "--animation FILE.gif`, or with --timeline FILE.png"
            )
        raise ConfigError(
            f"{option} draws grid games, and {type(environment).__name__} is none: leave {option} out, or subclass "
            "GridEnvironment"
        )
    return environment


def require_drawable(environment: Environment) -> GridEnvironment | AdaptedEnvironment:
    """Return the environment if pictures can be made of it: a grid game, or one of Gymnasium or PettingZoo."""
    return environment if isinstance(environment, AdaptedEnvironment) else require_grid_game(environment, "--gif")


class TerminalViewer:
    """Show the first world in a terminal, turn by turn: `with TerminalViewer(…) as show`, then `show(environment)`."""

    def __init__(
        self, stream: TextIO, fps: float, *, sleep: Callable[[float], None] = time.sleep, terminal: bool | None = None
    ) -> None:
        self._live = Live(console=Console(file=stream, force_terminal=terminal), auto_refresh=False)
        self._pause, self._sleep = 1.0 / fps, sleep

    def __enter__(self) -> Callable[[Environment], None]:
        self._live.start()
        return self._show

    def __exit__(self, *_: object) -> None:
        self._live.stop()
        if not self._live.console.is_terminal:  # there, the last picture has no end of line
            self._live.console.print()

    def _show(self, environment: Environment) -> None:
        self._live.update(terminal_view(require_grid_game(environment, "--watch")), refresh=True)
        self._sleep(self._pause)


class TerminalCallback(BaseCallback):
    """Show the first world of a training in the terminal, as it is at the end of an epoch, a few times a second."""

    def __init__(self, environment: Environment, stream: TextIO) -> None:
        self._game = require_grid_game(environment, "--watch terminal")
        self._live = Live(console=Console(file=stream), auto_refresh=False)
        self._due = 0.0

    def on_start(self, run: RunInfo) -> None:
        self._live.start()

    def on_epoch(self, stats: EpochStats) -> None:
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + 0.25
            reward = float(np.mean(stats.rewards))
            self._live.update(
                Group(f"epoch {stats.epoch}, reward {reward:.4g}", terminal_view(self._game)), refresh=True
            )

    def on_end(self, summary: Mapping[str, Any]) -> None:
        self._live.stop()


class EpisodeRecorder:
    """Collect pictures of the first world, or of what one agent sees of it, and write them as a GIF or MP4."""

    def __init__(self, path: Path, fps: float, environment: Environment, agent: str | None) -> None:
        load_imageio(path)
        names = [str(one.name) for one in require_drawable(environment).agents]
        if agent is not None:
            require_grid_game(environment, "--seen-by")
        if agent is not None and agent not in names:
            raise ConfigError(f"--seen-by {agent}: this run has {', '.join(names)}")
        self._path, self._fps = path, fps
        self._seen_by = None if agent is None else names.index(agent)
        self._frames: list[Bytes] = []

    def __call__(self, environment: Environment) -> None:
        if not environment.active[0]:  # the episode in the first world has ended
            return
        if self._seen_by is None:
            self._frames.append(require_drawable(environment).render())
        else:
            self._frames.append(require_grid_game(environment, "--seen-by").render(seen_by=self._seen_by))

    def write(self) -> Path:
        """Write the pictures and return the path."""
        return write_animation(self._path, self._frames, fps=self._fps)
