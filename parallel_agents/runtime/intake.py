"""What environments show and allow, as the checked arrays that stacks compute with."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from parallel_agents.acting import flattened
from parallel_agents.errors import ActionError, NonFiniteError, ShapeError
from parallel_agents.models import Blueprint
from parallel_agents.runtime.turn import all_finite
from parallel_agents.types import Array

__all__ = ["Intake", "Masks", "Seat", "mask_of"]

Masks = Sequence[Array | None] | None
"""Per agent of an environment what it may do, (W, A) bool; None: everything."""


class Seat(NamedTuple):
    """Where an agent sits: environment number, agent number."""

    environment: int
    agent: int


def mask_of(masks: Sequence[Masks], seat: Seat) -> Array | None:
    """(W, A) what one seat may do; None: everything."""
    own = masks[seat.environment]
    return None if own is None else own[seat.agent]


class Intake:
    """Takes in observations and masks; whatever does not fit is refused by the agent's name."""

    def __init__(self, environments: Sequence[Any]) -> None:
        self._environments = environments
        self._worlds = environments[0].n_worlds

    def rows(self, seen: Sequence[Any], members: Sequence[Seat], blueprint: Blueprint) -> Array:
        """(N, W, D) observations of the seats of a stack, checked and copied."""
        for k, env in enumerate(self._environments):
            if len(seen[k]) != len(env.agents):
                raise ShapeError(
                    f"{type(env).__name__} has {len(env.agents)} agents, but observe() gave what {len(seen[k])} see"
                )
        if len(seen) == 1 and len(members) == len(seen[0]) and isinstance(seen[0], np.ndarray):
            return self.checked(seen[0], members, blueprint)
        return self.checked([np.asarray(flattened(seen[k][i], 1)) for k, i in members], members, blueprint)

    def checked(self, own: Array | Sequence[Array], members: Sequence[Seat], blueprint: Blueprint) -> Array:
        """(N, W, D) copies of the (W, *obs) that each seat sees, all of the right shape and finite."""
        wanted = (self._worlds, *blueprint.observation)
        fitting = (wanted, (self._worlds, math.prod(blueprint.observation)))  # flat ones will do
        alike = isinstance(own, np.ndarray) and own.shape[1:] in fitting
        for seat, seen in [] if alike else zip(members, own, strict=True):
            if seen.shape not in fitting:
                raise ShapeError(
                    f"the observation of {self._name(seat)} has shape {seen.shape}, wanted is "
                    f"(worlds, *obs) = {wanted}: check observe() or pov(), and the model's obs_shape"
                )
        block = _as_float32(own).reshape(len(members), self._worlds, -1)
        if not all_finite(block):
            row, world = np.argwhere(~np.isfinite(block).all(axis=-1))[0]
            raise self._not_finite(members[row], world)
        return block

    def own(self, seen: Any, seat: Seat) -> Array:
        """(W, *obs): a finite copy of what an agent outside of stacks sees; the world may write into its own later."""
        copied = np.array(seen)
        if copied.dtype.kind == "f" and not np.isfinite(copied).all():
            raise self._not_finite(seat, np.argwhere(~np.isfinite(copied))[0][0])
        return copied

    def _not_finite(self, seat: Seat, world: int) -> NonFiniteError:
        env = self._environments[seat.environment]
        return NonFiniteError(
            f"the observation of {self._name(seat)} in world {world} holds NaN or infinity "
            f"(epoch {env.epoch}, turn {env.turn}): check the environment"
        )

    def allowed(self, masks: Sequence[Masks], members: Sequence[Seat], blueprint: Blueprint) -> Array | None:
        """(N, W, A) what the seats of a stack may do, where their environment says so."""
        if not blueprint.masked:
            return None
        return np.stack([self.fitting(mask_of(masks, seat), seat, blueprint) for seat in members])

    def fitting(self, mask: Array | None, seat: Seat, blueprint: Blueprint) -> Array:
        """(W, A) what one seat may do; everything where nothing is said."""
        wanted = (self._worlds, blueprint.choices)
        if mask is None:
            return np.ones(wanted, np.bool_)
        if mask.shape != wanted:
            raise ShapeError(
                f"the action mask of {self._name(seat)} has shape {mask.shape}, wanted is (worlds, actions) = "
                f"{wanted}: check action_masks() or action_mask()"
            )
        if not mask.any(axis=1).all():
            world = int(np.flatnonzero(~mask.any(axis=1))[0])
            raise ActionError(
                f"the action mask of {self._name(seat)} in world {world} forbids every action: allow at least one"
            )
        return mask

    def _name(self, seat: Seat) -> str:
        return str(self._environments[seat.environment].agents[seat.agent].name)


def _as_float32(seen: Any) -> Array:
    """A copy; what is too large for a float becomes infinite, and is then refused as such."""
    if isinstance(seen, np.ndarray) and seen.dtype == np.float32:
        return seen.copy()
    with np.errstate(over="ignore", invalid="ignore"):
        return np.array(seen, np.float32)
