"""The commands as dataclasses: their fields are the options, their docstrings the help."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

__all__ = ["Doctor", "Train"]


@dataclass(frozen=True)
class Train:
    """Train the agents of an environment.

    Example: parallel-agents train examples/treasure_hunt.py --agents 8 --epochs 100 --seed 3
    """

    target: tyro.conf.Positional[str]
    """A Python file or module:Class that holds one ParallelEnvironment."""
    agents: int | None = None
    """Number of agents (world.agents)."""
    worlds: int | None = None
    """Worlds stepped side by side."""
    epochs: int | None = None
    """Epochs to run."""
    seed: int | None = None
    """The one seed of the run."""
    seeds: int | None = None
    """Replicas with successive seeds, trained in the same stacks."""
    backend: Literal["inline", "thread", "process", "ray"] | None = None
    """Where rounds are computed; by default chosen by measured cost. The results do not depend on it."""
    algo: str | None = None
    """Learner, where the environment leaves it open (model.algorithm)."""
    config: Path | None = None
    """TOML file with sections experiment, world, model, parallel."""
    set: Annotated[tuple[str, ...], tyro.conf.arg(metavar="SECTION.KEY=VALUE"), tyro.conf.UseAppendAction] = ()
    """Set one value, for example --set parallel.train_interval=3; may be repeated."""
    out: Path | None = None
    """Run folder; by default a new one under runs/."""
    json: bool = False
    """Print exactly one JSON object on stdout; everything else goes to stderr."""
    quiet: bool = False
    """No progress display."""

    def run(self) -> None:
        from parallel_agents.cli.train import train

        train(self)


@dataclass(frozen=True)
class Doctor:
    """Say what this machine has, and whether equal results can be promised on it."""

    json: bool = False
    """Print exactly one JSON object on stdout."""

    def run(self) -> None:
        from parallel_agents.cli.doctor import doctor

        doctor(as_json=self.json)
