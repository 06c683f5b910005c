"""`update_policy`: one update on a batch that an outside trainer has drawn, by the kernels of a run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from parallel_agents.algorithms import DQN, IQN, PPO
from parallel_agents.core.errors import ContractError, NonFiniteError, RunError, ShapeError
from parallel_agents.nn import SquashedGaussian

OPTIONS: dict[str, Any] = {"hidden": (8,), "n_epochs": 2, "n_minibatches": 2}


def collect(model: PPO, steps: int = 12, ends: tuple[int, ...] = (5, 11)) -> dict[str, Any]:
    """Return steps of a small world, as an outside trainer collects them."""
    rows: list[dict[str, Any]] = []
    for t in range(steps):
        state = [np.sin(t), np.cos(t)]
        rows.append({"states": state, "rewards": float(t % 3), "dones": t in ends, **model.decide(state)})
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


def test_update_policy_equals_a_train_step_on_the_same_trajectory() -> None:
    outside, inside = PPO((2,), 2, rollout=12, **OPTIONS), PPO((2,), 2, rollout=12, **OPTIONS)
    batch = collect(outside)
    for t in range(12):
        extras = {"log_prob": batch["log_probs"][t], "value": batch["values"][t]}
        inside.memory.add(batch["states"][t], batch["actions"][t], batch["rewards"][t], batch["dones"][t], **extras)
    inside.train_step()
    metrics = outside.update_policy(batch)
    assert torch.equal(outside.state["online"], inside.state["online"])
    assert metrics["updates"] == 4
    assert {"loss", "policy_loss", "value_loss", "entropy"} <= set(metrics)


def test_weights_of_one_change_nothing_and_others_do() -> None:
    def trained(weights: Any) -> torch.Tensor:
        model = PPO((2,), 2, **OPTIONS)
        model.update_policy(collect(model) | ({} if weights is None else {"weights": weights}))
        return model.state["online"]

    assert torch.equal(trained(None), trained(np.ones(12)))
    assert not torch.equal(trained(None), trained(np.linspace(0, 2, 12)))


def test_steps_of_older_weights_are_refused_and_change_nothing() -> None:
    model = PPO((2,), 2, **OPTIONS)
    batch = collect(model)
    model.update_policy(batch)
    before = model.state["online"].clone()
    with pytest.raises(
        ContractError, match=r"steps of version \[0\], the model is at 4: on-policy data are of use once"
    ):
        model.update_policy(batch)
    mixed = collect(model)
    mixed["versions"][3] = 0
    with pytest.raises(ContractError, match="collect anew"):
        model.update_policy(mixed)
    assert torch.equal(model.state["online"], before)
    model.update_policy(collect(model))  # steps of the newest weights are accepted


def test_continuous_actions_need_their_values_before_squashing() -> None:
    model = PPO((2,), SquashedGaussian((-1.0,), (1.0,)), **OPTIONS)
    batch = collect(model)
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
        model.update_policy(collect(model) | changes)
    assert model.version == 0


def test_the_value_after_a_truncation_counts() -> None:
    def loss(last: float) -> float:
        model = PPO((2,), 2, **OPTIONS)
        return float(model.update_policy(collect(model, ends=()) | {"last_value": last})["value_loss"])

    assert loss(50.0) > 10 * loss(0.0)


def test_replay_models_are_updated_on_rows() -> None:
    rows = {"states": np.ones((4, 2)), "actions": [0, 1, 0, 1], "rewards": np.ones(4), "next_states": np.ones((4, 2))}
    for model in (DQN((2,), 2, hidden=(8,)), IQN((2,), 2, layer=8, n_frames=1)):
        assert model.update_policy({**rows, "dones": np.ones(4, bool)})["updates"] == 1
    with pytest.raises(ContractError, match="IQN sees 5 frames"):
        IQN((2,), 2, layer=8).update_policy({**rows, "dones": np.ones(4, bool)})


def test_update_policy_during_a_run_is_refused() -> None:
    model = PPO((2,), 2, **OPTIONS)
    batch = collect(model)
    model.busy = "a run is on its way"
    with pytest.raises(RunError, match=r"update_policy\(\) was called while a run is on its way"):
        model.update_policy(batch)
