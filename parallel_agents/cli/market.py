"""`parallel-agents market …`: the options of each command; what they do is in `market_runs`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import tyro

__all__ = ["Compare", "Discover", "Market", "Sample", "Simulate", "Train", "Worlds"]


@dataclass(frozen=True)
class Sample:
    """Write a GA4-shaped export, an ads table and auction insights, drawn from hidden parameters.

    Example: parallel-agents market sample --out data/export
    """

    out: Path
    """New or empty directory."""
    seed: int = 0
    """Which hidden market."""
    users: int = 3000
    """Users."""
    days: int = 70
    """Days."""
    form: Literal["parquet", "jsonl"] = "parquet"
    """Files."""
    truth: bool = False
    """Write the hidden parameters beside it (truth.json)."""
    json: bool = False
    """Print exactly one JSON object on stdout."""
    quiet: bool = False
    """No progress display."""

    def run(self) -> None:
        from parallel_agents.cli.market_runs import write_export

        write_export(self)


@dataclass(frozen=True)
class Discover:
    """Find segments, delays, seasons, prices and rivals in an export, every number with an interval.

    Example: parallel-agents market discover data/export --out patterns.json
    """

    export: tyro.conf.Positional[Path]
    """Directory of Parquet or JSON-lines files, a file, or a DuckDB database."""
    out: Path
    """Patterns file to write (.json)."""
    utc_offset_hours: float = 0.0
    """The property's time zone."""
    json: bool = False
    """Print exactly one JSON object on stdout."""
    quiet: bool = False
    """No progress display."""

    def run(self) -> None:
        from parallel_agents.cli.market_runs import find_patterns

        find_patterns(self)


@dataclass(frozen=True)
class Worlds:
    """Draw worlds from patterns, and say what they are like.

    Example: parallel-agents market worlds patterns.json --worlds 100 --plot atlas.png
    """

    patterns: tyro.conf.Positional[Path]
    """Patterns file, or an export."""
    worlds: int = 100
    """How many."""
    seed: int = 0
    """Which ones."""
    plot: Path | None = None
    """Draw the atlas of worlds (.png)."""
    json: bool = False
    """Print exactly one JSON object on stdout."""
    quiet: bool = False
    """No progress display."""

    def run(self) -> None:
        from parallel_agents.cli.market_runs import show_worlds

        show_worlds(self)


@dataclass(frozen=True)
class Simulate:
    """Play episodes in many worlds at once.

    Example: parallel-agents market simulate patterns.json --worlds 100 --episodes 1000 --json
    """

    patterns: tyro.conf.Positional[Path]
    """Patterns file, or an export."""
    worlds: int = 100
    """How many different worlds."""
    episodes: int = 1000
    """Episodes, spread over all worlds."""
    concurrent: int | None = None
    """Worlds under way together; by default all. The results do not depend on it."""
    level: float = 1.0
    """Bids, as a multiple of the usual ones; one of the levels 0, 0.5, 1, 1.5, 2, 3."""
    network: bool = False
    """Let an untrained policy network of 64 × 64 units choose, instead of a fixed level."""
    steps: int = 50
    """Steps of an episode."""
    auctions: float = 20.0
    """Auctions of a step, on average."""
    fidelity: Literal["full", "fast"] = "full"
    """Fast: prices from a table, without individual users."""
    threads: int | None = None
    """By default as many as are worth their while."""
    seed: int = 0
    """Which worlds, and which draws."""
    warehouse: Path | None = None
    """Store the experiences in this folder (Parquet)."""
    plot: Path | None = None
    """Folder for pictures: reward by type of world, crisis share."""
    json: bool = False
    """Print exactly one JSON object on stdout."""
    quiet: bool = False
    """No progress display."""

    def run(self) -> None:
        from parallel_agents.cli.market_runs import simulate

        simulate(self)


@dataclass(frozen=True)
class Train:
    """Train a bidder over many worlds at once, crisis parents sought in every batch.

    Example: parallel-agents market train patterns.json --worlds 100 --steps 200 --out runs/bidder
    """

    patterns: tyro.conf.Positional[Path]
    """Patterns file, or an export."""
    out: Path
    """Folder: checkpoints, summary and a picture."""
    worlds: int = 100
    """How many different worlds."""
    steps: int = 100
    """Training steps: each simulates a batch of episodes and updates the agent."""
    batch: int = 100
    """Episodes of a step."""
    updates: int = 20
    """Updates of a step."""
    importance: float = 0.5
    """Share of crisis transitions in a batch; 0: as they come."""
    adapt_every: int = 0
    """Steps between two adaptations of the mix of worlds; 0: never."""
    focus: bool = False
    """Find robust strategies first and let them play half of the worlds at the start."""
    resume: bool = False
    """Go on from the newest checkpoint in the folder."""
    seed: int = 0
    """The one seed."""
    json: bool = False
    """Print exactly one JSON object on stdout."""
    quiet: bool = False
    """No progress display."""

    def run(self) -> None:
        from parallel_agents.cli.market_runs import train_bidder

        train_bidder(self)


@dataclass(frozen=True)
class Compare:
    """Compare two ways to train on paired seeds and equal updates, or fixed strategies over worlds.

    Example: parallel-agents market compare patterns.json --what strategies
    """

    patterns: tyro.conf.Positional[Path]
    """Patterns file, or an export."""
    what: Literal["worlds", "time", "importance", "strategies"] = "worlds"
    """Many worlds against one; at once against one after another; importance sampling on against off; strategies."""
    seeds: int = 10
    """Paired seeds."""
    worlds: int = 100
    """Worlds of a training, or of a comparison of strategies."""
    epochs: int = 40
    """Epochs or steps of a training; laps of a comparison of strategies."""
    episodes: int = 200
    """Episodes of one evaluation, in worlds that no training has seen."""
    held_out: str | None = None
    """A type of world that is not trained on (with --what worlds)."""
    plot: Path | None = None
    """Draw the robustness of strategies (.png, with --what strategies)."""
    json: bool = False
    """Print exactly one JSON object on stdout."""
    quiet: bool = False
    """No progress display."""

    def run(self) -> None:
        from parallel_agents.cli.market_runs import compare

        compare(self)


@dataclass(frozen=True)
class Market:
    """Market worlds discovered from data: sample, discover, worlds, simulate, train, compare."""

    command: tyro.conf.OmitArgPrefixes[
        tyro.conf.OmitSubcommandPrefixes[
            Annotated[Sample, tyro.conf.subcommand("sample")]
            | Annotated[Discover, tyro.conf.subcommand("discover")]
            | Annotated[Worlds, tyro.conf.subcommand("worlds")]
            | Annotated[Simulate, tyro.conf.subcommand("simulate")]
            | Annotated[Train, tyro.conf.subcommand("train")]
            | Annotated[Compare, tyro.conf.subcommand("compare")]
        ]
    ] = field()

    def run(self) -> None:
        self.command.run()
