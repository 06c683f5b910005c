"""Every learner: acting and updating in a stack, compared with a loop over ordinary learners (benchmarks/plain.py).

Both sides do the same arithmetic on the same data; a stack must never be slower than the loop, from 2 agents on.
Updates are rounds of the inline backend. At sorrel's size matrix products, which no stack makes faster, take most of an
update, so that ratios are close to 1: measure them on an idle machine.
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
from parallel_agents.algorithms import DQN, IQN, PPO, Model
from parallel_agents.algorithms.acting import Inference, RecurrentState, Weights
from parallel_agents.algorithms.learner import Snapshot
from parallel_agents.core.seeding import Identity
from parallel_agents.engine.stacks import probe_stack, random_snapshot
from parallel_agents.env.adapters.gymnasium import gymnasium_environment
from parallel_agents.execution.backend import InlineBackend
from parallel_agents.nn import Invariance, ModuleNetwork
from parallel_agents.nn.numerics import require
from parallel_agents.tracking.timeline import Timeline

ACTIONS = 4
SIZES = {"small": (8, 64), "sorrel": (750, 250)}
"""Number of inputs, and units of a hidden layer."""
AGENTS = {"small": (2, 32), "sorrel": (8,)}
"""Numbers of agents that are measured: with more, ratios of small networks grow and those of large ones stay."""
SECONDS = 0.1
"""The least duration of one measurement."""


@dataclass(frozen=True)
class Learner:
    """An algorithm on both sides, made for a number of inputs and units."""

    ours: Callable[[int, int], Model]
    plain: Callable[[int, int], Any]
    updates: int
    """Updates per round."""
    replays: bool = True
    """Whether it learns from sampled batches; otherwise from whole trajectories."""
    sizes: Mapping[str, tuple[int, int]] = field(default_factory=lambda: SIZES)


ROLLOUT = {"worlds": 8, "rollout": 31, "n_epochs": 2, "n_minibatches": 4}
"""With the row after the last turn, a rollout has 32 rows: whole sequences."""
SEQUENCES: dict[str, Any] = {"recurrent": True, "sequence": SEQUENCE}
PICTURE = (4, 9, 9)


def own_module(inputs: int, units: int) -> nn.Module:
    """Return a network as a user writes it."""
    return nn.Sequential(nn.Linear(inputs, units), nn.LayerNorm(units), nn.ReLU(), nn.Linear(units, ACTIONS))


class OwnConvolution(nn.Module):
    """A network for pictures as a user writes it."""

    def __init__(self, units: int) -> None:
        super().__init__()
        self.encoder = nn.Conv2d(PICTURE[0], 16, 3)
        self.body, self.head = nn.Linear(16 * 49, units), nn.Linear(units, ACTIONS)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.encoder(x)).flatten(1)
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
    ),
    "recurrent ppo": Learner(
        lambda inputs, units: PPO((inputs,), ACTIONS, hidden=(units, units), **ROLLOUT, **SEQUENCES),
        lambda inputs, units: PlainRecurrentPPO(inputs, units, ACTIONS),
        updates=8,
        replays=False,
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
            for agents in AGENTS[size]:
                row = f"{name} {size} ({inputs} inputs, {units} units), {agents} agents: module loop / stack"
                yield row, partial(_pair, row, learner, agents, (inputs, units), effort)
    yield "CartPole, dqn: ten runs one by one / ten seeds in one stack", partial(_replicas, effort)


def _pair(name: str, learner: Learner, agents: int, shape: tuple[int, int], effort: Effort) -> Iterator[Row]:
    """Measure acting and updating of one learner."""
    ours = BenchStack.of(learner.ours(*shape), agents)
    plain = [learner.plain(*shape) for _ in range(agents)]
    yield _compared(f"acting, {name}", _acting(ours, plain), effort)
    yield _compared(f"updating, {name}", _updating(ours, plain, learner), effort)


@dataclass(frozen=True)
class BenchStack:
    """A stack as backends need it, without buffers: the benchmark uses made-up data."""

    model: Model
    identity: Identity
    learner: Any
    invariance: Invariance

    @classmethod
    def of(cls, model: Model, agents: int) -> BenchStack:
        """Return the stack of so many agents."""
        spec, identity = model.spec, _identity(agents)
        invariance = Invariance(True, "the library's own layers")
        if isinstance(spec.network, ModuleNetwork):
            invariance = probe_stack(spec, agents, "cpu", workers=1)
        return cls(model, identity, spec.learner(), invariance)

    def __len__(self) -> int:
        return len(self.identity)


def _acting(ours: BenchStack, plain: list[Any]) -> tuple[Side, Side]:
    """Return one turn of all agents in one world: numpy observations in, numpy actions out."""
    spec, agents = ours.model.spec, len(ours)
    inference = Inference(spec.network, agents, 1, together=ours.invariance.holds)
    inference.weights = Weights(0, spec.network.init(ours.identity))
    hidden = RecurrentState(agents, 1, spec.hidden_size)
    draws = np.random.default_rng(0)
    observations = draws.random((agents, 1, math.prod(spec.observation)), np.float32)
    shaped = observations.reshape(agents, 1, *spec.observation)
    numbers = draws.random((agents, 1, spec.slots))
    explore, first = np.full(agents, 0.1), np.zeros((agents, 1), np.bool_)

    def stack() -> Done:
        outputs = hidden.outputs(inference.forward(hidden.inputs(observations, first)))
        actions, _ = spec.choose(outputs, numbers, explore, None)
        return Done({"actions": len(actions)})

    def loop() -> Done:
        turns = zip(plain, shaped, strict=True)
        return Done({"actions": sum(len(learner.act(torch.from_numpy(rows))) for learner, rows in turns)})

    words = "every agent's network is asked once and every agent's action is chosen"
    return Side("module loop", f"{words}, one agent after the other", loop), Side(
        "stack", f"{words}, all at once", stack
    )


def _updating(ours: BenchStack, plain: list[Any], learner: Learner) -> tuple[Side, Side]:
    """Return a round of all agents, from the same columns, as the inline backend computes it."""
    spec, agents = ours.model.spec, len(ours)
    stack_of_agents = replace(ours, learner=spec.learner(updates=learner.updates))
    state = stack_of_agents.learner.init(ours.identity, [ours.model.hyper] * agents)
    snapshot = random_snapshot(spec, agents, updates=learner.updates)
    backend = InlineBackend([stack_of_agents], [state], together=True, timeline=Timeline(enabled=False))

    def stack() -> Done:
        backend.submit(1, [lambda: snapshot])
        ((_, result),) = backend.result(1, 600.0)
        updates = int(result.updates.sum())
        if learner.replays:
            samples = snapshot["returns"].size
        else:  # one epoch over the minibatches uses every valid row once
            samples = int(snapshot["valid"].sum()) * updates // (agents * ROLLOUT["n_minibatches"])
        return Done({"updates": updates, "samples": samples}, backend.name)

    def loop() -> Done:
        before = sum(one.updates for one in plain), sum(one.samples for one in plain)
        for agent, one in enumerate(plain):
            one.learn(_columns(snapshot, agent, spec.observation, learner), learner.updates)
        after = sum(one.updates for one in plain), sum(one.samples for one in plain)
        return Done({"updates": after[0] - before[0], "samples": after[1] - before[1]})

    words = f"{learner.updates} updates of every agent from its own columns"
    return Side("module loop", f"{words}, one agent after the other", loop), Side(
        "stack", f"{words}, as one round", stack
    )


def _columns(snapshot: Snapshot, agent: int, picture: tuple[int, ...], learner: Learner) -> dict[str, Any]:
    """Return the columns of one agent, as its ordinary learner takes them."""
    columns = {name: column[agent] for name, column in snapshot.columns.items() if name != "ready"}
    if not learner.replays:
        return columns
    tensors = {name: torch.from_numpy(column) for name, column in columns.items()}
    if len(picture) > 1:
        tensors |= {name: tensors[name].reshape(-1, *picture) for name in ("states", "next_states")}
    return tensors


def _identity(agents: int) -> Identity:
    return Identity((0,) * agents, tuple(range(agents)))


def _compared(name: str, sides: tuple[Side, Side], effort: Effort) -> Row:
    """Compare loop and stack, with as many calls as one measurement needs to last long enough."""
    loop, stack = sides
    if effort.quick:
        return compare(name, loop, stack, goal=1.0, repeats=0)
    stack.do()
    start = time.perf_counter()
    stack.do()
    once = time.perf_counter() - start
    calls, repeats = max(1, min(100, int(SECONDS / once))), 5 if once < 0.3 else 2
    return compare(name, loop, stack, goal=1.0, repeats=repeats, calls=calls)


def _replicas(effort: Effort) -> list[Row]:
    """Compare ten seeds of CartPole in one stack with the ten single runs; both must give the same bytes."""
    model = {"algorithm": "dqn", "learning_starts": 500}
    digests: dict[str, list[str]] = {}

    def run(seed: int, seeds: int) -> tuple[float, dict[str, Any]]:
        experiment = {"epochs": effort.of(16, 6), "seed": seed, "seeds": seeds}
        config = {"experiment": experiment, "model": model, "parallel": {"backend": "inline"}}
        game = gymnasium_environment("CartPole-v1")(config=config)
        game.prepare()
        start = time.perf_counter()
        summary = game.run_experiment()
        return time.perf_counter() - start, summary

    def side(name: str, work: str, runs: list[tuple[int, int]]) -> Side:
        def do() -> Done:
            results = [run(*arguments) for arguments in runs]
            digests[name] = [digest for _, summary in results for digest in summary["digests"]]
            counts = {key: sum(summary[key] for _, summary in results) for key in ("transitions", "updates")}
            return Done(counts, results[0][1]["backend"], sum(seconds for seconds, _ in results))

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
