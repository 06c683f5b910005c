"""`parallel-agents workflow …`: the options of each command. `workflow_runs` runs the commands."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import tyro

Version = Literal["head", "leaderboard", "debugged"]
Red = Literal["B_line", "Meander", "Sleep"]


@dataclass(frozen=True, kw_only=True)
class _Command:
    json: bool = False
    """Print exactly one JSON object on stdout."""
    quiet: bool = False
    """No progress display."""

    def run(self) -> None:
        from parallel_agents.cli.workflow_runs import run

        run(self)


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
    """Replay recorded episodes of the reference simulator and compare every turn exactly.

    Example: parallel-agents workflow replay episodes.jsonl.gz --version head --json
    """

    file: tyro.conf.Positional[Path]
    """Recording, a .jsonl.gz file."""
    version: Version = "head"
    """Version of the game's dynamics."""


@dataclass(frozen=True)
class Train(_Game):
    """Train a defender over all 145 actions; with --order, one that repairs in an order.

    Example: parallel-agents workflow train --version leaderboard --epochs 200 --out runs/defender
    """

    order: str | None = None
    """Five unit types separated by commas, the most urgent first; or "all": one policy for all orders."""
    red: tuple[Red, ...] = ("B_line", "Meander")
    """Attackers; worlds take them in turn. With --order the first one."""
    epochs: int | None = None
    """Epochs (episodes of every world); by default 2000, and 50 with --order."""
    worlds: int | None = None
    """Worlds side by side; by default 64, and 25 with --order."""
    alignment: float | None = None
    """Weight of the alignment reward (with --order)."""
    set: Annotated[tuple[str, ...], tyro.conf.arg(metavar="SECTION.KEY=VALUE"), tyro.conf.UseAppendAction] = ()
    """Set one value of the configuration (without --order); may be repeated."""
    out: Path | None = None
    """Folder; by default a new one under runs/."""


@dataclass(frozen=True)
class Search(_Game):
    """Search for the order of repair with the highest return: train, evaluate, choose the next order.

    Example: parallel-agents workflow search --red Meander --late-start 50 --out runs/search
    """

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
    alignment: float = 30.0
    """Weight of the alignment reward."""
    method: Literal["gp_ucb", "random", "historical"] = "gp_ucb"
    """How the next order is chosen."""
    red: Red = "B_line"
    """Attacker."""
    plots: bool = False
    """Write pictures of compliance, returns and the Gaussian process to the folder."""


@dataclass(frozen=True)
class Evaluate(_Command):
    """Score a trained or scripted defender: both versions of the game, B_line, Meander and Sleep at 30, 50, 100 turns.

    Example: parallel-agents workflow evaluate runs/defender --episodes 1000
    """

    run_dir: tyro.conf.Positional[str]
    """Folder that `workflow train` printed, or sleep, random, react_restore, react_remove or op_once."""
    episodes: int = 1000
    """Episodes against each red agent."""
    order: str | None = None
    """For a defender that was trained with --order: the order to use; by default the one it was trained on."""
    best: bool = False
    """Use the weights of the best evaluation during training instead of the newest."""
    animation: Path | None = None
    """Write one episode as a GIF."""
    red: Red = "B_line"
    """Attacker in the animation, and for a defender that was trained with --order."""
    version: Version = "leaderboard"
    """Version of the game in the animation, and for a defender that was trained with --order."""
    seed: int = 0
    """Seed of the evaluation's worlds."""


@dataclass(frozen=True)
class Landscape(_Game):
    """Evaluate all 120 orders with a scripted defender, by brute force.

    Example: parallel-agents workflow landscape --red Meander --late-start 50
    """

    red: Red = "Meander"
    """Attacker."""
    late_start: int = 50
    """Turns that blue sleeps before it may act."""
    episodes: int = 200
    """Episodes per order, in the same worlds for all orders."""


@dataclass(frozen=True)
class Workflow:
    """Network defence in an order of repair: replay, train, search, evaluate, landscape."""

    command: tyro.conf.OmitArgPrefixes[
        tyro.conf.OmitSubcommandPrefixes[
            Annotated[Replay, tyro.conf.subcommand("replay")]
            | Annotated[Train, tyro.conf.subcommand("train")]
            | Annotated[Search, tyro.conf.subcommand("search")]
            | Annotated[Evaluate, tyro.conf.subcommand("evaluate")]
            | Annotated[Landscape, tyro.conf.subcommand("landscape")]
        ]
    ] = field()

    def run(self) -> None:
        self.command.run()
