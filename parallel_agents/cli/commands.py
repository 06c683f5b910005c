"""The commands as dataclasses: their fields are the options, their docstrings the help."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

__all__ = ["Doctor", "Eval", "Export", "Resume", "Train"]


@dataclass(frozen=True)
class Train:
    """Train the agents of an environment.

    Example: parallel-agents train examples/treasure_hunt.py --agents 8 --epochs 100 --seed 3
    """

    target: tyro.conf.Positional[str]
    """A Python file or module:Class that holds one ParallelEnvironment, or gymnasium:CartPole-v1 and the like."""
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
    sweep: Annotated[tuple[str, ...], tyro.conf.arg(metavar="SECTION.KEY=V,V"), tyro.conf.UseAppendAction] = ()
    """Try several values, for example --sweep model.lr=0.001,0.0003: replicas in the same stacks; may be repeated."""
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
class Resume:
    """Go on with a run from its newest good checkpoint, exactly as if it had never stopped.

    Example: parallel-agents resume runs/treasure_hunt-20250131-142501-k3f9a1 --epochs 400
    """

    run_dir: tyro.conf.Positional[Path]
    """Run folder, as `train` printed it."""
    epochs: int | None = None
    """Epochs in all; by default those the run was started with."""
    target: str | None = None
    """The environment, if it has moved since."""
    json: bool = False
    """Print exactly one JSON object on stdout; everything else goes to stderr."""
    quiet: bool = False
    """No progress display."""

    def run(self) -> None:
        from parallel_agents.cli.train import resume

        resume(self)


@dataclass(frozen=True)
class Eval:
    """Let the agents of a run play fresh episodes without learning.

    Example: parallel-agents eval runs/treasure_hunt-20250131-142501-k3f9a1 --episodes 100
    """

    run_dir: tyro.conf.Positional[Path]
    """Run folder, as `train` printed it."""
    episodes: int = 20
    """Episodes, played side by side."""
    best: bool = False
    """The weights of the best evaluation during training (experiment.eval_every) instead of the newest."""
    exploration: float = 0.0
    """0: the agents' best actions; 1: as they explore (for ε-greedy learners, at random)."""
    target: str | None = None
    """The environment, if it has moved since."""
    json: bool = False
    """Print exactly one JSON object on stdout."""

    def run(self) -> None:
        from parallel_agents.cli.eval import evaluate_run

        evaluate_run(self)


@dataclass(frozen=True)
class Export:
    """Write the weights of one agent of a run as a file, to start other agents from (model.weights).

    Example: parallel-agents export runs/cart --agent agent_0 --out cart.safetensors
    """

    run_dir: tyro.conf.Positional[Path]
    """Run folder, as `train` printed it."""
    agent: str
    """The agent's name, such as agent_0."""
    out: Path
    """File to write."""
    replica: int = 0
    """Which replica, where the run has several, counted from 0."""
    best: bool = False
    """The weights of the best evaluation during training (experiment.eval_every) instead of the newest."""
    target: str | None = None
    """The environment, if it has moved since."""
    json: bool = False
    """Print exactly one JSON object on stdout."""

    def run(self) -> None:
        from parallel_agents.cli.export import export

        export(self)


@dataclass(frozen=True)
class Doctor:
    """Say what this machine has, and whether equal results can be promised on it."""

    json: bool = False
    """Print exactly one JSON object on stdout."""

    def run(self) -> None:
        from parallel_agents.cli.doctor import doctor

        doctor(as_json=self.json)
