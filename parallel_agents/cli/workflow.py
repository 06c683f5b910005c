"""`parallel-agents workflow …`: the options of each command; what they do is in `workflow_runs`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import tyro

__all__ = ["Evaluate", "Landscape", "Replay", "Search", "Train", "Workflow"]

Version = Literal["head", "leaderboard", "debugged"]
Red = Literal["B_line", "Meander", "Sleep"]


@dataclass(frozen=True)
class Replay:
    """Replay recorded episodes of the reference simulator and compare every turn exactly.

    Example: parallel-agents workflow replay episodes.jsonl.gz --version head --json
    """

    file: tyro.conf.Positional[Path]
    """Recording, a .jsonl.gz file."""
    version: Version = "head"
    """Version of the game's dynamics."""
    json: bool = False
    """Print exactly one JSON object on stdout."""
    quiet: bool = False
    """No progress display."""

    def run(self) -> None:
        from parallel_agents.cli.workflow_runs import replay_file

        replay_file(self)


@dataclass(frozen=True)
class Train:
    """Train a defender over all 145 actions; with --order, one that repairs in an order.

    Example: parallel-agents workflow train --version leaderboard --epochs 200 --out runs/defender
    """

    order: str | None = None
    """Five unit types with commas between them, the most urgent first; or "all": one policy over all orders."""
    red: tuple[Red, ...] = ("B_line", "Meander")
    """Attackers; worlds take them in turn. With --order the first one."""
    version: Version = "head"
    """Version of the game's dynamics."""
    epochs: int | None = None
    """Epochs (episodes of every world); by default those of the recipe, and 50 with --order."""
    worlds: int | None = None
    """Worlds side by side; by default those of the recipe, and 25 with --order."""
    late_start: int = 0
    """Turns that blue sleeps before it may act."""
    alignment: float | None = None
    """Weight of the alignment reward (with --order)."""
    seed: int = 0
    """The one seed of the run."""
    set: Annotated[tuple[str, ...], tyro.conf.arg(metavar="SECTION.KEY=VALUE"), tyro.conf.UseAppendAction] = ()
    """Set one value of the configuration (without --order); may be repeated."""
    out: Path | None = None
    """Folder; by default a new one under runs/."""
    json: bool = False
    """Print exactly one JSON object on stdout."""
    quiet: bool = False
    """No progress display."""

    def run(self) -> None:
        from parallel_agents.cli.workflow_runs import train_defender, train_in_order

        train_defender(self) if self.order is None else train_in_order(self)


@dataclass(frozen=True)
class Search:
    """Search for the order of repair that is worth most: train, evaluate, choose the next one. Goes on if stopped.

    Example: parallel-agents workflow search --red Meander --late-start 50 --out runs/search
    """

    out: Path | None = None
    """Folder of the search; one that holds a search goes on with it. By default a new one under runs/."""
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
    version: Version = "head"
    """Version of the game's dynamics."""
    late_start: int = 0
    """Turns that blue sleeps before it may act."""
    seed: int = 0
    """The one seed of the search."""
    plots: bool = False
    """Leave pictures of compliance, returns and the Gaussian process in the folder."""
    json: bool = False
    """Print exactly one JSON object on stdout."""
    quiet: bool = False
    """No progress display."""

    def run(self) -> None:
        from parallel_agents.cli.workflow_runs import search_orders

        search_orders(self)


@dataclass(frozen=True)
class Evaluate:
    """Score a trained defender, or a scripted one: both versions of the game, B_line, Meander and Sleep at 30, 50, 100.

    Example: parallel-agents workflow evaluate runs/defender --episodes 1000
    """

    run_dir: tyro.conf.Positional[str]
    """Folder that `workflow train` printed, or sleep, random, react_restore, react_remove or op_once."""
    episodes: int = 1000
    """Episodes against each red agent."""
    order: str | None = None
    """For a defender that was trained with --order: switch to this order; by default the one it was trained on."""
    best: bool = False
    """The weights of the best evaluation during training instead of the newest."""
    animation: Path | None = None
    """Write one episode as a GIF."""
    red: Red = "B_line"
    """Attacker in the animation, and for a defender that was trained with --order."""
    version: Version = "leaderboard"
    """Version of the game in the animation, and for a defender that was trained with --order."""
    seed: int = 0
    """Seed of the evaluation's worlds."""
    json: bool = False
    """Print exactly one JSON object on stdout."""
    quiet: bool = False
    """No progress display."""

    def run(self) -> None:
        from parallel_agents.cli.workflow_runs import evaluate_defender

        evaluate_defender(self)


@dataclass(frozen=True)
class Landscape:
    """What every one of the 120 orders is worth to a scripted defender, by brute force.

    Example: parallel-agents workflow landscape --red Meander --late-start 50
    """

    red: Red = "Meander"
    """Attacker."""
    version: Version = "head"
    """Version of the game's dynamics."""
    late_start: int = 50
    """Turns that blue sleeps before it may act."""
    episodes: int = 200
    """Episodes per order, the same worlds for all."""
    seed: int = 0
    """Seed of the worlds."""
    json: bool = False
    """Print exactly one JSON object on stdout."""
    quiet: bool = False
    """No progress display."""

    def run(self) -> None:
        from parallel_agents.cli.workflow_runs import show_landscape

        show_landscape(self)


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
