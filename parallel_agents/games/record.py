"""Recorded episodes: a listener that keeps the pictures of one world and leaves GIFs."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from parallel_agents.errors import ConfigError
from parallel_agents.games.draw import load_imageio, write_gif
from parallel_agents.games.kernels import Bytes
from parallel_agents.tracking.listeners import SilentListener
from parallel_agents.types import EpochStats, RunInfo

__all__ = ["Recorder"]


class Scene(Protocol):
    """What can be recorded: a `GridEnvironment`."""

    epoch: int
    turn: int
    recorder: Recorder | None

    def render(self, world: int = 0, cell: int = 16) -> Bytes: ...


class Recorder(SilentListener):
    """Records a world in the epochs `every`, 2 * `every`, … and in the last one, as `episode_<epoch>.gif`.

    Give it to the run: `game.run_experiment(listeners=[Recorder(game, "pictures", every=50)])`.
    """

    def __init__(
        self,
        scene: Scene,
        folder: str | Path,
        *,
        every: int,
        world: int = 0,
        cell: int = 12,
        fps: float = 8.0,
    ) -> None:
        if every < 1:
            raise ConfigError(f"recording every {every} epochs: give a whole number of at least 1")
        load_imageio()
        self._scene, self._folder, self._every = scene, Path(folder), every
        self._world, self._cell, self._fps = world, cell, fps
        self._last = 0
        self._frames: list[Bytes] = []
        self.written: list[Path] = []
        """The GIFs so far."""
        scene.recorder = self

    def on_start(self, run: RunInfo) -> None:
        """Know which epoch is the last."""
        self._last = run.epochs

    def look(self) -> None:
        """Keep how the world stands before a turn; the scene calls it."""
        if self._scene.turn == 1:
            self._frames.clear()
        if self._scene.epoch % self._every == 0 or self._scene.epoch == self._last:
            self._frames.append(self._scene.render(self._world, self._cell))

    def on_epoch(self, stats: EpochStats) -> None:
        """Write what was kept, with how the world stands at the end."""
        if self._frames:
            self._frames.append(self._scene.render(self._world, self._cell))
            path = self._folder / f"episode_{stats.epoch:06d}.gif"
            self.written.append(write_gif(path, self._frames, fps=self._fps))
            self._frames.clear()
