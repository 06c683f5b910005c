"""Make the model that a `model` section names: a learner of this package, one that was registered, or a random one."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from parallel_agents.algorithms.base import Model
from parallel_agents.algorithms.dqn import DQN
from parallel_agents.algorithms.iqn import IQN
from parallel_agents.algorithms.ppo import PPO
from parallel_agents.core.errors import ActionError, ConfigError
from parallel_agents.core.observations import flat_shape
from parallel_agents.core.seeding import Purpose, generator
from parallel_agents.nn import Factory


class RandomModel:
    """Choose actions uniformly, from the agent's own draws; store nothing and learn nothing."""

    slow = False
    takes_masks = True

    def __init__(self, obs_shape: int | tuple[int, ...], n_actions: int, **unused: Any) -> None:
        if n_actions < 1:
            raise ConfigError(f"n_actions is {n_actions}: an agent needs at least one action")
        self.n_actions = n_actions
        self.place(seed=0, agent=0, worlds=1)

    def place(self, *, seed: int, agent: int, worlds: int) -> None:
        """Become agent `agent` of a run with this seed."""
        self._seed, self._agent = seed, agent
        self.start_epoch_action()

    def start_epoch_action(self, epoch: int = 0, **_: Any) -> None:
        """Start the draws of an epoch."""
        self._draws = generator(self._seed, Purpose.ACT, agent=self._agent, epoch=epoch)

    def end_epoch_action(self, epoch: int = 0, **_: Any) -> None:
        """Do nothing; called after each epoch."""

    def take_action(self, state: Any, mask: Any = None) -> int:
        """Return a random action, one of those that a mask (A,) allows."""
        if mask is None:
            return int(self._draws.integers(self.n_actions))
        allowed = np.flatnonzero(mask)
        if not len(allowed):
            raise ActionError("an action mask forbids every action: allow at least one")
        return int(allowed[self._draws.integers(len(allowed))])

    def train_step(self) -> dict[str, float]:
        """Return that no update was made: there is nothing to learn."""
        return {"updates": 0}

    def state_dict(self) -> dict[str, int]:
        """Return an empty state: the draws of an epoch follow from its number."""
        return {}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Do nothing: there is no state."""


ALGORITHMS: dict[str, Any] = {"dqn": DQN, "iqn": IQN, "ppo": PPO, "random": RandomModel}
BUILT_IN = frozenset(ALGORITHMS)
ON_POLICY = {"ppo"}
TAKES_NETWORK = ("dqn", "ppo")


def register_algorithm(name: str, model: Callable[..., Any], *, on_policy: bool = False) -> None:
    """Let `model.algorithm = name` and `--algo name` make this kind of model.

    model: called with an observation shape, the actions, and the options of the `model` section; an on-policy one also
    with `rollout` and `epochs`, the turns and epochs between two rounds. Actions are a number, a tuple of numbers, or a
    `SquashedGaussian` with the bounds of continuous ones. A name may be registered again, as by a notebook cell.
    """
    if name in BUILT_IN and ALGORITHMS[name] is not model:
        raise ConfigError(f"an algorithm named {name!r} exists already: choose another name")
    ALGORITHMS[name] = model
    if on_policy:
        ON_POLICY.add(name)


_TEMPLATES = {"a2c": "parallel_agents.examples.a2c:A2C", "sac": "parallel_agents.examples.sac:SAC"}


def _hint(name: str) -> str:
    """Return what was likely meant by a name that no algorithm has: another case, a template, or a class of a file.

    >>> _hint("PPO"), _hint("mine.py"), _hint("unknown")
    ('; did you mean ppo? Allowed is', '; did you mean mine.py:Class? Allowed is', ': allowed is')
    """
    small = name.lower()
    meant = f"{name}:Class" if name.endswith(".py") else small if small in ALGORITHMS else _TEMPLATES.get(small)
    return f"; did you mean {meant}? Allowed is" if meant else ": allowed is"


def model_from_config(
    section: Mapping[str, Any],
    obs_shape: Any,
    actions: Any,
    *,
    rollout: int = 128,
    epochs: int = 1,
    network: Factory | None = None,
) -> Any:
    """Return a fresh model as a `model` section describes it; `algorithm` defaults to DQN.

    obs_shape: a number, a shape, or the shapes of an observation's parts in a dict or tuple.
    rollout, epochs: turns and epochs between two rounds, for on-policy learners.
    network: makes a `torch.nn.Module` of the user's own, for DQN and PPO.
    `weights` in the section is a file of `Model.save_weights` to start from.

    >>> type(model_from_config({"algorithm": "dqn", "hidden": (8,)}, (4,), 2)).__name__
    'DQN'
    """
    options, obs_shape = dict(section), flat_shape(obs_shape)
    name, weights = options.pop("algorithm", "dqn"), options.pop("weights", None)
    if name not in ALGORITHMS:
        raise ConfigError(
            f"model.algorithm is {name!r}{_hint(str(name))} {', '.join(sorted(ALGORITHMS))}, or a learner of "
            f"your own as FILE.py:Class or module:Class ({' and '.join(_TEMPLATES.values())})"
        )
    if network is not None:
        if name in BUILT_IN and name not in TAKES_NETWORK:
            raise ConfigError(f"model.algorithm {name!r} takes no network of your own: use {', '.join(TAKES_NETWORK)}")
        options["network"] = network
    if name in BUILT_IN - ON_POLICY and not isinstance(actions, int):
        raise ConfigError(f"model.algorithm {name!r} needs a number of actions, found {actions!r}: use 'ppo' instead")
    if name in ON_POLICY:
        options |= {"rollout": rollout, "epochs": epochs}
    if name not in BUILT_IN:
        try:
            inspect.signature(ALGORITHMS[name]).bind(obs_shape, actions, **options)
        except TypeError as error:
            raise ConfigError(f"model.algorithm {name!r} does not take this `model` section: {error}") from error
    model = ALGORITHMS[name](obs_shape, actions, **options)
    if weights is not None:
        if not isinstance(weights, str) or not isinstance(model, Model):
            raise ConfigError(f"model.weights is {weights!r}: give the path of a file, for a learner that has weights")
        model.load_weights(weights)
    return model
