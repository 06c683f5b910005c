"""How good a defender is by the challenge's own measure: nine means and their sum.

Against B_line, Meander and Sleep, the mean return of the first 30, 50 and 100 turns; the total is the sum of the nine.
The policy is not told how long an episode lasts, so the shorter ones are the beginnings of the longer ones.

>>> from parallel_agents.workflows.policies import op_once
>>> found = score(lambda worlds: op_once, episodes=4)
>>> found.means["Sleep"]
(-1.0, -1.0, -1.0)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parallel_agents.acting import Inference
from parallel_agents.errors import ConfigError
from parallel_agents.models import Model
from parallel_agents.seeding import Purpose
from parallel_agents.types import Weights
from parallel_agents.workflows.network import RED_AGENTS, NetworkWorlds, Quirks
from parallel_agents.workflows.network.history import HISTORY_SIZE, History
from parallel_agents.workflows.network.quirks import quirks_of
from parallel_agents.workflows.policies import Policy, play

__all__ = ["LENGTHS", "Defender", "Score", "score", "score_table"]

LENGTHS = (30, 50, 100)

Made = Callable[[NetworkWorlds], Policy]
"""From worlds to a policy for them."""


@dataclass(frozen=True)
class Score:
    """Mean returns and their standard errors per red agent, at 30, 50 and 100 turns."""

    means: Mapping[str, tuple[float, ...]]
    errors: Mapping[str, tuple[float, ...]]
    total: float
    total_error: float
    episodes: int

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "total": self.total,
            "total_error": self.total_error,
            "episodes": self.episodes,
            "lengths": list(LENGTHS),
            "means": {red: list(own) for red, own in self.means.items()},
            "errors": {red: list(own) for red, own in self.errors.items()},
        }


class Defender:
    """A trained model of `NetworkDefence` as a policy: the likeliest action, from its own notes where it reads them.

    It takes part in one batch of worlds; a turn that does not follow on the last one begins an episode.
    """

    def __init__(self, model: Model, worlds: NetworkWorlds) -> None:
        self._notes = History(worlds.n_worlds, worlds.rules)
        self._bits_alone = model.blueprint.observation != (HISTORY_SIZE,)
        self._inference = Inference(model.blueprint.network, 1, worlds.n_worlds, together=True)
        self._inference.publish(Weights(0, model.blueprint.learner().policy(model.state)))
        self._turn = -1
        self._chosen = np.zeros(worlds.n_worlds, np.int64)

    def __call__(self, observations: NDArray[np.uint8], epoch: int, turn: int) -> NDArray[np.int64]:
        if turn == self._turn + 1 and turn > 0:
            rows = self._notes.after(self._chosen, observations)
        else:
            rows = self._notes.begin(observations, turn)
        seen = observations.astype(np.float32) if self._bits_alone else rows
        self._turn = turn
        self._chosen = np.asarray(self._inference.forward(seen[None])[0, :, :-1].argmax(-1))
        return self._chosen


def score(
    made: Made, version: str = "leaderboard", quirks: Quirks | None = None, episodes: int = 1000, seed: int = 0
) -> Score:
    """Play `episodes` episodes against each red agent, on draws that no training uses."""
    if episodes < 2:
        raise ConfigError(f"episodes is {episodes}: at least two are needed for a standard error")
    means, errors, totals = {}, {}, []
    for red in RED_AGENTS:
        worlds = NetworkWorlds(
            episodes, red=red, version=version, quirks=quirks, steps=max(LENGTHS), seed=seed,
            purpose=Purpose.EVALUATION_WORLD,
        )  # fmt: skip
        earned = play(worlds, made(worlds), epoch=0).cumsum(axis=0)
        returns = np.stack([earned[length - 1] for length in LENGTHS])
        means[red] = tuple(float(mean) for mean in returns.mean(axis=1))
        errors[red] = tuple(float(error) for error in returns.std(axis=1, ddof=1) / np.sqrt(episodes))
        totals.append(returns.sum(axis=0))
    total = float(np.mean(totals, axis=1).sum())
    error = float(np.sqrt(np.var(totals, axis=1, ddof=1).sum() / episodes))
    return Score(means, errors, total, error, episodes)


def score_table(made: Made, episodes: int = 1000, seed: int = 0) -> dict[str, Score]:
    """Both versions of the game, each with the service un-killable after a Restore, as it is, and killable."""
    table = {}
    for version in ("leaderboard", "head"):
        for quirk in (True, False):
            quirks = replace(quirks_of(version), service_unkillable_after_restore=quirk)
            name = version if quirk else f"{version}, service stays killable"
            table[name] = score(made, version, quirks, episodes, seed)
    return table
