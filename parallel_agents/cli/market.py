"""The options of each command of `parallel-agents market`; `market_commands` holds what they do."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import tyro


@dataclass(frozen=True)
class Sample:
    """Write a GA4-shaped export, an ads table and auction insights, drawn from hidden parameters.

    Example: parallel-agents market sample --out data/export
    """

    out: Path
    """New or empty directory."""
    seed: int = 0
    """Seed of the hidden market."""
    users: int = 3000
    """Number of users."""
    days: int = 70
    """Number of days."""
    form: Literal["parquet", "jsonl"] = "parquet"
    """Format of the files."""
    truth: bool = False
    """Also write the hidden parameters (truth.json)."""
    json: bool = False
    """Print exactly one JSON object on stdout."""
    quiet: bool = False
    """No progress display."""

    def run(self) -> None:
        from parallel_agents.cli.market_commands import write_export

        write_export(self)


@dataclass(frozen=True)
class Discover:
    """Estimate segments, delays, seasons, prices and rivals from an export, every number with an interval.

    Example: parallel-agents market discover data/export --out patterns.json
    """

    export: tyro.conf.Positional[Path]
    """Directory of Parquet or JSON-lines files, a file, or a DuckDB database."""
    out: Path
    """Patterns file to write (.json)."""
    utc_offset_hours: float = 0.0
    """Time zone of the GA4 property, in hours from UTC."""
    json: bool = False
    """Print exactly one JSON object on stdout."""
    quiet: bool = False
    """No progress display."""

    def run(self) -> None:
        from parallel_agents.cli.market_commands import find_patterns

        find_patterns(self)


@dataclass(frozen=True)
class Worlds:
    """Draw worlds from patterns and describe them.

    Example: parallel-agents market worlds patterns.json --worlds 100 --plot atlas.png
    """

    patterns: tyro.conf.Positional[Path]
    """Patterns file, or an export."""
    worlds: int = 100
    """Number of worlds."""
    seed: int = 0
    """Seed of the worlds."""
    plot: Path | None = None
    """Draw the worlds by competition and share of crisis parents (.png)."""
    json: bool = False
    """Print exactly one JSON object on stdout."""
    quiet: bool = False
    """No progress display."""

    def run(self) -> None:
        from parallel_agents.cli.market_commands import show_worlds

        show_worlds(self)


@dataclass(frozen=True)
class Simulate:
    """Simulate episodes in many worlds at once.

    Example: parallel-agents market simulate patterns.json --worlds 100 --episodes 1000 --json
    """

    patterns: tyro.conf.Positional[Path]
    """Patterns file, or an export."""
    worlds: int = 100
    """Number of different worlds."""
    episodes: int = 1000
    """Number of episodes, spread over all worlds."""
    concurrent: int | None = None
    """Worlds simulated together; by default all. The results do not depend on it."""
    level: float = 1.0
    """Bids, as a multiple of the usual ones; one of the levels 0, 0.5, 1, 1.5, 2, 3."""
    network: bool = False
    """Let an untrained network of 64 × 64 units choose the actions, instead of a fixed level."""
    steps: int = 50
    """Number of steps of an episode."""
    auctions: float = 20.0
    """Mean number of auctions in a step."""
    fidelity: Literal["full", "fast"] = "full"
    """fast: prices from a table, without individual users."""
    threads: int | None = None
    """Number of threads; by default as many as have enough work."""
    seed: int = 0
    """Seed of the worlds and of all random numbers."""
    warehouse: Path | None = None
    """Store the experiences in this folder (Parquet)."""
    plot: Path | None = None
    """Folder for plots: reward and crisis share by type of world."""
    json: bool = False
    """Print exactly one JSON object on stdout."""
    quiet: bool = False
    """No progress display."""

    def run(self) -> None:
        from parallel_agents.cli.market_commands import simulate

        simulate(self)


@dataclass(frozen=True)
class Train:
    """Train a bidder over many worlds at once, with more crisis parents in every batch.

    Example: parallel-agents market train patterns.json --worlds 100 --steps 200 --out runs/bidder
    """

    patterns: tyro.conf.Positional[Path]
    """Patterns file, or an export."""
    out: Path
    """Folder for checkpoints, summary and a plot."""
    worlds: int = 100
    """Number of different worlds."""
    steps: int = 100
    """Number of training steps: each simulates a batch of episodes and updates the agent."""
    batch: int = 100
    """Number of episodes in a step."""
    updates: int = 20
    """Number of updates in a step."""
    importance: float = 0.5
    """Share of crisis transitions in a batch; 0: uniform draws."""
    adapt_every: int = 0
    """Steps between two adaptations of the mix of worlds; 0: never."""
    focus: bool = False
    """Find robust strategies first and let them act in half of the worlds at the start."""
    resume: bool = False
    """Continue from the newest checkpoint in the folder."""
    seed: int = 0
    """Seed of the worlds, of the agent and of all random numbers."""
    json: bool = False
    """Print exactly one JSON object on stdout."""
    quiet: bool = False
    """No progress display."""

    def run(self) -> None:
        from parallel_agents.cli.market_commands import train_bidder

        train_bidder(self)


@dataclass(frozen=True)
class Compare:
    """Compare two ways to train on paired seeds and equal updates, or fixed strategies over worlds.

    Example: parallel-agents market compare patterns.json --what strategies
    """

    patterns: tyro.conf.Positional[Path]
    """Patterns file, or an export."""
    what: Literal["worlds", "time", "importance", "strategies"] = "worlds"
    """Many worlds or one; all at once or one after another (time); importance sampling on or off; strategies."""
    seeds: int = 10
    """Number of paired seeds."""
    worlds: int = 100
    """Number of worlds of a training, or of a comparison of strategies."""
    epochs: int = 40
    """Number of epochs or steps of a training, or of laps of a comparison of strategies (at most 10)."""
    episodes: int = 200
    """Number of episodes of one evaluation, in worlds that no training has seen."""
    held_out: str | None = None
    """Type of world to leave out of the training (with --what worlds or time)."""
    plot: Path | None = None
    """Draw the advantage of each strategy (.png, with --what strategies)."""
    json: bool = False
    """Print exactly one JSON object on stdout."""
    quiet: bool = False
    """No progress display."""

    def run(self) -> None:
        from parallel_agents.cli.market_commands import compare

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
