"""Every learner: acting and updating in a stack, against a loop over ordinary learners (benchmarks/plain.py).

Both sides do the same arithmetic on the same data; a stack must never be slower than the loop, from 2 agents on.
Updates are rounds of the inline backend. At sorrel's size the products themselves, which no stack makes quicker, take
most of an update, so ratios there are close to 1: read them on a quiet machine.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.measure import Done, Effort, Row, Side, compare
from benchmarks.plain import PlainDQN, PlainIQN, PlainPPO, mlp
from benchmarks.plain_recurrent import SEQUENCE, PlainRecurrentDQN, PlainRecurrentPPO
from benchmarks.run import Bench
from parallel_agents.acting import Inference, Recall
from parallel_agents.adapters.gymnasium import gymnasium_environment
from parallel_agents.models import DQN, IQN, PPO, Model
from parallel_agents.models.stack import rehearse
from parallel_agents.networks import Invariance, ModuleNetwork
from parallel_agents.networks.numerics import require
from parallel_agents.runtime.backends.inline import InlineBackend
from parallel_agents.tracking.timeline import Timeline
from parallel_agents.types import Identity, Snapshot, Weights

AGENTS = (2, 8, 32, 128)
ACTIONS = 4
SIZES = {"small": (8, 64), "sorrel": (750, 250)}
"""Inputs and units of a hidden layer."""
QUICK_AGENTS = 8
"""Of the large size, at most, in a quick run."""
SECONDS = 0.1
"""That a measurement of one way takes, at least."""


@dataclass(frozen=True)
class Learner:
    """One algorithm on both sides, at a number of inputs and units."""

    ours: Callable[[int, int], Model]
    plain: Callable[[int, int], Any]
    updates: int
    """Of a round: what is done once for all of them counts for so many."""
    replays: bool = True
    """Learns from sampled batches; otherwise from whole trajectories."""
    sizes: Mapping[str, tuple[int, int]] = field(default_factory=lambda: SIZES)
    agents: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Of a size, where not all of `AGENTS` are measured."""


ROLLOUT = {"worlds": 8, "rollout": 32, "passes": 2, "minibatches": 4}
SEQUENCES: dict[str, Any] = {"recurrent": True, "sequence": SEQUENCE}
PICTURE = (4, 9, 9)
FEW = {"sorrel": (2, 8, 32)}
"""Sequences of 128 large agents would take minutes."""


def own_module(inputs: int, units: int) -> nn.Module:
    """A network as a user writes it."""
    return nn.Sequential(nn.Linear(inputs, units), nn.LayerNorm(units), nn.ReLU(), nn.Linear(units, ACTIONS))


class OwnConvolution(nn.Module):
    """Another one, for pictures."""

    def __init__(self, units: int) -> None:
        super().__init__()
        self.seen = nn.Conv2d(PICTURE[0], 16, 3)
        self.body, self.head = nn.Linear(16 * 49, units), nn.Linear(units, ACTIONS)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.seen(x)).flatten(1)
        return self.head(torch.relu(self.body(x)))  # type: ignore[no-any-return]


LEARNERS = {
    "dqn": Learner(
        lambda inputs, units: DQN((inputs,), ACTIONS, hidden=(units, units)),
        lambda inputs, units: PlainDQN(mlp(inputs, (units, units), ACTIONS)),
        updates=8,
    ),
    "iqn": Learner(
        lambda inputs, units: IQN((inputs,), ACTIONS, layer=units, n_frames=1),
        lambda inputs, units: PlainIQN(inputs, units, ACTIONS),
        updates=4,
    ),
    "ppo": Learner(
        lambda inputs, units: PPO((inputs,), ACTIONS, hidden=(units, units), **ROLLOUT),
        lambda inputs, units: PlainPPO(*(mlp(inputs, (units, units), out, nn.Tanh) for out in (ACTIONS, 1))),
        updates=8,
        replays=False,
    ),
    "recurrent dqn": Learner(
        lambda inputs, units: DQN((inputs,), ACTIONS, hidden=(units, units), **SEQUENCES),
        lambda inputs, units: PlainRecurrentDQN(inputs, units, ACTIONS),
        updates=2,
        agents=FEW,
    ),
    "recurrent ppo": Learner(
        lambda inputs, units: PPO((inputs,), ACTIONS, hidden=(units, units), **ROLLOUT, **SEQUENCES),
        lambda inputs, units: PlainRecurrentPPO(inputs, units, ACTIONS),
        updates=8,
        replays=False,
        agents=FEW,
    ),
    "dqn, own module": Learner(
        lambda inputs, units: DQN((inputs,), ACTIONS, network=partial(own_module, inputs, units)),
        lambda inputs, units: PlainDQN(own_module(inputs, units)),
        updates=8,
        sizes={"small": SIZES["small"]},
    ),
    "dqn, own convolution": Learner(
        lambda inputs, units: DQN(PICTURE, ACTIONS, network=partial(OwnConvolution, units)),
        lambda inputs, units: PlainDQN(OwnConvolution(units)),
        updates=4,
        sizes={"small": (math.prod(PICTURE), 64)},
    ),
}


def benches(effort: Effort) -> Iterator[tuple[str, Bench]]:
    require()
    for name, learner in LEARNERS.items():
        for size, (inputs, units) in learner.sizes.items():
            for agents in learner.agents.get(size, AGENTS):
                what = f"{name} {size} ({inputs} inputs, {units} units), {agents} agents: module loop / stack"
                yield what, partial(_pair, what, learner, agents, (inputs, units), effort)
    yield "CartPole, dqn: ten runs one by one / ten seeds in one stack", partial(_replicas, effort)


def _pair(what: str, learner: Learner, agents: int, shape: tuple[int, int], effort: Effort) -> Iterator[Row]:
    if effort.quick and agents > QUICK_AGENTS and shape == SIZES["sorrel"]:
        for way in ("acting", "updating"):
            reason = "left out of a quick run, in which it alone would take minutes"
            yield Row(name=f"{way}, {what}", ratio=None, goal=1.0, unit="times as fast", repeats=0, skipped=reason)
        return
    ours = Seated.of(learner.ours(*shape), agents)
    plain = [learner.plain(*shape) for _ in range(agents)]
    yield _compared(f"acting, {what}", _acting(ours, plain), effort)
    yield _compared(f"updating, {what}", _updating(ours, plain, learner), effort)


@dataclass(frozen=True)
class Seated:
    """What backends ask of a stack: agents without buffers, since the benchmark reads made-up data."""

    model: Model
    identity: Identity
    learner: Any
    invariance: Invariance

    @classmethod
    def of(cls, model: Model, agents: int) -> Seated:
        blueprint, identity = model.blueprint, _identity(agents)
        probed = Invariance(True, "the library's own layers")
        if isinstance(blueprint.network, ModuleNetwork):
            probed = rehearse(blueprint, agents, "cpu", workers=1)
        return cls(model, identity, blueprint.learner(), probed)

    def __len__(self) -> int:
        return len(self.identity)


def _acting(ours: Seated, plain: list[Any]) -> tuple[Side, Side]:
    """One turn of all agents in one world: observations as numpy in, chosen actions as numpy out."""
    blueprint, agents = ours.model.blueprint, len(ours)
    inference = Inference(blueprint.network, agents, 1, together=ours.invariance.holds)
    inference.publish(Weights(0, blueprint.network.init(ours.identity)))
    recall = Recall(agents, 1, blueprint.state)
    draws = np.random.default_rng(0)
    seen = draws.random((agents, 1, math.prod(blueprint.observation)), np.float32)
    own = seen.reshape(agents, 1, *blueprint.observation)
    numbers = draws.random((agents, 1, blueprint.slots))
    explore, first = np.full(agents, 0.1), np.zeros((agents, 1), np.bool_)

    def stack() -> Done:
        outputs = recall.outputs(inference.forward(recall.inputs(seen, first)))
        actions, _ = blueprint.choose(outputs, numbers, explore, None)
        return Done({"actions": len(actions)})

    def loop() -> Done:
        return Done({"actions": sum(len(one.act(torch.from_numpy(its))) for one, its in zip(plain, own, strict=True))})

    words = "every agent's network is asked once and every agent's action is chosen"
    return Side("module loop", f"{words}, one agent after the other", loop), Side(
        "stack", f"{words}, all at once", stack
    )


def _updating(ours: Seated, plain: list[Any], learner: Learner) -> tuple[Side, Side]:
    """A round of all agents, from the same columns, as the inline backend learns it."""
    blueprint, agents = ours.model.blueprint, len(ours)
    seated = replace(ours, learner=blueprint.learner(updates=learner.updates))
    state = seated.learner.init(ours.identity, [ours.model.hyper] * agents)
    snapshot = blueprint.rehearsal(agents, updates=learner.updates)
    backend = InlineBackend([seated], [state], together=True, timeline=Timeline(enabled=False))

    def stack() -> Done:
        backend.submit(1, [lambda: snapshot])
        ((_, result),) = backend.result(1, 600.0)
        updates = int(result.updates.sum())
        if learner.replays:
            samples = snapshot["returns"].size
        else:  # a pass of so many minibatches goes once over all that is valid
            samples = int(snapshot["valid"].sum()) * updates // (agents * ROLLOUT["minibatches"])
        return Done({"updates": updates, "samples": samples}, backend.name)

    def loop() -> Done:
        before = sum(own.updates for own in plain), sum(own.samples for own in plain)
        for agent, own in enumerate(plain):
            own.learn(_columns(snapshot, agent, blueprint.observation, learner), learner.updates)
        after = sum(own.updates for own in plain), sum(own.samples for own in plain)
        return Done({"updates": after[0] - before[0], "samples": after[1] - before[1]})

    words = f"{learner.updates} updates of every agent from its own columns"
    return Side("module loop", f"{words}, one agent after the other", loop), Side(
        "stack", f"{words}, as one round", stack
    )


def _columns(snapshot: Snapshot, agent: int, picture: tuple[int, ...], learner: Learner) -> dict[str, Any]:
    own = {name: column[agent] for name, column in snapshot.columns.items() if name != "ready"}
    if not learner.replays:
        return own
    tensors = {name: torch.from_numpy(column) for name, column in own.items()}
    if len(picture) > 1:
        tensors |= {name: tensors[name].reshape(-1, *picture) for name in ("states", "next_states")}
    return tensors


def _identity(agents: int) -> Identity:
    return Identity((0,) * agents, tuple(range(agents)))


def _compared(name: str, sides: tuple[Side, Side], effort: Effort) -> Row:
    loop, stack = sides
    if effort.quick:
        return compare(name, loop, stack, goal=1.0, repeats=0)
    stack.do()
    began = time.perf_counter()
    stack.do()
    once = time.perf_counter() - began
    calls, repeats = max(1, min(100, int(SECONDS / once))), 5 if once < 0.3 else 2
    return compare(name, loop, stack, goal=1.0, repeats=repeats, calls=calls)


def _replicas(effort: Effort) -> list[Row]:
    """Ten seeds of CartPole as ten agents of one stack, against the ten runs one by one: the same bytes."""
    model = {"algorithm": "dqn", "learning_starts": 500}
    digests: dict[str, list[str]] = {}

    def run(seed: int, seeds: int) -> tuple[float, dict[str, Any]]:
        experiment = {"epochs": effort.of(16, 6), "seed": seed, "seeds": seeds}
        config = {"experiment": experiment, "model": model, "parallel": {"backend": "inline"}}
        game = gymnasium_environment("CartPole-v1")(config=config)
        game.prepare()
        began = time.perf_counter()
        summary = game.run_experiment()
        return time.perf_counter() - began, summary

    def side(name: str, work: str, runs: list[tuple[int, int]]) -> Side:
        def do() -> Done:
            ended = [run(*one) for one in runs]
            digests[name] = [digest for _, summary in ended for digest in summary["digests"]]
            counts = {what: sum(summary[what] for _, summary in ended) for what in ("transitions", "updates")}
            return Done(counts, ended[0][1]["backend"], sum(seconds for seconds, _ in ended))

        return Side(name, work, do)

    row = compare(
        "CartPole, dqn: ten runs one by one / ten seeds in one stack",
        side("one by one", "ten whole runs, a seed each", [(seed, 1) for seed in range(10)]),
        side("one stack", "the same ten seeds as replicas of one run", [(0, 10)]),
        goal=1.0,
        repeats=effort.repeats(3),
    )
    if digests["one by one"] != digests["one stack"]:
        raise ValueError("a stack of replicas gave other bytes than the single runs")
    return [row]
