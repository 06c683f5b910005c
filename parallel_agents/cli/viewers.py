"""Show or record the episodes of a grid game: a view in the terminal, and a GIF."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from rich.console import Console
from rich.live import Live

from parallel_agents.core.errors import ConfigError
from parallel_agents.env import Environment
from parallel_agents.games import GridEnvironment, load_imageio, terminal_view, write_gif
from parallel_agents.games.kernels import Bytes


def require_grid_game(environment: Environment, option: str) -> GridEnvironment:
    """Return the environment if it can be drawn; raise a ConfigError that names the option if not."""
    if not isinstance(environment, GridEnvironment):
        raise ConfigError(
            f"{option} draws grid games, and {type(environment).__name__} is none: leave {option} out, or subclass "
            "GridEnvironment"
        )
    return environment


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


class GifRecorder:
    """Collect pictures of the first world and write them as a GIF."""

    def __init__(self, path: Path, fps: float) -> None:
        load_imageio()
        if path.suffix.lower() != ".gif":
            raise ConfigError(f"--gif {path}: give a file name that ends in .gif")
        self._path, self._fps = path, fps
        self._frames: list[Bytes] = []

    def __call__(self, environment: Environment) -> None:
        self._frames.append(require_grid_game(environment, "--gif").render())

    def write(self) -> Path:
        """Write the pictures and return the path."""
        return write_gif(self._path, self._frames, fps=self._fps)
