"""Those who look on while episodes are played: a view in the terminal, and a film."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console
from rich.live import Live

from parallel_agents.environment import Environment
from parallel_agents.errors import ConfigError
from parallel_agents.games import GridEnvironment, write_gif
from parallel_agents.games.draw import load_imageio
from parallel_agents.games.kernels import Bytes
from parallel_agents.games.terminal import terminal_view

__all__ = ["Filmed", "Shown", "grid_game"]


def grid_game(environment: Environment, option: str) -> GridEnvironment:
    """The environment, if it can be drawn."""
    if not isinstance(environment, GridEnvironment):
        raise ConfigError(
            f"{option} draws grid games, and {type(environment).__name__} is none: leave {option} out, or subclass "
            "GridEnvironment"
        )
    return environment


class Shown:
    """Shows the first world on a terminal, turn by turn; used as `with Shown(…) as look`, then `look(stage)`."""

    def __init__(
        self, stream: TextIO, fps: float, *, sleep: Callable[[float], None] = time.sleep, terminal: bool | None = None
    ) -> None:
        self._live = Live(console=Console(file=stream, force_terminal=terminal), auto_refresh=False)
        self._pause, self._sleep = 1.0 / fps, sleep

    @staticmethod
    def nothing() -> nullcontext[Callable[[Any], None]]:
        """Shows nothing."""
        return nullcontext(lambda _: None)

    def __enter__(self) -> Callable[[Any], None]:
        self._live.start()
        return self._look

    def __exit__(self, *_: object) -> None:
        self._live.stop()
        if not self._live.console.is_terminal:  # where the last picture stands without an end of line
            self._live.console.print()

    def _look(self, stage: Environment) -> None:
        self._live.update(terminal_view(grid_game(stage, "--watch")), refresh=True)
        self._sleep(self._pause)


class Filmed:
    """Keeps pictures of the first world and writes them as a GIF."""

    def __init__(self, path: Path, fps: float) -> None:
        load_imageio()
        if path.suffix.lower() != ".gif":
            raise ConfigError(f"--gif {path}: give a file name that ends in .gif")
        self._path, self._fps = path, fps
        self._frames: list[Bytes] = []

    def __call__(self, stage: Environment) -> None:
        self._frames.append(grid_game(stage, "--gif").render())

    def write(self) -> Path:
        """Write what was kept."""
        return write_gif(self._path, self._frames, fps=self._fps)
