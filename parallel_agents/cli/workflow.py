"""`parallel-agents workflow …`: the options of each command. `workflow_runs` runs the commands."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from parallel_agents.cli.commands import Command, Json, Quiet, Settings, group

Version = Literal["head", "leaderboard", "debugged"]
Red = Literal["B_line", "Meander", "Sleep"]
Rule = Literal["right_repairs", "no_higher_compromised", "highest_compromised", "fixed_types"]
_RULE = "How compliance is judged; only the default means that the defender defends."


@dataclass(frozen=True, kw_only=True)
class _Command(Command):
    json: Json = False
    quiet: Quiet = False


@dataclass(frozen=True, kw_only=True)
class _Game(_Command):
    version: Version = "head"
    """Version of the game's dynamics."""
    late_start: int = 0
    """Turns that blue sleeps before it may act."""
    seed: int = 0
    """Seed of every random draw."""


@dataclass(frozen=True)
class Replay(_Command):
    """Replay recorded episodes of the reference simulator and compare every turn exactly; exit code 1 if any differs.

    Example: parallel-agents workflow replay episodes.jsonl.gz --version head --json
    """

    function = "workflow_runs:replay_recording"
    file: tyro.conf.Positional[Path]
    """Recording, a .jsonl.gz file."""
    version: Version = "head"
    """Version of the game's dynamics."""


@dataclass(frozen=True)
class Train(_Game):
    """Train a defender; with --order, one that repairs in an order.

    Example: parallel-agents workflow train --version leaderboard --epochs 200 --out runs/defender
    """

    function = "workflow_runs:train_defender"
    order: str | None = None
    """Five unit types separated by commas, the most urgent first; or "all": one policy for all orders."""
    red: tuple[Red, ...] = ("B_line", "Meander")
    """Attackers; worlds take them in turn."""
    epochs: int | None = None
    """Epochs (episodes of every world); by default 800, and 50 with --order."""
    worlds: int | None = None
    """Worlds side by side; by default 128, and 25 with --order."""
    seeds: int | None = None
    """Replicas with successive seeds in the same stacks, which `evaluate` scores as an ensemble (without --order)."""
    rule: Annotated[Rule | None, tyro.conf.arg(help=_RULE)] = None
    alignment: float | None = None
    """Weight of the alignment reward (with --order)."""
    clone: int = 0
    """Episodes in which a new policy first learns to do what the script does (with --order)."""
    start: Path | None = None
    """Folder of a policy for orders to start from, instead of a new one (with --order)."""
    resume: Path | None = None
    """Folder of a training with --order to go on with; of the other options only --epochs is read."""
    set: Settings = ()
    """Set one value of the configuration; with --order one of the learner's, such as model.lr. May be repeated."""
    plots: bool = False
    """Draw the learning curve (with --order)."""
    out: Path | None = None
    """Folder; by default a new one under runs/."""


@dataclass(frozen=True)
class Search(_Game):
    """Search for the order of repair with the highest return: train, evaluate, choose the next order.

    Example: parallel-agents workflow search --red Meander --late-start 50 --out runs/search
    """

    function = "workflow_runs:search_orders"
    out: Path | None = None
    """Folder of the search; a search that is in it is resumed. By default a new one under runs/."""
    envs: int = 25
    """Environments side by side."""
    workflows: int = 20
    """Orders to try."""
    episodes: int = 50
    """Training episodes of each environment, at most."""
    threshold: float = 0.95
    """Average compliance at which an order counts as learnt."""
    min_episodes: int = 10
    """Episodes before an order may count as learnt."""
    rule: Annotated[Rule, tyro.conf.arg(help=_RULE)] = "right_repairs"
    alignment: float | None = None
    """Weight of the alignment reward; by default 1, and 30 with the other rules."""
    start: Path | None = None
    """Folder of a policy trained with --order all: every order is fine-tuned from it."""
    noise: float | None = None
    """Standard deviation of a trained order's return over seeds, for the Gaussian process; by default it is fitted."""
    method: Literal["gp_ucb", "random"] = "gp_ucb"
    """How the next order is chosen."""
    red: Red = "B_line"
    """Attacker."""
    plots: bool = False
    """Write pictures of compliance, returns and the Gaussian process to the folder."""


@dataclass(frozen=True)
class Evaluate(_Command):
    """Score a defender in four variants of the game, against B_line, Meander and Sleep, at 30, 50 and 100 turns.

    Example: parallel-agents workflow evaluate runs/defender --out table
    Example: parallel-agents workflow evaluate my_agents:Defender --episodes 1000
    """

    function = "workflow_runs:evaluate_defender"
    defender: tyro.conf.Positional[tuple[str, ...]]
    """Folders that `workflow train` printed, or files of weights (several: an ensemble); module:Class, an agent with
    the challenge's get_action(observation, action_space); or sleep, random, react_restore, react_remove, op_once or
    blue_react_restore, the challenge's own heuristic."""
    episodes: int = 1000
    """Episodes against each red agent."""
    order: str | None = None
    """Judge the defender under this order; by default the one it was trained on, if any."""
    best: bool = False
    """Use the weights of the best evaluation during training instead of the newest."""
    out: Path | None = None
    """Folder for the table as table.json, table.md and table.png."""
    animation: Path | None = None
    """Write one episode as a GIF."""
    timeline: Path | None = None
    """Draw one episode as a timeline of hosts, actions and points lost (PNG)."""
    steps: int = 100
    """Turns of the episode in the animation or timeline, and under an order."""
    late_start: int = 0
    """Turns that blue sleeps before it may act, in the animation or timeline, and under an order."""
    red: Red = "B_line"
    """Attacker in the animation or timeline, and under an order."""
    version: Version = "leaderboard"
    """Version of the game in the animation or timeline, and under an order."""
    seed: int = 0
    """Seed of the evaluation's worlds."""


@dataclass(frozen=True)
class Landscape(_Game):
    """Evaluate all 120 orders, by brute force: with the script, or with a policy for all orders.

    Example: parallel-agents workflow landscape --red Meander --late-start 50 --picture orders.png
    """

    function = "workflow_runs:show_landscape"
    policy: Path | None = None
    """Folder of a policy that was trained with --order; by default the script that obeys every order."""
    red: Red = "Meander"
    """Attacker."""
    late_start: int = 50
    """Turns that blue sleeps before it may act."""
    episodes: int = 200
    """Episodes per order, in the same worlds for all orders."""
    picture: Path | None = None
    """Draw compliance and return of all orders as a map (PNG)."""


Workflow = group(
    "Network defence in an order of repair: replay, train, search, evaluate, landscape.",
    replay=Replay,
    train=Train,
    search=Search,
    evaluate=Evaluate,
    landscape=Landscape,
)
