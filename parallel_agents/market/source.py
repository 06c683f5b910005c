"""Where patterns come from: a patterns file, an export, or, for a first run, a sample drawn from hidden parameters."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from parallel_agents.market.discovery import Patterns, discover
from parallel_agents.market.sample import draw_sample

__all__ = ["patterns_of", "sample_patterns"]


def patterns_of(source: str | Path = "") -> Patterns:
    """Patterns from a `.json` file of `Patterns.save`, from an export, or, if nothing is named, from a sample."""
    if not str(source):
        return sample_patterns()
    path = Path(source)
    return Patterns.load(path) if path.suffix == ".json" else discover(path)


@lru_cache(maxsize=4)
def sample_patterns(seed: int = 1, users: int = 3_000) -> Patterns:
    """What discovery finds in a sample export; drawn and discovered once per process."""
    sample = draw_sample(users=users, seed=seed)
    return discover({"events": sample.events, "ads": sample.ads, "auction_insights": sample.insights})
