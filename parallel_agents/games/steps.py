"""What each action of a grid game does to where an agent stands and faces."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from parallel_agents.errors import ConfigError

__all__ = ["MOVES", "TURNING_MOVES", "WAYS", "step_table"]

WAYS = np.array([(-1, 0), (0, 1), (1, 0), (0, -1)])
"""Rows and columns of a step up, right, down and left. Headings go clockwise: to turn is to add."""
_ABSOLUTE = {"up": 0, "right": 1, "down": 2, "left": 3}
"""A step that way, facing there."""
_RELATIVE = {"forward": 0, "step_right": 1, "backward": 2, "step_left": 3}
"""A step that way as seen by one who faces up, facing on as before."""
MOVES = ("up", "down", "left", "right", "stay")
"""The moves of most games."""
TURNING_MOVES = ("forward", "backward", "step_left", "step_right", "turn_left", "turn_right", "stay")
"""The moves of games in which it matters where an agent faces."""
_TURNS = {"stay": 0, "turn_right": 1, "turn_left": 3}
"""No step."""


def step_table(actions: Sequence[str], others: Sequence[str]) -> NDArray[np.int8]:
    """(A, 4, 3) rows, columns and new heading of each action, for each heading; (0, 0, same) for a game's own."""
    known = [*_TURNS, *_ABSOLUTE, *_RELATIVE]
    strange = [name for name in actions if name not in known and name not in others]
    if strange or not actions:
        raise ConfigError(
            f"the actions {list(actions)}: name at least one, all of them out of {', '.join(known)}"
            + (f", or the game's own {', '.join(others)}" if others else "")
        )
    table = np.zeros((len(actions), 4, 3), np.int8)
    for row, name in zip(table, actions, strict=True):
        for heading in range(4):
            if name in _ABSOLUTE:
                row[heading] = *WAYS[_ABSOLUTE[name]], _ABSOLUTE[name]
            elif name in _RELATIVE:
                row[heading] = *WAYS[(heading + _RELATIVE[name]) % 4], heading
            else:
                row[heading] = 0, 0, (heading + _TURNS.get(name, 0)) % 4
    return table
