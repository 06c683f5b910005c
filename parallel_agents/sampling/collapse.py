"""Telling the user that weighted samples are worth far less than their number."""

from __future__ import annotations

import warnings

__all__ = ["EffectiveSampleSizeWarning", "flag_collapse"]


class EffectiveSampleSizeWarning(UserWarning):
    """A batch, or a log, is worth far fewer samples than it holds: a few weights carry it."""


def flag_collapse(size: float, count: int, floor: float, advice: str) -> None:
    """Warn the caller's caller if an effective `size` of `count` samples lies below the share `floor`."""
    if size < floor * count:
        warnings.warn(
            f"{count} samples are worth {size:.1f}, a few weights carry them: {advice}",
            EffectiveSampleSizeWarning,
            stacklevel=3,
        )
