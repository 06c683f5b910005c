"""Options of the `model` section: refused, renamed, and where they arrive."""

from __future__ import annotations

from typing import Any

import pytest

from parallel_agents.algorithms import DQN, IQN, PPO, Model
from parallel_agents.algorithms.dqn import DQNOptions
from parallel_agents.algorithms.iqn import IQNOptions
from parallel_agents.algorithms.ppo import PPOOptions
from parallel_agents.core.errors import ConfigError


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hiden": (8,)}, r"unknown key model\.hiden; did you mean model\.hidden\?"),
        ({"hidden": ("8",)}, r"model\.hidden\[0\] is '8' \(str\): allowed is int"),
        ({"hidden": 8.5}, r"model\.hidden is 8\.5"),
        ({"hidden": (0,)}, "each must be at least 1"),
        ({"lr": 0.0}, r"model\.lr is 0\.0: give a number above 0"),
        ({"lr": float("nan")}, r"model\.lr is nan"),
        ({"lr": float("inf")}, r"model\.lr is inf"),
        ({"max_grad_norm": -1.0}, r"model\.max_grad_norm is -1\.0: give a number above 0"),
        ({"gamma": 1.5}, r"model\.gamma is 1\.5: give a number from 0 to 1"),
        ({"epsilon": -0.1}, r"model\.epsilon is -0\.1"),
        ({"tau": float("nan")}, r"model\.tau is nan"),
        ({"batch_size": 0}, r"model\.batch_size is 0: give a whole number of at least 1"),
        ({"n_step": 0}, r"model\.n_step is 0"),
        ({"learning_starts": -1}, r"model\.learning_starts is -1: give a whole number of at least 0"),
        ({"target_update_interval": -1}, r"model\.target_update_interval is -1"),
        ({"lr_final": 0.1}, r"model\.lr_final is given without model\.lr_updates"),
        ({"lr_final": -0.1, "lr_updates": 5}, r"model\.lr_final is -0\.1: give a number from 0"),
        ({"lr_final": float("nan"), "lr_updates": 5}, r"model\.lr_final is nan"),
        ({"lr_updates": -1}, r"model\.lr_updates is -1"),
        ({"lr_schedule": "steps"}, r"model\.lr_schedule is 'steps'.*'linear', 'exponential', 'cosine'"),
        (
            {"lr_final": 0.0, "lr_updates": 5, "lr_schedule": "exponential"},
            r"model\.lr_schedule is 'exponential': lr_final must be above 0",
        ),
        ({"epsilon_final": 0.0, "epsilon_schedule": "exponential"}, r"model\.epsilon_schedule is 'exponential'"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DQN((3,), 2, **options).spec.network  # noqa: B018


COMMON = {
    "clip": "max_grad_norm",
    "normalise_observations": "normalize_observations",
    "normalise_rewards": "normalize_rewards",
}
REPLAY = {**COMMON, "target_interval": "target_update_interval", "batch_growth": "max_accumulated_batches"}
ROLLOUT = {
    **COMMON,
    "passes": "n_epochs",
    "minibatches": "n_minibatches",
    "ratio_clip": "clip_range",
    "value_clip": "clip_range_vf",
    "value_weight": "vf_coef",
    "entropy": "ent_coef",
}
RENAMED = {DQN: REPLAY, IQN: REPLAY, PPO: ROLLOUT}


@pytest.mark.parametrize(
    ("kind", "old", "new"), [(kind, old, new) for kind, names in RENAMED.items() for old, new in names.items()]
)
def test_the_old_name_of_a_renamed_option_is_refused_with_the_new_one(kind: type[Model], old: str, new: str) -> None:
    with pytest.raises(ConfigError, match=rf"model\.{old} was renamed: use model\.{new}$"):
        kind((3,), 2, **{old: 1})  # type: ignore[arg-type]


def test_every_new_name_is_an_option_and_no_old_one_is() -> None:
    for options, names in ((DQNOptions, REPLAY), (IQNOptions, REPLAY), (PPOOptions, ROLLOUT)):
        assert names == options.RENAMED
        assert all(hasattr(options(), new) and not hasattr(options(), old) for old, new in names.items())


def test_an_agent_needs_an_action() -> None:
    with pytest.raises(ConfigError, match="n_actions is 0: an agent needs at least one action"):
        DQN((3,), 0)


def test_options_reach_the_learner_and_the_buffer() -> None:
    model = DQN(
        3, 2, hidden=[5, 6], dueling=True, double=False, lr=0.5, lr_final=0.1, lr_updates=9, gamma=0.5, n_step=3,
        n_frames=2, batch_size=7, updates_per_round=4, learning_starts=11, buffer_size=50, max_grad_norm=2.0, tau=0.3,
        target_update_interval=8,
    )  # fmt: skip
    network, learner, buffer = model.spec.network, model.spec.learner(), model.memory.shape
    assert (network.inputs, network.hidden, network.outputs, network.dueling) == (6, (5, 6), 2, True)
    assert (learner.updates, learner.batch, learner.double) == (4, 7, False)
    assert (buffer.capacity, buffer.frames, buffer.observation) == (50, 2, (3,))
    tensors = model.state.tensors
    stored = {name.removeprefix("hyper."): tensors[name].item() for name in tensors if "hyper" in name}
    rates = {"lr": 0.5, "lr_final": 0.1, "lr_updates": 9, "lr_shape": 0}
    assert stored == {**rates, "clip": 2.0, "tau": 0.3, "target_interval": 8, "batch_growth": 1}


def test_hyper_parameters_keep_their_stored_names() -> None:
    """They are part of digests."""
    rates = {"lr", "lr_final", "lr_updates", "lr_shape"}
    exploration = {"epsilon", "epsilon_final", "epsilon_epochs", "epsilon_shape"}
    priorities = {"priority_alpha", "priority_beta", "priority_updates"}
    replay = {"gamma", "clip", "tau", "target_interval", "batch_growth"}
    assert DQN((3,), 2).hyper.keys() == rates | exploration | priorities | replay
    policy = {"clip", "ratio_clip", "value_clip", "value_weight", "entropy", "gamma", "lambda", "target_kl"}
    assert PPO((3,), 2).hyper.keys() == rates | policy
