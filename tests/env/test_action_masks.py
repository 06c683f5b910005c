"""Action masks: forbidden actions are never chosen, masks are stored, and learning uses them."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest

from parallel_agents import Agent, ParallelEnvironment
from parallel_agents.algorithms import DQN, PPO, RandomModel
from parallel_agents.core.config import merge
from parallel_agents.core.errors import ActionError, ConfigError, ShapeError
from parallel_agents.core.types import Transitions
from parallel_agents.nn import SquashedGaussian
from tests.equivalence.worlds import Odd, run

SMALL = {"batch_size": 6, "updates_per_round": 2, "learning_starts": 5, "buffer_size": 60, "hidden": (5,)}
PPO_MODEL = {"algorithm": "ppo", "hidden": (5,), "n_epochs": 2, "n_minibatches": 2}
IQN_MODEL = {"algorithm": "iqn", "layer": 6, "n_frames": 2, **{k: v for k, v in SMALL.items() if k != "hidden"}}


class Forbidding(Odd):
    """`Odd`, where two of the three actions are forbidden now and then, depending on where one stands."""

    default_config: ClassVar = {**Odd.default_config, "model": {}}

    def action_masks(self) -> Any:
        masks = np.ones((len(self.agents), self.n_worlds, 3), np.bool_)
        here = np.abs(self.place[..., 0])
        masks[..., 0] = here < 0.4
        masks[..., 2] = (here * 10).astype(int) % 3 != 0
        masks[self.dead] = False  # nobody is asked there
        if hasattr(self, "numbers"):
            masks[~self.can_act()] = False
        return masks

    def apply_agent(self, index: int, actions: Any) -> Any:
        masks = self.action_masks()[index]
        asked = self.acting[index] & ~self.dead[index] & self.can_act()[index]
        chosen = masks[np.arange(self.n_worlds), actions]
        if self.config.parallel.turn_order == "sequential":
            assert chosen[asked].all()
        return super().apply_agent(index, actions)


class Watching(Forbidding):
    """Looks at all actions before they are applied: in a simultaneous turn masks are those of its start."""

    def apply_actions(self, actions: Any) -> Any:
        masks = self.action_masks()
        asked = self.acting & ~self.dead
        chosen = np.take_along_axis(masks, np.asarray(actions)[..., None], -1)[..., 0]
        assert chosen[asked].all()
        return super().apply_actions(actions)


CASES: dict[str, tuple[type[Odd], dict[str, Any]]] = {
    "dqn": (Watching, {"model": SMALL}),
    "dqn n-step": (Watching, {"model": {**SMALL, "n_step": 3}}),
    "dqn autoreset": (Watching, {"model": SMALL, "experiment": {"autoreset": True}}),
    "dqn sequential": (Forbidding, {"model": SMALL, "parallel": {"turn_order": "sequential"}}),
    "iqn": (Watching, {"model": IQN_MODEL}),
    "ppo": (Watching, {"model": PPO_MODEL}),
    "ppo sequential": (Forbidding, {"model": PPO_MODEL, "parallel": {"turn_order": "sequential"}}),
}
CASES = {name: (cls, merge({"experiment": {"worlds": 2}}, problem)) for name, (cls, problem) in CASES.items()}


def test_masks_change_what_is_learned() -> None:
    """Train on the same turns with and without masks: forbidden actions of the next state must not count."""
    losses: list[float] = []
    for masked in (False, True):
        model = DQN((2,), 3, **{**SMALL, "hidden": (8,), "gamma": 0.9, "epsilon": 0.0})
        if masked:
            model.use_masks()
        ring = model.memory.ring
        for turn in range(8):
            one = np.zeros((1, 1), np.bool_)
            extras = {"masks": np.array([[[turn % 3 == a for a in range(3)]]])} if masked else {}
            ring.add(
                Transitions(
                    observations=np.array([[[turn % 2, 1.0 - turn % 2]]], np.float32),
                    actions=np.zeros((1, 1), np.int64),
                    rewards=np.ones((1, 1), np.float32),
                    terminated=one,
                    truncated=one,
                    valid=~one,
                    first=np.full((1, 1), turn == 0),
                    present=np.ones(1, np.bool_),
                    version=0,
                    extras=extras,
                )
            )
        batch = ring.gather(ring.tail[:, None] + np.arange(6), n_step=1, gammas=np.ones(1))
        if masked:
            expected = [[(turn + 1) % 3 == a for a in range(3)] for turn in range(6)]
            assert batch["next_masks"][0].tolist() == expected
        losses.append(model.train_step())
    assert losses[0] != losses[1]


class Alone(ParallelEnvironment):
    """One agent of objects with a mask of its own."""

    default_config: ClassVar = {"experiment": {"epochs": 3, "max_turns": 5, "worlds": 2}}
    body: ClassVar[type[Agent]] = Agent

    def setup_agents(self) -> None:
        self.agents = [self.body(model=self.make_model((1,), 3))]


class Body(Agent):
    def pov(self, world: Any) -> Any:
        return [1.0]

    def act(self, world: Any, action: Any) -> float:
        assert action == 2
        return 1.0

    def action_mask(self, world: Any) -> Any:
        return [False, False, True]


@pytest.mark.parametrize("algorithm", ["dqn", "ppo", "random"])
def test_action_mask_of_an_agent_object_is_obeyed(algorithm: str) -> None:
    class Game(Alone):
        body = Body

    game = Game(config={"model": {"algorithm": algorithm}})
    assert game.run_experiment()["mean_reward"] == 5.0
    assert game.evaluate(3).mean_return == 5.0


def test_a_mask_without_allowed_actions_raises_with_agent_and_world() -> None:
    class Nothing(Odd):
        def action_masks(self) -> Any:
            masks = np.ones((3, 2, 3), np.bool_)
            masks[1, 1] = False
            return masks

    config = {"experiment": {"worlds": 2}, "world": {"freeze": False, "die": False}}
    with pytest.raises(ActionError, match="agent_1 in world 1 forbids every action"):
        run(Nothing, config)


def test_a_mask_of_the_wrong_shape_raises() -> None:
    class Short(Odd):
        def action_masks(self) -> Any:
            return np.ones((3, 1, 2), np.bool_)

    with pytest.raises(ShapeError, match=r"agent_0 has shape \(1, 2\), wanted is \(worlds, actions\) = \(1, 3\)"):
        run(Short, {})


def test_a_scripted_model_that_chooses_a_forbidden_action_raises() -> None:
    class Stubborn(RandomModel):
        takes_masks = False

        def take_action(self, state: Any, mask: Any = None) -> int:
            return 0

    class Game(Alone):
        def setup_agents(self) -> None:
            self.agents = [Body(model=Stubborn((1,), 3))]

    with pytest.raises(ActionError, match="chose action 0 in world 0, which its mask forbids: choose one of"):
        Game().run_experiment()


def test_masks_on_continuous_actions_raise() -> None:
    class Game(Alone):
        def setup_agents(self) -> None:
            self.agents = [Body(model=PPO((1,), SquashedGaussian((0.0,), (1.0,))))]

    with pytest.raises(ConfigError, match="actions are continuous"):
        Game()
