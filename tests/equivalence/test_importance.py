"""Draws by event class within stacks: the same bytes in every mode, each agent by its own classes and weights."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from parallel_agents.algorithms import DQN, IQN
from parallel_agents.core.config import merge
from parallel_agents.core.errors import ConfigError, ContractError, NonFiniteError, ShapeError
from parallel_agents.env import Agent
from tests.equivalence.test_algorithms import IQN_MODEL, PPO_MODEL
from tests.equivalence.test_resume import checkpointed, resume
from tests.equivalence.worlds import Odd, run

HEARD = ("on_start", "on_epoch", "on_event", "on_end")


class Eventful(Odd):
    """`Odd` in which some turns are rare and have another value than their reward."""

    default_config = merge(Odd.default_config, {"experiment": {"worlds": 2}})

    def events(self) -> Any:
        return np.where(self.numbers[..., 1] < 0.2, 0, 1), np.abs(self.place[..., 0])


class Plain(Eventful):
    """`Eventful` without a model section."""

    default_config = {name: section for name, section in Eventful.default_config.items() if name != "model"}


class Various(Eventful):
    """Agents with other classes, weights and learners side by side."""

    event_types = ("quiet", "crisis_parent")
    shardable = True
    default_config = merge(Eventful.default_config, {"world": {"agents": 5}})
    weight = 5.0

    def setup_agents(self) -> None:
        small = {"batch_size": 6, "updates_per_round": 2, "learning_starts": 5, "buffer_size": 40}
        own: list[dict[str, Any]] = [
            {"crisis_parent_weight": self.weight, "class_weights": {"quiet": 2.0}},
            {"class_weights": {"quiet": 0.5, "another": 3.0}, "alpha": 1.0},
            {"class_weights": {"quiet": 1.0}, "learned": True, "beta": 1.0},
        ]
        models = [DQN((3,), 3, hidden=(5,), **small, importance=importance) for importance in own]
        models += [IQN((3,), 3, layer=6, n_frames=2, **small, importance=own[0]), DQN((3,), 3, hidden=(5,), **small)]
        self.agents = [Agent(model=model) for model in models]


CASES: dict[str, tuple[type[Odd], dict[str, Any]]] = {
    "dqn": (Eventful, {"model": {"importance": {"alpha": 1.0}}}),
    "dqn without labels": (Odd, {"model": {"importance": {"learned": True}}}),
    "dqn autoreset": (Eventful, {"model": {"importance": {}}, "experiment": {"autoreset": True}}),
    "iqn": (Plain, {"model": {**IQN_MODEL, "importance": {"beta": 1.0}}}),
    "ppo": (Plain, {"model": {**PPO_MODEL, "importance": {"alpha": 1.0}}}),
    "ppo autoreset": (Plain, {"model": {**PPO_MODEL, "importance": {}}, "experiment": {"autoreset": True}}),
    "various": (Various, {}),
}


@pytest.mark.parametrize("name", ["dqn autoreset", "ppo autoreset", "various"])
def test_a_resumed_run_draws_what_the_whole_run_draws(name: str, tmp_path: Path) -> None:
    cls, problem = CASES[name]
    whole = run(cls, merge(problem, {"experiment": {"epochs": 14}}))["digest"]
    checkpointed(cls, problem, tmp_path, 7)
    assert resume(cls, problem, tmp_path, 14)["digest"] == whole


def test_with_one_class_the_bytes_are_those_of_uniform_sampling() -> None:
    class Calm(Eventful):
        def events(self) -> Any:
            return np.ones(self.place.shape[:2], np.int64), None

    def weights(model: dict[str, Any]) -> list[bytes]:
        game = Calm(config={"model": model})
        game.run_experiment()
        return [agent.model.state["online"].numpy().tobytes() for agent in game.agents]

    assert weights({"importance": {}}) == weights({})


def test_the_class_weights_of_one_agent_change_no_other_agent() -> None:
    def states(weight: float) -> list[bytes]:
        class Apart(Various):
            def apply_agent(self, index: int, actions: Any) -> Any:
                return np.float32(index) - np.clip(actions, 0, 2).astype(np.float32)

        Apart.weight = weight
        game = Apart(config={"parallel": {"backend": "inline"}})
        game.run_experiment()
        return [agent.model.state["online"].numpy().tobytes() for agent in game.agents]

    one, other = states(5.0), states(50.0)
    assert [a == b for a, b in zip(one, other, strict=True)] == [False, True, True, False, True]


@pytest.mark.parametrize("name", ["dqn", "ppo"])
def test_the_metrics_of_a_round_describe_its_samples(name: str) -> None:
    cls, problem = CASES[name]
    game = cls(config=problem)
    published: list[Any] = []
    game.run_experiment(callbacks=[SimpleNamespace(**dict.fromkeys(HEARD, lambda *_: None), on_round=published.append)])
    metrics = published[-1].metrics
    assert ((metrics["crisis_parent_ratio_in_batch"] >= 0) & (metrics["crisis_parent_ratio_in_batch"] <= 1)).all()
    assert (metrics["importance_weights_mean"] <= 1).all()
    assert ((metrics["effective_sample_share"] > 0) & (metrics["effective_sample_share"] <= 1)).all()


def test_train_step_draws_by_class() -> None:
    options = {"hidden": (5,), "learning_starts": 5, "importance": {"beta": 1.0, "alpha": 1.0}}

    def trained(*, labelled: bool) -> bytes:
        model = DQN((1,), 2, **options)
        assert model.event_types == ("crisis_parent", "regular_parent")
        for t in range(40):
            label = {"event_type": int(t % 10 > 0), "event_value": 1.0} if labelled else {}
            model.memory.add([t / 40], t % 2, float(t % 7), t % 5 == 4, **label)
        assert all(model.train_step() > 0 for _ in range(3))
        return model.state["online"].numpy().tobytes()

    assert trained(labelled=True) == trained(labelled=True)
    assert trained(labelled=True) != trained(labelled=False)


@pytest.mark.parametrize(
    ("events", "error", "message"),
    [
        (lambda n, w: (np.zeros((n, w + 1), int), None), ShapeError, r"events\(\) gave types of shape \(3, 3\)"),
        (lambda n, w: (np.zeros((n, w)), None), ShapeError, "wanted are whole numbers"),
        (
            lambda n, w: (np.full((n, w), 2), None),
            ContractError,
            r"gave types 2 .. 2: give positions in its event_types",
        ),
        (
            lambda n, w: (np.zeros((n, w), int), np.full((n, w), np.nan)),
            NonFiniteError,
            "agent_0 in world 0 the value nan",
        ),
    ],
)
def test_bad_events_are_refused(events: Any, error: type[Exception], message: str) -> None:
    class Wrong(Eventful):
        def events(self) -> Any:
            return events(*self.place.shape[:2])

    with pytest.raises(error, match=message):
        run(Wrong, CASES["dqn"][1])


def test_unusable_event_options_are_refused_before_a_run() -> None:
    class Unknown(Eventful):
        event_types = ("flood", "regular_parent")

    with pytest.raises(ContractError, match="holds 'flood', which agent_0 does not know"):
        run(Unknown, CASES["dqn"][1])
    with pytest.raises(ConfigError, match=r"unknown key model\.importance\.gamma"):
        Eventful(config={"model": {"importance": {"gamma": 1.0}}})
    with pytest.raises(ConfigError, match=r"weight of crisis_parent is -1\.0"):
        Eventful(config={"model": {"importance": {"crisis_parent_weight": -1.0}}})
    with pytest.raises(NonFiniteError, match="event_value with NaN"):
        DQN((1,), 2, importance={}).memory.add([0.0], 0, 1.0, False, event_type=0, event_value=float("nan"))
