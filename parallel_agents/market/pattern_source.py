"""Load patterns from a patterns file or an export, or, for a first run without data, from a generated sample."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from parallel_agents.market.discovery import Patterns, discover
from parallel_agents.market.sample import draw_sample


def load_patterns(source: str | Path = "") -> Patterns:
    """Return the patterns of a `.json` file of `Patterns.save` or of an export; without a source, of a sample."""
    if not str(source):
        return sample_patterns()
    path = Path(source)
    return Patterns.load(path) if path.suffix == ".json" else discover(path)


@lru_cache(maxsize=4)
def sample_patterns(seed: int = 1, users: int = 3_000) -> Patterns:
    """Return what discovery finds in a sample export; computed once per process."""
    return discover(draw_sample(users=users, seed=seed).tables)
