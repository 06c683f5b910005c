"""Train a model on a batch that somebody else has drawn: `update_policy(batch) -> metrics`.

A batch becomes a snapshot, which the model's own learner takes by the same kernel as in a run. The batch's `weights`
multiply each sample's loss once, before the mean.

    DQN, IQN   B rows in any order: states, actions, rewards, next_states, dones
    PPO        T steps in their order: states, actions, rewards, dones, log_probs, values, versions; advantages are
               computed on them before anything is weighted
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from parallel_agents.algorithms.base import DIRECT, AlgorithmSpec, Model
from parallel_agents.algorithms.learner import Snapshot
from parallel_agents.core.errors import ActionError, ContractError, NonFiniteError, ShapeError
from parallel_agents.core.types import Array
from parallel_agents.nn import SquashedGaussian, numerics

ROW_COLUMNS = ("states", "actions", "rewards", "next_states", "dones")
STEP_COLUMNS = ("states", "actions", "rewards", "dones", "log_probs", "values", "versions")


def train_on(model: Model, snapshot: Snapshot, batch: int) -> dict[str, float]:
    """Train a model on one snapshot with minibatches of `batch` rows; return the metrics and the count of updates."""
    model.require_free("update_policy()")
    numerics.require()
    learner = _with_batch_size(model.spec.learner(updates=1), batch)
    state, result = learner.learn(model.state, snapshot, model.identity)
    if not result.updates[0]:
        raise NonFiniteError("update_policy() was given a batch whose loss or gradient is not finite: no update")
    model.state = state
    return {name: float(values[0]) for name, values in result.metrics.items()} | {"updates": int(state["updates"][0])}


def _with_batch_size(learner: Any, batch: int) -> Any:
    """Return a learner with minibatches of another size, also where another learner wraps it."""
    if hasattr(learner, "learner"):
        return replace(learner, learner=_with_batch_size(learner.learner, batch))
    return replace(learner, batch=batch)


# -- rows, for learners from a replay buffer -------------------------------------------------------------------------


def rows_snapshot(model: Model, batch: Mapping[str, ArrayLike]) -> Snapshot:
    """Return the snapshot of one model from B rows."""
    if model.spec.ring.frames != 1:
        raise ContractError(
            f"{type(model).__name__} sees {model.spec.ring.frames} frames and cannot learn from single rows: "
            "give it n_frames=1"
        )
    return batches_snapshot([batch], model.spec, gammas=[model.hyper["gamma"]])


def batches_snapshot(
    batches: Sequence[Mapping[str, ArrayLike]], spec: AlgorithmSpec, *, gammas: Sequence[float], round_: int = 0
) -> Snapshot:
    """Return the snapshot of N agents from one batch of B rows per agent; every array is checked first."""
    columns: dict[str, list[Array]] = {}
    for batch, gamma in zip(batches, gammas, strict=True):
        for name, column in _row_columns(batch, gamma, spec).items():
            columns.setdefault(name, []).append(column)
    ready = np.ones(len(batches), np.bool_)
    return Snapshot(round_, {**{name: np.stack(parts) for name, parts in columns.items()}, "ready": ready})


def _row_columns(batch: Mapping[str, ArrayLike], gamma: float, spec: AlgorithmSpec) -> dict[str, Array]:
    _require_columns(batch, ROW_COLUMNS)
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
        shape = (rows, spec.network.inputs) if name.endswith("states") else (rows,)
        if column.shape != shape:
            raise ShapeError(f"a batch of {rows} rows has {name} of shape {column.shape}: give {shape}")
    actions = columns["actions"]
    if spec.actions is not None and rows and not 0 <= actions.min() <= actions.max() < spec.actions:
        raise ActionError(f"a batch has actions {actions.min()} .. {actions.max()}: there are {spec.actions}")
    if not (np.isfinite(columns["weights"]).all() and (columns["weights"] >= 0).all()):
        raise NonFiniteError("a batch has weights that are negative or not finite: give the corrections of its sampler")
    return columns


def _require_columns(batch: Mapping[str, ArrayLike], names: Sequence[str]) -> None:
    missing = [name for name in names if name not in batch]
    if missing:
        raise ShapeError(f"a batch has no {', '.join(missing)}: give {', '.join(names)}, and weights if it has any")


# -- trajectories, for on-policy learners ----------------------------------------------------------------------------


def trajectory_snapshot(batch: Mapping[str, ArrayLike], spec: Any, *, version: int) -> Snapshot:
    """Return the snapshot of one agent from T steps of one world in their order.

    Raise ContractError for steps of other weights than `version`. `last_value` is the value of the state after the
    last step; it may be left out where that step is done. A step that is `done` ends an episode, and the next step
    begins another.
    """
    # squashed actions are stored as they were before squashing
    actions = "raw" if isinstance(spec.distribution, SquashedGaussian) else "actions"
    _require_columns(batch, STEP_COLUMNS if actions in STEP_COLUMNS else (*STEP_COLUMNS, actions))
    steps = len(np.asarray(batch["rewards"]))
    columns = {name: np.asarray(batch[name], np.float32) for name in ("rewards", "log_probs", "values")}
    columns["weights"] = np.asarray(batch.get("weights", np.ones(steps)), np.float32)
    columns["dones"] = np.asarray(batch["dones"], np.bool_)
    columns["states"] = np.asarray(batch["states"], np.float32).reshape(steps, -1)
    columns["actions"] = np.asarray(batch[actions], spec.distribution.dtype)
    shapes = {"states": (steps, spec.network.inputs), "actions": (steps, *spec.distribution.shape)}
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
    return _with_last_row(columns, float(np.asarray(batch.get("last_value", 0.0))), DIRECT + version)


def _refuse_stale(versions: Array, version: int) -> None:
    """Raise ContractError for steps of older weights: PPO compares with the policy that acted."""
    stale = versions != version
    if stale.any():
        raise ContractError(
            f"a batch holds steps of version {np.unique(versions[stale]).tolist() if versions.ndim else versions}, "
            f"the model is at {version}: on-policy data are of use once, to the weights that acted; collect anew"
        )


def _with_last_row(columns: Mapping[str, Array], last_value: float, round_: int) -> Snapshot:
    """Return columns (1, T + 1, 1): the last row holds the value of the state after the last step, and is no sample."""

    dones, ones = columns["dones"], np.ones(len(columns["dones"]), np.bool_)
    truncated = ~ones
    truncated[-1] = not dones[-1]
    rows = {
        "observations": columns["states"],
        "actions": columns["actions"],
        "rewards": columns["rewards"],
        "terminated": dones,
        "truncated": truncated,
        "valid": ones,
        "follow": ones.astype(np.int32),
        "log_prob": columns["log_probs"],
        "value": columns["values"],
        "sample_weights": columns["weights"],
    }
    last = {"value": last_value}
    extended = {name: np.concatenate([row, np.full_like(row[:1], last.get(name, 0))]) for name, row in rows.items()}
    return Snapshot(round_, {name: row[None, :, None] for name, row in extended.items()} | {"ready": ones[:1]})
