"""The commands as dataclasses: their fields are the options, their docstrings the help.

Each command imports its implementation when it runs, so that `--help` stays quick.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, get_args

import tyro

from parallel_agents.core.config import BackendName

_arg = partial(tyro.conf.arg, help_behavior_hint="")  # without "(default: …)" or "(optional)" in the help

Count = Annotated[int | None, _arg(metavar="N")]
Word = Annotated[str | None, _arg(metavar="WORD")]
File = Annotated[Path | None, _arg(metavar="PATH")]
Flag = Annotated[bool, _arg()]
Target = Annotated[tyro.conf.Positional[str], _arg(metavar="TARGET")]
Settings = Annotated[tuple[str, ...], tyro.conf.arg(metavar="SECTION.KEY=VALUE"), tyro.conf.UseAppendAction]

# options with the same help in several commands
_BEST = "The weights of the best evaluation during training (experiment.eval_every) instead of the newest."
_CONFIG = "TOML file with sections experiment, world, model, parallel."
_TENSORBOARD = "Write what TensorBoard shows into the run folder too (needs the extra 'tensorboard')."
RunDir = Annotated[tyro.conf.Positional[Path], _arg(metavar="RUN", help="Run folder, as `train` printed it.")]
MovedTarget = Annotated[str | None, _arg(metavar="TARGET", help="The environment, if it has moved since.")]
ConfigFile = Annotated[Path | None, _arg(metavar="PATH", help=_CONFIG)]
Best = Annotated[bool, _arg(help=_BEST)]
Json = Annotated[bool, _arg(help="Print exactly one JSON object on stdout.")]
JsonOnly = Annotated[bool, _arg(help="Print exactly one JSON object on stdout; everything else goes to stderr.")]
Quiet = Annotated[bool, _arg(help="No progress display.")]
TensorBoard = Annotated[bool, _arg(help=_TENSORBOARD)]


@dataclass(frozen=True)
class Train:
    """Train the agents of a game or another environment.

    parallel-agents train treasure_hunt --worlds 8 --seed 3

    parallel-agents train my_game.py --agents 5 --set world.radius=3

    parallel-agents train gymnasium:CartPole-v1 --algo ppo --worlds 8 --out runs/cart
    """

    target: Target
    """A game of `parallel-agents games`, a Python file or module:Class that holds one ParallelEnvironment, or a
    foreign environment: gymnasium:CartPole-v1, pettingzoo:mpe2.simple_spread_v3."""
    agents: Count = None
    """Number of agents (world.agents)."""
    worlds: Count = None
    """Worlds stepped side by side."""
    epochs: Count = None
    """Epochs to run."""
    seed: Count = None
    """The one seed of the run."""
    seeds: Count = None
    """Replicas with successive seeds, trained in the same stacks."""
    sweep: Annotated[tuple[str, ...], tyro.conf.arg(metavar="SECTION.KEY=V,V"), tyro.conf.UseAppendAction] = ()
    """Try several values, for example --sweep model.lr=0.001,0.0003: replicas in the same stacks; may be repeated."""
    backend: Annotated[BackendName | None, _arg(metavar="|".join(get_args(BackendName)))] = None
    """Where rounds are computed; by default chosen by measured cost. The results do not depend on it."""
    algo: Word = None
    """Learner, where the environment leaves it open (model.algorithm)."""
    config: ConfigFile = None
    set: Settings = ()
    """Set one value, for example --set parallel.train_interval=3; may be repeated."""
    out: File = None
    """Run folder; by default a new one under runs/."""
    json: JsonOnly = False
    quiet: Quiet = False
    tensorboard: TensorBoard = False

    def run(self) -> None:
        from parallel_agents.cli.train import train

        train(self)


@dataclass(frozen=True)
class Resume:
    """Go on with a run from its newest good checkpoint, exactly as if it had never stopped.

    A run that stopped before its first checkpoint starts from its first epoch.

    parallel-agents resume runs/cart --epochs 400
    """

    run_dir: RunDir
    epochs: Count = None
    """Epochs in all; by default those the run was started with."""
    target: MovedTarget = None
    json: JsonOnly = False
    quiet: Quiet = False
    tensorboard: TensorBoard = False

    def run(self) -> None:
        from parallel_agents.cli.train import resume

        resume(self)


@dataclass(frozen=True)
class Eval:
    """Let the agents of a run play fresh episodes, without learning: how good are they, and what do they do?

    parallel-agents eval runs/hunt --episodes 100

    parallel-agents eval runs/hunt --watch

    parallel-agents eval runs/hunt --gif hunt.gif
    """

    run_dir: RunDir
    episodes: int = 20
    """Episodes, played side by side."""
    best: Best = False
    exploration: float = 0.0
    """0: the agents' best actions; 1: as they explore (for ε-greedy learners, at random)."""
    watch: Flag = False
    """Show an episode in the terminal."""
    gif: File = None
    """Draw an episode into this file, with each agent's colour and what it has earned."""
    fps: float = 8.0
    """Turns a second of --watch and --gif."""
    target: MovedTarget = None
    json: Json = False

    def run(self) -> None:
        from parallel_agents.cli.results import evaluate_run

        evaluate_run(self)


@dataclass(frozen=True)
class Export:
    """Write the weights of one agent of a run as a file, to start other agents from (model.weights).

    parallel-agents export runs/cart --agent agent_0 --out cart.safetensors
    """

    run_dir: RunDir
    agent: str
    """The agent's name, such as agent_0."""
    out: Path
    """File to write."""
    replica: int = 0
    """Which replica, where the run has several, counted from 0."""
    best: Best = False
    target: MovedTarget = None
    json: Json = False

    def run(self) -> None:
        from parallel_agents.cli.results import export_weights

        export_weights(self)


@dataclass(frozen=True)
class Curve:
    """Draw learning curves: the mean reward of each run with its 95 % interval, over seeds where there are several.

    parallel-agents curve runs/one runs/other --out curve.png
    """

    run_dirs: Annotated[tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="RUN")]
    """Run folders, as `train` printed them."""
    out: Path = Path("learning_curve.png")
    """Where the picture goes."""
    json: Json = False

    def run(self) -> None:
        from parallel_agents.cli.results import draw_curve

        draw_curve(self)


@dataclass(frozen=True)
class Games:
    """List the games that come with the package, with a command that trains each."""

    json: Json = False

    def run(self) -> None:
        from parallel_agents.cli.authoring import list_games

        list_games(as_json=self.json)


@dataclass(frozen=True)
class New:
    """Write a small game of your own that trains at once: the start of a new one.

    parallel-agents new berries
    """

    name: Annotated[tyro.conf.Positional[str], _arg(metavar="NAME")]
    """What it is called; it is written into NAME.py."""
    json: Json = False

    def run(self) -> None:
        from parallel_agents.cli.authoring import new_game

        new_game(self.name, as_json=self.json)


@dataclass(frozen=True)
class Check:
    """Check an environment against its contract: seeding, shapes, ends, equality of modes, exact resume.

    parallel-agents check examples/treasure_hunt.py
    """

    target: Target
    """A Python file or module:Class that holds one ParallelEnvironment, or gymnasium:CartPole-v1 and the like."""
    epochs: int = 5
    """Epochs of each check."""
    processes: Flag = False
    """Compare learner processes as well; takes a few seconds more."""
    config: ConfigFile = None
    set: Settings = ()
    """Set one value, for example --set world.agents=3; may be repeated."""
    json: Json = False

    def run(self) -> int:
        from parallel_agents.cli.authoring import check

        return check(self)


@dataclass(frozen=True)
class Doctor:
    """Say what this machine has, and whether equal results can be promised on it."""

    json: Json = False

    def run(self) -> None:
        from parallel_agents.cli.doctor import doctor

        doctor(as_json=self.json)
