"""The commands as dataclasses: their fields are the options, their docstrings the help."""

from __future__ import annotations

from dataclasses import dataclass, make_dataclass
from functools import partial, reduce
from operator import or_
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, get_args

import tyro

from parallel_agents.core.config import BackendName
from parallel_agents.core.system import import_quickly

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
RunDirs = Annotated[tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="RUN")]
MovedTarget = Annotated[str | None, _arg(metavar="TARGET", help="The environment, if it has moved since.")]
ConfigFile = Annotated[Path | None, _arg(metavar="PATH", help=_CONFIG)]
Best = Annotated[bool, _arg(help=_BEST)]
Json = Annotated[bool, _arg(help="Print exactly one JSON object on stdout.")]
JsonOnly = Annotated[bool, _arg(help="Print exactly one JSON object on stdout; everything else goes to stderr.")]
Quiet = Annotated[bool, _arg(help="No progress display.")]
TensorBoard = Annotated[bool, _arg(help=_TENSORBOARD)]
Watched = Annotated[
    Literal["page", "terminal"] | None,
    _arg(metavar="[page|terminal]", help="Show the run: a live page, whose address is printed; or the game, here."),
]


class Command:
    """What every command has: `run` imports its function only then, so that `--help` stays quick."""

    function: ClassVar[str]
    """What runs the command with its options, MODULE:FUNCTION of this package; it returns None or an exit code."""
    members: ClassVar[tuple[str, ...]] = ()
    """The names of the commands of a group."""

    def run(self) -> int | None:
        """Run the command and return its exit code, None for 0."""
        module, _, name = self.function.partition(":")
        code: int | None = getattr(import_quickly(f"parallel_agents.cli.{module}"), name)(self)
        return code


def group(about: str, **members: type[Command]) -> type[Command]:
    """Return a command whose first word chooses one of these, as in `market train`."""
    kinds: list[Any] = [Annotated[member, tyro.conf.subcommand(name)] for name, member in members.items()]
    methods = {"__doc__": about, "run": lambda self: self.command.run(), "members": tuple(members)}
    return make_dataclass("Group", [("command", reduce(or_, kinds))], bases=(Command,), frozen=True, namespace=methods)


@dataclass(frozen=True, kw_only=True)
class TrackingOptions(Command):
    """What a run shows and records beside its run folder."""

    json: JsonOnly = False
    quiet: Quiet = False
    tensorboard: TensorBoard = False
    wandb: Flag = False
    """Log to Weights & Biases too (needs the package wandb; WANDB_MODE=offline keeps it local)."""
    mlflow: Flag = False
    """Log to MLflow too (needs the package mlflow; MLFLOW_TRACKING_URI says where)."""
    listener: Annotated[tuple[str, ...], tyro.conf.arg(metavar="MODULE:CLASS"), tyro.conf.UseAppendAction] = ()
    """A callback of your own, module:Class or FILE.py:Class, made without arguments; may be repeated."""
    watch: Watched = None


@dataclass(frozen=True, kw_only=True)
class Train(TrackingOptions):
    """Train the agents of a game or another environment.

    parallel-agents train treasure_hunt --worlds 8 --seed 3

    parallel-agents train my_game.py --agents 5 --set world.radius=3

    parallel-agents train gymnasium:CartPole-v1 --algo ppo --worlds 8 --out runs/cart
    """

    function = "train:train"
    target: Target
    """A game of `parallel-agents games`, a Python file or module:Class that holds one ParallelEnvironment, or a
    foreign environment: gymnasium:CartPole-v1, pettingzoo:mpe2.simple_spread_v3."""
    agents: Count = None
    """Number of agents (world.agents)."""
    worlds: Count = None
    """Worlds stepped side by side."""
    epochs: Count = None
    """Epochs to run."""
    total_timesteps: Count = None
    """Environment steps to run, instead of --epochs."""
    seed: Count = None
    """The one seed of the run."""
    seeds: Count = None
    """Replicas with successive seeds, trained in the same stacks."""
    sweep: Annotated[tuple[str, ...], tyro.conf.arg(metavar="SECTION.KEY=V,V"), tyro.conf.UseAppendAction] = ()
    """Try several values, for example --sweep model.lr=0.001,0.0003: replicas in the same stacks; may be repeated."""
    backend: Annotated[BackendName | None, _arg(metavar="|".join(get_args(BackendName)))] = None
    """Where rounds are computed; by default chosen by measured cost. The results do not depend on it."""
    algo: Word = None
    """Learner: dqn, iqn, ppo, a registered name, or your own: FILE.py:Class or module:Class (model.algorithm)."""
    config: ConfigFile = None
    set: Settings = ()
    """Set one value, for example --set parallel.train_interval=3; may be repeated."""
    out: File = None
    """Run folder; by default a new one under runs/."""


@dataclass(frozen=True, kw_only=True)
class Resume(TrackingOptions):
    """Go on with a run from its newest good checkpoint, exactly as if it had never stopped.

    A run that stopped before its first checkpoint starts from its first epoch.

    parallel-agents resume runs/cart --epochs 400
    """

    function = "train:resume"
    run_dir: RunDir
    epochs: Count = None
    """Epochs in all; by default those the run was started with."""
    target: MovedTarget = None


@dataclass(frozen=True)
class Eval(Command):
    """Let the agents of a run play fresh episodes, without learning: how good are they, and what do they do?

    parallel-agents eval runs/hunt --episodes 100

    parallel-agents eval runs/hunt --watch

    parallel-agents eval runs/hunt --gif hunt.gif
    """

    function = "results:evaluate_run"
    run_dir: RunDir
    episodes: int = 20
    """Episodes, played side by side."""
    best: Best = False
    exploration: float = 0.0
    """0: the agents' best actions; 1: as they explore (for ε-greedy learners, at random)."""
    watch: Annotated[Literal["terminal"] | None, _arg(metavar="[terminal]")] = None
    """Show an episode in the terminal."""
    gif: File = None
    """Draw an episode into this file (.gif, or .mp4 with the extra 'video'): the agents and what they have earned."""
    seen_by: Annotated[str | None, _arg(metavar="AGENT")] = None
    """Darken in --gif what this agent does not see."""
    fps: float = 8.0
    """Turns a second of --watch and --gif."""
    target: MovedTarget = None
    json: Json = False


@dataclass(frozen=True)
class Export(Command):
    """Write the weights of one agent of a run as a file, to start other agents from (model.weights), or its network.

    parallel-agents export runs/cart --agent agent_0 --out cart.safetensors

    parallel-agents export runs/cart --agent agent_0 --out cart.onnx
    """

    function = "results:export_weights"
    run_dir: RunDir
    agent: str
    """The agent's name, such as agent_0."""
    out: Path
    """File to write: weights (.safetensors), the network as ONNX (.onnx) or as TorchScript (.pt)."""
    replica: int = 0
    """Which replica, where the run has several, counted from 0."""
    best: Best = False
    target: MovedTarget = None
    json: Json = False


@dataclass(frozen=True)
class Curve(Command):
    """Draw learning curves: the mean episode return of each run with its 95 % interval, over seeds or agents.

    parallel-agents curve runs/one runs/other --out curve.pdf --x steps --smooth 10
    """

    function = "results:draw_curve"
    run_dirs: RunDirs
    """Run folders, as `train` printed them."""
    out: Path = Path("learning_curve.png")
    """Where the picture goes: .png, .svg or .pdf."""
    x: Literal["epoch", "steps", "time"] = "epoch"
    """What the horizontal axis counts: epochs, environment steps, or seconds."""
    smooth: int = 1
    """Mean over so many newest epochs."""
    json: Json = False


@dataclass(frozen=True)
class Watch(Command):
    """Serve a page that shows runs while they go on, or after they have ended, until interrupted.

    parallel-agents watch runs/hunt

    parallel-agents watch runs
    """

    function = "watching:watch"
    run_dirs: RunDirs
    """Run folders, as `train` printed them, or folders that hold some."""
    host: str = "127.0.0.1"
    """Address to listen on. Beyond this machine the page asks for a token, which is part of the printed address."""
    port: Count = None
    """Port; by default 6160 or the next free one."""


@dataclass(frozen=True)
class Report(Command):
    """Write runs as one HTML file: curves, comparison, agents, timeline, faults, configuration. It works offline.

    parallel-agents report runs/one runs/other --out report.html
    """

    function = "watching:report"
    run_dirs: RunDirs
    """Run folders, as `train` printed them, or folders that hold some."""
    out: Path = Path("report.html")
    """Where the report goes."""
    plots: File = None
    """Folder for every plot as PNG, SVG and CSV (needs the extra 'report')."""
    json: Json = False


@dataclass(frozen=True)
class Trace(Command):
    """Say where the time of a run went: shares of each stage, waiting, overlap of collection and learning, advice.

    parallel-agents trace runs/hunt
    """

    function = "watching:trace"
    run_dir: RunDir
    json: Json = False


@dataclass(frozen=True)
class Games(Command):
    """List the games that come with the package, with a command that trains each."""

    function = "authoring:list_games"
    json: Json = False


@dataclass(frozen=True)
class New(Command):
    """Write a small game of your own that trains at once: the start of a new one.

    parallel-agents new berries
    """

    function = "authoring:new_game"
    name: Annotated[tyro.conf.Positional[str], _arg(metavar="NAME")]
    """What it is called; it is written into NAME.py."""
    json: Json = False


@dataclass(frozen=True)
class Check(Command):
    """Check an environment against its contract: seeding, shapes, ends, equality of modes, exact resume.

    parallel-agents check treasure_hunt
    """

    function = "authoring:check"
    target: Target
    """A Python file or module:Class that holds one ParallelEnvironment, or gymnasium:CartPole-v1 and the like."""
    epochs: int = 5
    """Epochs of each check."""
    processes: Flag = False
    """Compare learner processes as well; takes a few seconds more."""
    algo: Word = None
    """Learner, also one of your own: FILE.py:Class or module:Class (model.algorithm)."""
    config: ConfigFile = None
    set: Settings = ()
    """Set one value, for example --set world.agents=3; may be repeated."""
    json: Json = False


@dataclass(frozen=True)
class Doctor(Command):
    """Say what this machine has, and whether equal results can be promised on it."""

    function = "authoring:doctor"
    json: Json = False


@dataclass(frozen=True)
class Verify(Command):
    """Replay a run, here or on another machine, and confirm its digest; or check a certificate.

    parallel-agents verify runs/cart --certificate cart.json

    parallel-agents verify runs/cart --sample 2

    parallel-agents verify cart.json
    """

    function = "verify:verify"
    run_dir: RunDir
    sample: int = 0
    """Replay only from a checkpoint to the next one, for this many of the newest; 0: the whole run."""
    certificate: File = None
    """Write a certificate into this file: configuration, digests, fingerprints, signed by its own hash."""
    target: MovedTarget = None
    json: Json = False
    quiet: Quiet = False


@dataclass(frozen=True)
class Diff(Command):
    """Say where two runs part: what differs in configuration, libraries and sources, and the first results that do.

    parallel-agents diff runs/here runs/there
    """

    function = "verify:diff"
    run_dir: RunDir
    other: Annotated[tyro.conf.Positional[Path], _arg(metavar="RUN", help="The other run folder.")]
    json: Json = False


@dataclass(frozen=True)
class Runs(Command):
    """List the runs below a folder, newest first.

    parallel-agents runs

    parallel-agents runs --match gymnasium model.algorithm=ppo
    """

    function = "runs:list_runs"
    root: Annotated[tyro.conf.Positional[Path], _arg(metavar="FOLDER", help="Where run folders are.")] = Path("runs")
    match: tuple[str, ...] = ()
    """Only runs in whose row, or configuration as section.key=value, all of these texts stand."""
    json: Json = False


@dataclass(frozen=True)
class Compare(Command):
    """Set runs side by side: returns with intervals over seeds, by setting of a sweep, and how their settings differ.

    parallel-agents compare runs/one runs/other
    """

    function = "runs:compare"
    run_dirs: RunDirs
    """Run folders, as `train` printed them."""
    json: Json = False


@dataclass(frozen=True, kw_only=True)
class ShowConfig(Train):
    """Print the resolved configuration of a `train` command, with where each value comes from, and train nothing.

    parallel-agents config gymnasium:CartPole-v1 --algo ppo --set model.lr=0.001
    """

    function = "train:show_config"
