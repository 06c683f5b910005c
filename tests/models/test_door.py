"""`update_policy`: one update from what an outside trainer has drawn, by the kernels of a run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from parallel_agents.errors import ContractError, NonFiniteError, RunError, ShapeError
from parallel_agents.models import DQN, IQN, PPO
from parallel_agents.networks import SquashedGaussian

OPTIONS: dict[str, Any] = {"hidden": (8,), "passes": 2, "minibatches": 2}


def played(model: PPO, steps: int = 12, ends: tuple[int, ...] = (5, 11)) -> dict[str, Any]:
    """Steps of a small world, as an outside trainer collects them."""
    rows: list[dict[str, Any]] = []
    for t in range(steps):
        state = [np.sin(t), np.cos(t)]
        rows.append({"states": state, "rewards": float(t % 3), "dones": t in ends, **model.decide(state)})
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


def test_a_trajectory_by_the_door_is_the_one_in_memory() -> None:
    outside, inside = PPO((2,), 2, rollout=12, **OPTIONS), PPO((2,), 2, rollout=12, **OPTIONS)
    batch = played(outside)
    for t in range(12):
        told = {"log_prob": batch["log_probs"][t], "value": batch["values"][t]}
        inside.memory.add(batch["states"][t], batch["actions"][t], batch["rewards"][t], batch["dones"][t], **told)
    inside.train_step()
    metrics = outside.update_policy(batch)
    assert torch.equal(outside.state["online"], inside.state["online"])
    assert metrics["updates"] == 4
    assert {"loss", "policy_loss", "value_loss", "entropy"} <= set(metrics)


def test_weights_of_one_change_nothing_and_others_do() -> None:
    def trained(weights: Any) -> torch.Tensor:
        model = PPO((2,), 2, **OPTIONS)
        model.update_policy(played(model) | ({} if weights is None else {"weights": weights}))
        return model.state["online"]

    assert torch.equal(trained(None), trained(np.ones(12)))
    assert not torch.equal(trained(None), trained(np.linspace(0, 2, 12)))


def test_stale_steps_are_refused_and_change_nothing() -> None:
    model = PPO((2,), 2, **OPTIONS)
    batch = played(model)
    model.update_policy(batch)
    before = model.state["online"].clone()
    with pytest.raises(
        ContractError, match=r"steps of version \[0\], the model is at 4: on-policy data are of use once"
    ):
        model.update_policy(batch)
    mixed = played(model)
    mixed["versions"][3] = 0
    with pytest.raises(ContractError, match="collect anew"):
        model.update_policy(mixed)
    assert torch.equal(model.state["online"], before)
    model.update_policy(played(model))  # fresh ones are welcome


def test_continuous_actions_come_with_what_they_were_before_squashing() -> None:
    model = PPO((2,), SquashedGaussian((-1.0,), (1.0,)), **OPTIONS)
    batch = played(model)
    assert np.isfinite(model.update_policy(batch)["loss"])
    del batch["raw"]
    with pytest.raises(ShapeError, match="a batch has no raw"):
        model.update_policy(batch)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"dones": np.zeros(12, bool)}, ShapeError, "last step is not done has no last_value"),
        ({"log_probs": np.zeros(3)}, ShapeError, r"12 steps has log_probs of shape \(3,\): give \(12,\)"),
        ({"rewards": np.full(12, np.nan)}, NonFiniteError, "rewards with NaN"),
        ({"weights": -np.ones(12)}, NonFiniteError, "weights that are negative"),
        ({"states": np.zeros((12, 3))}, ShapeError, r"give \(12, 2\)"),
    ],
)
def test_a_bad_trajectory_is_refused(changes: dict[str, Any], error: type[Exception], message: str) -> None:
    model = PPO((2,), 2, **OPTIONS)
    with pytest.raises(error, match=message):
        model.update_policy(played(model) | changes)
    assert model.version == 0


def test_the_value_after_a_cut_counts() -> None:
    def loss(last: float) -> float:
        model = PPO((2,), 2, **OPTIONS)
        return float(model.update_policy(played(model, ends=()) | {"last_value": last})["value_loss"])

    assert loss(50.0) > 10 * loss(0.0)


def test_replay_models_have_the_door_themselves() -> None:
    rows = {"states": np.ones((4, 2)), "actions": [0, 1, 0, 1], "rewards": np.ones(4), "next_states": np.ones((4, 2))}
    for model in (DQN((2,), 2, hidden=(8,)), IQN((2,), 2, layer=8, n_frames=1)):
        assert model.update_policy({**rows, "dones": np.ones(4, bool)})["updates"] == 1
    with pytest.raises(ContractError, match="IQN sees 5 frames"):
        IQN((2,), 2, layer=8).update_policy({**rows, "dones": np.ones(4, bool)})
    busy = PPO((2,), 2, **OPTIONS)
    batch = played(busy)
    busy.busy = "a run is on"
    with pytest.raises(RunError, match="while a run is on"):
        busy.update_policy(batch)
