"""Training a conditioned defender: on one order until it keeps it, or on all orders at once; and its evaluation.

An episode's actions are judged on the truth before them, rewarded by the environment and by the alignment with the
order; an evaluation counts the environment's reward alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from parallel_agents.seeding import Purpose, generator
from parallel_agents.workflows.compliance import Compliance, average_compliance, should_stop
from parallel_agents.workflows.conditioned import ParallelOrderConditionedPPO
from parallel_agents.workflows.network import NetworkWorlds
from parallel_agents.workflows.orders import ORDERS, Order, check_order
from parallel_agents.workflows.wrapper import ParallelEnvWrapper

__all__ = ["Training", "Verdict", "effective_orders", "evaluate_order", "train_all_orders", "train_order"]

Tell = Callable[[int, float, float], None]
"""Called after each episode with its number, mean compliance and mean return."""


@dataclass
class Training:
    """What a training gave, one entry per episode."""

    compliance: list[float] = field(default_factory=list)
    """Mean over environments; an episode without fixes counts one half."""
    returns: list[float] = field(default_factory=list)
    """Mean over environments, without the alignment reward."""
    fixes: list[float] = field(default_factory=list)
    """Removes and Restores, mean over environments."""
    stopped: bool = False
    """Whether the compliance threshold ended it."""

    @property
    def episodes(self) -> int:
        """Episodes of each environment."""
        return len(self.returns)


@dataclass(frozen=True)
class Verdict:
    """A policy's evaluation under an order: environment reward only."""

    value: float
    error: float
    """Standard error of the value."""
    compliance: float


def train_order(
    agent: ParallelOrderConditionedPPO,
    envs: ParallelEnvWrapper,
    episodes: int,
    *,
    threshold: float = 0.95,
    min_episodes: int = 10,
    tell: Tell | None = None,
) -> Training:
    """Train under the agent's order until its average compliance reaches the threshold, or for `episodes`."""
    seen = Training()
    rates: list[NDArray[np.float64]] = []
    fixes = 0
    while seen.episodes < episodes and not seen.stopped:
        rates.append(_episode(agent, envs, seen, tell))
        fixes += int(agent.compliance.total_fixes.sum())
        seen.stopped = should_stop(np.stack(rates), fixes, threshold, min_episodes)
    if agent.buffer.turns:
        agent.update()
    return seen


def train_all_orders(
    agent: ParallelOrderConditionedPPO,
    envs: ParallelEnvWrapper,
    episodes: int,
    *,
    seed: int = 0,
    tell: Tell | None = None,
) -> Training:
    """Train one policy over all orders at once: every episode, every environment gets an order of its own."""
    seen = Training()
    for episode in range(episodes):
        drawn = generator(seed, Purpose.SAMPLE, epoch=episode).integers(0, len(ORDERS), envs.n_envs)
        agent.set_order([ORDERS[i] for i in drawn])
        _episode(agent, envs, seen, tell)
    if agent.buffer.turns:
        agent.update()
    return seen


def _episode(
    agent: ParallelOrderConditionedPPO, envs: ParallelEnvWrapper, seen: Training, tell: Tell | None
) -> NDArray[np.float64]:
    """One episode of every environment, with an update whenever enough turns are kept; compliance (n,)."""
    observations, returns = envs.reset(), np.zeros(envs.n_envs)
    agent.compliance.reset()
    over = False
    while not over:
        access = envs.access  # before the action: what a fix is judged on
        actions = agent.get_actions(observations)
        following, rewards, dones = envs.step(actions)
        aligned = agent.compliance.observe(actions, access)
        agent.buffer.add(observations, actions, rewards + aligned, dones)
        over = bool(dones.all())
        if agent.buffer.turns == agent.steps:
            agent.update(None if over else following)
        observations, returns = following, returns + rewards
    rates = agent.compliance.rates()
    seen.compliance.append(average_compliance(rates))
    seen.returns.append(float(returns.mean()))
    seen.fixes.append(float(agent.compliance.total_fixes.mean()))
    if tell is not None:
        tell(seen.episodes, seen.compliance[-1], seen.returns[-1])
    return rates


def evaluate_order(agent: ParallelOrderConditionedPPO, order: Iterable[str], worlds: NetworkWorlds) -> Verdict:
    """Let the policy's likeliest actions play one episode of every world under an order, switched to if need be."""
    kept = check_order(order)
    policy, counters = agent.policy(kept), Compliance(kept, worlds.n_worlds, agent.compliance.rule)
    observations, returns = worlds.reset(0), np.zeros(worlds.n_worlds)
    for turn in range(worlds.late_start, worlds.steps):
        access = worlds.access
        actions = policy(observations, 0, turn)
        observations, rewards, _ = worlds.step(actions)
        counters.observe(actions, access)
        returns += rewards
    error = returns.std(ddof=1) / np.sqrt(len(returns)) if len(returns) > 1 else float("nan")
    return Verdict(float(returns.mean()), float(error), average_compliance(counters.rates()))


def effective_orders() -> tuple[Order, ...]:
    """One order of each of the 24 classes: the defender is never taken, so its place changes nothing."""
    return tuple(order for order in ORDERS if order[-1] == "defender")
