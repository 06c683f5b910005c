"""The door for trainers outside: `update_policy(batch) -> metrics`, one update from what somebody else has drawn.

A batch becomes a snapshot, which the model's own learner takes by the same kernel as in a run. Corrections come in as
the batch's `weights` and multiply each sample's loss once, before the mean.

    replay models   B rows in any order: states, actions, rewards, next_states, dones
    PPO             T steps in their order: states, actions, rewards, dones, log_probs, values, versions; advantages are
                    computed on them before anything is weighted
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from parallel_agents.errors import ActionError, ContractError, NonFiniteError, RunError, ShapeError
from parallel_agents.learning import DQNLearner
from parallel_agents.learning.losses import double_q_targets, q_targets, values_of
from parallel_agents.models.base import DIRECT, Blueprint, Model
from parallel_agents.networks import SquashedGaussian, numerics
from parallel_agents.types import Array, Snapshot, State

__all__ = ["as_snapshot", "replay_update", "td_errors", "trajectory", "update"]

COLUMNS = ("states", "actions", "rewards", "next_states", "dones")
STEPS = ("states", "actions", "rewards", "dones", "log_probs", "values", "versions")


def update(model: Model, snapshot: Snapshot, batch: int) -> dict[str, float]:
    """Learn from one snapshot with minibatches of `batch` rows; the learner's figures, and its count of updates."""
    if model.busy is not None:
        raise RunError(f"update_policy() was called while {model.busy}: the scheduled rounds train this agent")
    numerics.require()
    learner = _of_size(model.blueprint.learner(updates=1), batch)
    state, result = learner.learn(model.state, snapshot, model.identity)
    if not result.updates[0]:
        raise NonFiniteError("update_policy() was given a batch whose loss or gradient is not finite: no update")
    model.state = state
    return {name: float(figure[0]) for name, figure in result.metrics.items()} | {"updates": int(state["updates"][0])}


def _of_size(learner: Any, batch: int) -> Any:
    """The learner with minibatches of another size, also where another one wraps it."""
    if hasattr(learner, "learner"):
        return replace(learner, learner=_of_size(learner.learner, batch))
    return replace(learner, batch=batch)


def replay_update(model: Model, batch: Mapping[str, ArrayLike]) -> dict[str, Any]:
    """One update from B rows; its loss, gradient norm and, for DQN, the TD errors (B,) it started from."""
    if model.blueprint.ring.frames != 1:
        raise ContractError(
            f"{type(model).__name__} sees {model.blueprint.ring.frames} frames and cannot learn from single rows: "
            "give it n_frames=1"
        )
    snapshot = as_snapshot([batch], model.blueprint, gammas=[model.hyper["gamma"]])
    learner = model.blueprint.learner(updates=1)
    found: dict[str, Any] = {}
    if type(learner) is DQNLearner:
        found["td_errors"] = td_errors(learner, model.state, snapshot)[0]
    return found | update(model, snapshot, snapshot["returns"].shape[1])


def as_snapshot(
    batches: Sequence[Mapping[str, ArrayLike]], blueprint: Blueprint, *, gammas: Sequence[float], round_: int = 0
) -> Snapshot:
    """One batch per agent, B rows each, as the snapshot of N agents; every array is checked first."""
    columns: dict[str, list[Array]] = {}
    for batch, gamma in zip(batches, gammas, strict=True):
        for name, column in _columns(batch, gamma, blueprint).items():
            columns.setdefault(name, []).append(column)
    ready = np.ones(len(batches), np.bool_)
    return Snapshot(round_, {**{name: np.stack(parts) for name, parts in columns.items()}, "ready": ready})


def _columns(batch: Mapping[str, ArrayLike], gamma: float, blueprint: Blueprint) -> dict[str, Array]:
    missing = [name for name in COLUMNS if name not in batch]
    if missing:
        raise ShapeError(f"a batch has no {', '.join(missing)}: give {', '.join(COLUMNS)}, and weights if it has any")
    rows = len(np.asarray(batch["rewards"]))
    columns: dict[str, Array] = {
        "states": np.asarray(batch["states"], np.float32).reshape(rows, -1),
        "actions": np.asarray(batch["actions"], np.int64),
        "returns": np.asarray(batch["rewards"], np.float32),
        "next_states": np.asarray(batch["next_states"], np.float32).reshape(rows, -1),
        "discounts": np.where(np.asarray(batch["dones"], np.bool_), 0.0, gamma).astype(np.float32),
        "weights": np.asarray(batch.get("weights", np.ones(rows)), np.float32),
    }
    for name, column in columns.items():
        shape = (rows, blueprint.network.inputs) if name.endswith("states") else (rows,)
        if column.shape != shape:
            raise ShapeError(f"a batch of {rows} rows has {name} of shape {column.shape}: give {shape}")
    actions = columns["actions"]
    if blueprint.actions is not None and rows and not 0 <= actions.min() <= actions.max() < blueprint.actions:
        raise ActionError(f"a batch has actions {actions.min()} .. {actions.max()}: there are {blueprint.actions}")
    if not (np.isfinite(columns["weights"]).all() and (columns["weights"] >= 0).all()):
        raise NonFiniteError("a batch has weights that are negative or not finite: give the corrections of its sampler")
    return columns


def td_errors(learner: DQNLearner, state: State, snapshot: Snapshot) -> NDArray[np.float32]:
    """(N, B) differences of the taken actions' values from their goals, before an update."""
    forward, bind = learner.network.forward, learner.network.bind
    batch = {name: torch.from_numpy(column) for name, column in snapshot.columns.items()}
    with torch.inference_mode():
        after = forward(bind(state["target"]), batch["next_states"])
        if learner.double:
            online = forward(bind(state["online"]), batch["next_states"])
            goals = double_q_targets(batch["returns"], batch["discounts"], after, online)
        else:
            goals = q_targets(batch["returns"], batch["discounts"], after)
        values = values_of(forward(bind(state["online"]), batch["states"]), batch["actions"])
        return np.asarray((values - goals).numpy())


def trajectory(batch: Mapping[str, ArrayLike], blueprint: Any, *, version: int) -> Snapshot:
    """T steps of one world in their order as a snapshot of one agent; data of other weights than `version` are refused.

    `last_value` is the value of what the last step led to; it may be left out where that step is done. Where `dones`
    say so, an episode has come to its own end and the next step begins another.
    """
    actions = "raw" if isinstance(blueprint.distribution, SquashedGaussian) else "actions"  # before they are squashed
    missing = [name for name in (*STEPS, actions) if name not in batch]
    if missing:
        raise ShapeError(f"a batch has no {', '.join(missing)}: give {', '.join(STEPS)}, and weights if it has any")
    steps = len(np.asarray(batch["rewards"]))
    columns = {name: np.asarray(batch[name], np.float32) for name in ("rewards", "log_probs", "values")}
    columns["weights"] = np.asarray(batch.get("weights", np.ones(steps)), np.float32)
    columns["dones"] = np.asarray(batch["dones"], np.bool_)
    columns["states"] = np.asarray(batch["states"], np.float32).reshape(steps, -1)
    columns["actions"] = np.asarray(batch[actions], blueprint.distribution.dtype)
    shapes = {"states": (steps, blueprint.network.inputs), "actions": (steps, *blueprint.distribution.shape)}
    for name, column in columns.items():
        wanted = shapes.get(name, (steps,))
        if steps < 1 or column.shape != wanted:
            raise ShapeError(f"a batch of {steps} steps has {name} of shape {column.shape}: give {wanted}")
        if name != "dones" and not np.isfinite(column).all():
            raise NonFiniteError(f"a batch has {name} with NaN or infinity: give finite numbers")
    if (columns["weights"] < 0).any():
        raise NonFiniteError("a batch has weights that are negative: give the corrections of its sampler")
    _refuse_stale(np.asarray(batch["versions"]), version)
    if not columns["dones"][-1] and "last_value" not in batch:
        raise ShapeError("a batch whose last step is not done has no last_value: give the value of what it led to")
    return _closed(columns, float(np.asarray(batch.get("last_value", 0.0))), DIRECT + version)


def _refuse_stale(versions: Array, version: int) -> None:
    """PPO compares with the policy that acted: what an older one did says little about the present one."""
    stale = versions != version
    if stale.any():
        raise ContractError(
            f"a batch holds steps of version {np.unique(versions[stale]).tolist() if versions.ndim else versions}, "
            f"the model is at {version}: on-policy data are of use once, to the weights that acted; collect anew"
        )


def _closed(columns: Mapping[str, Array], last_value: float, round_: int) -> Snapshot:
    """(1, T + 1, 1) columns: the last row holds the value of what the last step led to, and is no sample."""

    def rows(column: Array, last: Any) -> Array:
        return np.concatenate([column, np.full_like(column[:1], last)])[None, :, None]

    steps = len(columns["rewards"])
    dones = columns["dones"]
    cut = np.zeros(steps, np.bool_)
    cut[-1] = not dones[-1]
    return Snapshot(
        round_,
        {
            "observations": rows(columns["states"], 0),
            "actions": rows(columns["actions"], 0),
            "rewards": rows(columns["rewards"], 0),
            "terminated": rows(dones, False),
            "truncated": rows(cut, False),
            "valid": rows(np.ones(steps, np.bool_), False),
            "follow": rows(np.ones(steps, np.int32), 0),
            "log_prob": rows(columns["log_probs"], 0),
            "value": rows(columns["values"], last_value),
            "sample_weights": rows(columns["weights"], 0),
            "ready": np.ones(1, np.bool_),
        },
    )
