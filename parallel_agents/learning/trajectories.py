"""What a round of an on-policy learner reads: ordered trajectories, their advantages, and minibatches of them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from parallel_agents.errors import NonFiniteError, ShapeError
from parallel_agents.learning.gae import advantages
from parallel_agents.seeding import Purpose, generator
from parallel_agents.types import Array, Identity, Snapshot, State

__all__ = ["Trajectories"]


class Trajectories:
    """The trajectories of a round as one flat list of samples per agent, T·W places, and as sequences of those."""

    def __init__(
        self, snapshot: Snapshot, state: State, identity: Identity, *, parts: int, batch: int, length: int
    ) -> None:
        self._identity, self._parts, self._batch = identity, parts, batch
        hyper = {name: state[f"hyper.{name}"].cpu().numpy() for name in ("gamma", "lambda", "target_kl")}
        rise = advantages(
            snapshot["rewards"],
            snapshot["value"],
            snapshot["terminated"],
            snapshot["truncated"],
            snapshot["valid"],
            snapshot["follow"],
            hyper["gamma"],
            hyper["lambda"],
        )
        agents = len(identity)
        valid = snapshot["valid"].reshape(agents, -1)
        self.sequences, self.inside = _sequences(snapshot["valid"].shape[1], snapshot["valid"].shape[2], length)
        self._valid: NDArray[np.bool_] = valid[:, self.sequences] & self.inside
        """(N, K, L) which places of the sequences are samples."""
        self._whole = [np.flatnonzero(own.any(axis=-1)) for own in self._valid]
        """Per agent: the sequences that hold any."""
        self.ready = snapshot["ready"] & np.array([len(own) > 0 for own in self._whole])
        self.limits = np.where(hyper["target_kl"] > 0, hyper["target_kl"], np.inf)
        self.stops_early = bool(np.isfinite(self.limits).any())
        places = valid.shape[1]
        self.observations = snapshot["observations"].reshape(agents, places, -1)
        self.actions = snapshot["actions"].reshape(agents, places, *snapshot["actions"].shape[3:])
        masks = snapshot.columns.get("masks")
        self.masks = None if masks is None else masks.reshape(agents, places, -1)
        self.log_prob = snapshot["log_prob"].reshape(agents, -1)
        self.values = snapshot["value"].reshape(agents, -1)
        self.returns = rise.reshape(agents, -1) + self.values
        self.hidden = self.keep = None
        if "hidden" in snapshot.columns:
            self.hidden = snapshot["hidden"].reshape(agents, len(self.sequences), -1)
            self.keep = (snapshot["age"].reshape(agents, places) > 0).astype(np.float32)
        given = snapshot.columns.get("sample_weights")
        self._weights = None if given is None else _checked_weights(given, valid)
        self.rise = np.stack(
            [
                _normalised(own, places, None if self._weights is None else self._weights[row])
                for row, (own, places) in enumerate(
                    zip(rise.reshape(agents, -1), map(np.flatnonzero, valid), strict=True)
                )
            ]
        )
        self.start = self.log_prob
        self._drawn = None if "drawn" not in snapshot.columns else (snapshot["drawn"], snapshot["weights"])

    def started_from(self, log_probs: NDArray[np.float32]) -> None:
        """Remember what the learner gave the actions at the round's start."""
        self.start = log_probs

    def minibatches(self, round_: int, pass_: int) -> list[tuple[NDArray[np.int64], NDArray[np.float32]]]:
        """(N, B) sequences by each agent's own permutation, and (N, B·L) weights that sum to 1 if all weigh alike."""
        if self._drawn is not None:
            return self._drawn_minibatches(pass_)
        agents, length = len(self._identity), self.sequences.shape[1]
        parts = [
            (np.zeros((agents, self._batch), np.int64), np.zeros((agents, self._batch * length), np.float32))
            for _ in range(self._parts)
        ]
        for row, (seed, agent) in enumerate(zip(self._identity.seeds, self._identity.agents, strict=True)):
            draws = generator(seed, Purpose.PERMUTATION, agent=agent, epoch=round_, turn=pass_)
            shares = np.array_split(draws.permutation(self._whole[row]), self._parts)
            for (chosen, weights), share in zip(parts, shares, strict=True):
                chosen[row, : len(share)] = share
                samples = self._valid[row, share].reshape(-1)
                weights[row, : len(samples)] = samples / max(1, np.count_nonzero(samples))
                if self._weights is not None:
                    weights[row, : len(samples)] *= self._weights[row, self.sequences[share].reshape(-1)]
        return parts

    def _drawn_minibatches(self, pass_: int) -> list[tuple[NDArray[np.int64], NDArray[np.float32]]]:
        """(N, B) samples that were drawn for this pass, and (N, B) corrections over B."""
        assert self._drawn is not None
        samples, weights = self._drawn
        starts = (pass_ * self._parts + np.arange(self._parts)) * self._batch
        cuts = [slice(first, first + self._batch) for first in starts]
        return [(samples[:, own], (weights[:, own] / self._batch).astype(np.float32)) for own in cuts]

    def places(self, chosen: NDArray[np.int64]) -> NDArray[np.int64]:
        """(N, B) sequences -> (N, B·L) places."""
        return self.sequences[chosen].reshape(len(chosen), -1)


def _sequences(turns: int, worlds: int, length: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """(K, L) places, turn·W + world, of all sequences of T turns, and which are inside: the last may be shorter."""
    rows = np.arange(0, turns, length)[:, None, None] + np.arange(length)
    places = np.minimum(rows, turns - 1) * worlds + np.arange(worlds)[:, None]
    return places.reshape(-1, length), np.broadcast_to(rows < turns, places.shape).reshape(-1, length)


def _checked_weights(given: Array, valid: Array) -> NDArray[np.float32]:
    """(N, T, W) weights of samples as (N, T·W)."""
    weights = np.asarray(given, np.float32).reshape(len(given), -1)
    if weights.shape != valid.shape:
        raise ShapeError(
            f"sample_weights of shape {np.shape(given)} for {valid.shape} places: give one for each sample"
        )
    if not (np.isfinite(weights).all() and (weights >= 0).all()):
        raise NonFiniteError("sample_weights must be finite and not negative: check the shares they come from")
    return weights


def _normalised(
    rise: NDArray[np.float32], places: NDArray[np.int64], weights: NDArray[np.float32] | None
) -> NDArray[np.float32]:
    """One agent's advantages with mean 0 and deviation 1 over its samples, weighted ones where weights are given."""
    own = rise[places].astype(np.float64)
    if len(own) < 2:
        return rise
    if weights is None:
        return np.asarray((rise - own.mean()) / (own.std() + 1e-8), np.float32)
    shares = weights[places].astype(np.float64)
    shares /= max(shares.sum(), 1e-300)  # no weight at all: nothing will be learned from these samples
    mean = shares @ own
    return np.asarray((rise - mean) / (np.sqrt(shares @ (own - mean) ** 2) + 1e-8), np.float32)
