"""The options of each command of `parallel-agents market`; `market_commands` holds what they do."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from parallel_agents.cli.commands import Command, Json, Quiet, group

_arg, _DRAWN = tyro.conf.arg, "by default drawn from the range of the data."
Patterns = Annotated[tyro.conf.Positional[Path], _arg(help="Patterns file, or an export.")]
BidderDir = Annotated[tyro.conf.Positional[Path], _arg(help="Run folder of `market train`.")]
Budget = Annotated[float | None, _arg(help=f"Budget of an episode; {_DRAWN}")]
TargetCpa = Annotated[float | None, _arg(help=f"Cost of an acquisition to aim at; {_DRAWN}")]


@dataclass(frozen=True)
class Sample(Command):
    """Write a GA4-shaped export, an ads table and auction insights, drawn from hidden parameters.

    Example: parallel-agents market sample --out data/export
    """

    function = "market_commands:write_export"
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
    json: Json = False
    quiet: Quiet = False


@dataclass(frozen=True)
class Profile(Command):
    """Describe an export before anything is fitted: rows, gaps, odd values, and what can be discovered.

    Example: parallel-agents market profile data/export --write-columns map.toml
    """

    function = "market_commands:profile_export"
    export: tyro.conf.Positional[Path]
    """Directory of Parquet, CSV or JSON-lines files, a file, or a DuckDB database."""
    columns: Path | None = None
    """Column map (.toml); by default names are guessed, and the guess is shown."""
    write_columns: Path | None = None
    """Write the guessed column map to this file, to be checked and changed."""
    json: Json = False


@dataclass(frozen=True)
class Discover(Command):
    """Estimate segments, delays, seasons, prices and rivals from an export, every number with an interval.

    Example: parallel-agents market discover data/export --out patterns.json
    """

    function = "market_commands:find_patterns"
    export: tyro.conf.Positional[Path]
    """Directory of Parquet, CSV or JSON-lines files, a file, a DuckDB database, or bigquery:project.dataset."""
    out: Path
    """Patterns file to write (.json)."""
    first_day: str | None = None
    """Of a dataset in BigQuery, read from this day on (2024-01-31)."""
    last_day: str | None = None
    """Of a dataset in BigQuery, read to this day."""
    utc_offset_hours: float = 0.0
    """Time zone of the GA4 property, in hours from UTC."""
    columns: Path | None = None
    """Column map (.toml) of tables with other column names, as `market profile` proposes it."""
    vocabulary: Path | None = None
    """Words of pages by topic (.toml): [topics] urgent = ["crisis", ...], health = [...], funnel = [...]."""
    json: Json = False
    quiet: Quiet = False


@dataclass(frozen=True)
class Worlds(Command):
    """Draw worlds from patterns and describe them.

    Example: parallel-agents market worlds patterns.json --worlds 100 --plot atlas.png
    """

    function = "market_commands:show_worlds"
    patterns: Patterns
    worlds: int = 100
    """Number of worlds."""
    seed: int = 0
    """Seed of the worlds."""
    plot: Path | None = None
    """Draw the worlds by competition and share of crisis parents (.png)."""
    json: Json = False
    quiet: Quiet = False


@dataclass(frozen=True)
class Simulate(Command):
    """Simulate episodes in many worlds at once.

    Example: parallel-agents market simulate patterns.json --worlds 100 --episodes 1000 --json
    """

    function = "market_commands:simulate"
    patterns: Patterns
    worlds: int = 100
    """Number of different worlds."""
    episodes: int = 1000
    """Number of episodes, spread over all worlds."""
    concurrent: int | None = None
    """Worlds simulated together; by default all. The results do not depend on it."""
    alpha: float = 0.08
    """Bids, as a multiple of the predicted value of a click; one of the levels 0.02, 0.04, 0.08, 0.16, 0.32, 0.64."""
    network: bool = False
    """Let an untrained network of 64 × 64 units choose the actions, instead of a fixed level."""
    steps: int = 48
    """Number of decisions of an episode, 24 a day."""
    auctions: float | None = None
    """Mean number of auctions in a step; by default as many as the data show."""
    budget: Budget = None
    target_cpa: TargetCpa = None
    threads: int | None = None
    """Number of threads; by default one per core."""
    seed: int = 0
    """Seed of the worlds and of all random numbers."""
    warehouse: Path | None = None
    """Store the experiences in this folder (Parquet)."""
    plot: Path | None = None
    """Folder for plots: reward and crisis share by type of world."""
    json: Json = False
    quiet: Quiet = False


@dataclass(frozen=True)
class Train(Command):
    """Train a bidder in many worlds at once; the run folder is one of `parallel-agents train`.

    Example: parallel-agents market train patterns.json --worlds 100 --epochs 200 --out runs/bidder
    """

    function = "market_commands:train_bidder"
    patterns: Patterns
    out: Path
    """New run folder; continue an existing one with `parallel-agents resume`."""
    algo: Literal["ppo", "dqn"] = "ppo"
    """Learner, with a recipe that works."""
    worlds: int = 100
    """Number of different worlds."""
    epochs: int = 200
    """Number of epochs: an episode in every world, then a round of training."""
    actions: Literal["joint", "choices", "paced"] | None = None
    """Form of actions; by default that of the recipe."""
    budget: Budget = None
    target_cpa: TargetCpa = None
    objective: Literal["score", "profit"] = "score"
    """score: acquisitions, less for those above the target; profit: value less cost."""
    importance: float = 0.0
    """Share of steps in every batch that cause a crisis parent's purchase; 0: as they come."""
    correction: float = 1.0
    """How far weights undo that share: 1 wholly, 0 not at all, which has paid with --objective profit."""
    episodes: int = 100
    """Unseen worlds in which the bidder is compared with the baselines afterwards; 0: no comparison."""
    seed: int = 0
    """Seed of the worlds, of the agent and of all random numbers."""
    json: Json = False
    quiet: Quiet = False


@dataclass(frozen=True)
class Evaluate(Command):
    """Let a trained bidder and the baselines play the same episodes in worlds that it has not seen.

    Example: parallel-agents market evaluate runs/bidder --episodes 200 --plot day.png
    """

    function = "market_commands:evaluate_bidder"
    run_dir: BidderDir
    episodes: int = 100
    """Number of worlds, each played once."""
    patterns: Path | None = None
    """Other patterns to draw the worlds from; by default those of the training."""
    budget: Budget = None
    target_cpa: TargetCpa = None
    world_type: str | None = None
    """Only worlds of this type."""
    plot: Path | None = None
    """Draw spend, price and bids of an episode beside the oracle's (.png)."""
    json: Json = False
    quiet: Quiet = False


@dataclass(frozen=True)
class Export(Command):
    """Write a trained policy for other programs: a `torch.export` module, and ONNX on request.

    Example: parallel-agents market export runs/bidder --out policy
    """

    function = "market_commands:export_bidder"
    run_dir: BidderDir
    out: Path
    """Folder to write policy.pt2, policy.json and policy.onnx to."""
    onnx: bool = False
    """Also write ONNX (needs the packages onnx and onnxscript)."""
    json: Json = False


@dataclass(frozen=True)
class Compare(Command):
    """Compare two ways to train on paired seeds and equal updates, fixed strategies over worlds, or the baselines.

    Example: parallel-agents market compare patterns.json --what baselines
    """

    function = "market_commands:compare"
    patterns: Patterns
    what: Literal["worlds", "importance", "strategies", "baselines"] = "worlds"
    """Many worlds or one; importance sampling on or off; constant strategies; random, constant, pacer and oracle."""
    algo: Literal["ppo", "dqn"] = "ppo"
    """Learner of a training."""
    objective: Literal["score", "profit"] = "score"
    """What a training rewards, and what its baselines are chosen by."""
    seeds: int = 10
    """Number of paired seeds."""
    worlds: int = 100
    """Number of worlds of a training, or of a comparison of strategies."""
    epochs: int = 150
    """Number of epochs of a training, or of laps of a comparison of strategies or baselines (at most 10)."""
    episodes: int = 200
    """Number of unseen worlds of an evaluation."""
    held_out: str | None = None
    """Type of world to leave out of the training (with --what worlds)."""
    plot: Path | None = None
    """Draw the advantage of each strategy (.png, with --what strategies)."""
    json: Json = False
    quiet: Quiet = False


Market = group(
    "Market worlds discovered from data, and bidders that are trained and compared in them.",
    sample=Sample,
    profile=Profile,
    discover=Discover,
    worlds=Worlds,
    simulate=Simulate,
    train=Train,
    evaluate=Evaluate,
    export=Export,
    compare=Compare,
)
