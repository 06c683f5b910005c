"""Environments made of objects and vectorised ones give the same digest; replicas equal single runs."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from tests.env.line_worlds import Line, LineOfObjects, tiny

ORDERS = ("simultaneous", "sequential")


@pytest.mark.parametrize(
    ("worlds", "order", "autoreset", "lives", "freezes"),
    [
        case
        for case in itertools.product((1, 3), ORDERS, (False, True), (False, True), (False, True))
        if case[3] or case[4] or not case[2]
    ],
)
def test_the_same_game_vectorised_and_made_of_objects_gives_the_same_digest(
    worlds: int, order: str, autoreset: bool, lives: bool, freezes: bool
) -> None:
    config = tiny(
        experiment={"worlds": worlds, "autoreset": autoreset, "max_turns": 10},
        world={"lives": lives, "freezes": freezes},
        parallel={"turn_order": order},
        model={"n_frames": 2},
    )
    arrays, objects = Line(config=config).run_experiment(), LineOfObjects(config=config).run_experiment()
    assert arrays["digest"] == objects["digest"]
    for name in ("turns", "transitions", "updates", "mean_reward", "recomputed_share"):
        assert arrays[name] == objects[name], name
    assert arrays["updates"] > 0
    assert (arrays["recomputed_share"] > 0) == (order == "sequential")


class OwnTurns(Line):
    """Overrides take_turn, so that replicas take their turns one after the other; results must not change."""

    def take_turn(self) -> None:
        super().take_turn()


@pytest.mark.parametrize("kind", [Line, OwnTurns, LineOfObjects])
@pytest.mark.parametrize(("lives", "autoreset"), [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("frames", [1, 3])
def test_replicas_equal_single_runs(kind: Any, lives: bool, autoreset: bool, frames: int) -> None:
    def run(**experiment: int) -> dict[str, Any]:
        lengths = {"worlds": 2, "autoreset": autoreset, "epochs": 8, "max_turns": 12}
        config = tiny(experiment={**lengths, **experiment}, world={"lives": lives}, model={"n_frames": frames})
        return dict(kind(config=config).run_experiment())

    together = run(seed=3, seeds=3)
    single = [run(seed=seed) for seed in (3, 4, 5)]
    assert together["digests"] == [one["digest"] for one in single]
    assert len(set(together["digests"])) == 3
    for name in ("transitions", "updates"):
        assert together[name] == sum(one[name] for one in single), name
    if lives and not autoreset:
        assert len({one["turns"] for one in single}) > 1, "the case is to have replicas that end at different turns"


@pytest.mark.parametrize("kind", [Line, OwnTurns])
def test_replicas_with_standalone_models_equal_single_runs(kind: Any) -> None:
    """A model is not called for turns of other replicas, so its random numbers do not shift."""

    def rewards(**experiment: int) -> Any:
        rewards_per_epoch: list[Any] = []

        class Recorder:
            def __getattr__(self, name: str) -> Any:
                return (
                    (lambda stats: rewards_per_epoch.append(stats.rewards)) if name == "on_epoch" else (lambda *_: None)
                )

        model = {"algorithm": "random"}
        config = tiny(experiment={"epochs": 4, "max_turns": 12, **experiment}, world={"lives": True})
        kind(config={**config, "model": model}).run_experiment(callbacks=[Recorder()])
        return np.array(rewards_per_epoch)

    together = rewards(seed=3, seeds=2)
    assert together.shape == (4, 6)
    np.testing.assert_array_equal(together[:, :3], rewards(seed=3))
    np.testing.assert_array_equal(together[:, 3:], rewards(seed=4))


def test_each_world_has_its_own_agent_objects_and_one_model_per_agent() -> None:
    game = LineOfObjects(config=tiny(experiment={"worlds": 3}))
    game.run_experiment()
    copies = game.copies_of(1)
    assert len({id(copy) for copy in copies}) == 3
    assert len({id(copy.field) for copy in copies}) == 3
    assert len({id(copy.model) for copy in copies}) == 1, "agent 1 of every world is one agent"
    assert len({copy.place for i in range(3) for copy in game.copies_of(i)}) > 1


@pytest.mark.parametrize("kind", [Line, LineOfObjects])
@pytest.mark.parametrize("exploration", [0.0, 1.0])
def test_an_evaluation_repeats_and_does_not_change_the_digest(kind: Any, exploration: float) -> None:
    game = kind(config=tiny(world={"lives": True}))
    before = game.run_experiment(4)["digest"]
    judged = game.evaluate(5, exploration=exploration)
    assert judged.returns.shape == (3, 5)
    np.testing.assert_array_equal(judged.returns, game.evaluate(5, exploration=exploration).returns)
    assert game.run_experiment(4)["digest"] == before


def test_an_environment_that_overrides_take_turn_can_be_evaluated() -> None:
    plain, own = Line(config=tiny()), OwnTurns(config=tiny())
    plain.run_experiment()
    own.run_experiment()
    np.testing.assert_array_equal(plain.evaluate(4).returns, own.evaluate(4).returns)
