"""Training of an order-conditioned defender, and the workflow search over orders.

`train_order` trains on one order until the defender keeps it, `train_all_orders` on all orders at once. Each action is
judged on the true state before it, and rewarded by the environment and by alignment with the order. `evaluate_order`
counts the environment's reward alone.

The search trains under an order, evaluates, and lets the Gaussian process choose the next order:

    trainer = ParallelWorkflowRLTrainer(n_envs=25, n_workflows=20, worlds={"red": "Meander", "late_start": 50})
    search = trainer.run_workflow_search("runs/search")
    search.best, search.results[0].training.compliance

After each order all results are written to `search.json`. A search that was stopped continues from there and ends as if
it had not been stopped: every order is trained from fresh weights with draws that depend on its number only.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parallel_agents.core.errors import CheckpointError, ConfigError
from parallel_agents.core.files import read_json, write_json
from parallel_agents.core.folder_lock import lock_folder
from parallel_agents.core.seeding import Purpose, generator
from parallel_agents.workflows.conditioned import ParallelOrderConditionedPPO
from parallel_agents.workflows.network import NetworkWorlds
from parallel_agents.workflows.orders import (
    ALIGNMENT_WEIGHT,
    COMPLIANCE_RULES,
    ORDERS,
    Compliance,
    Order,
    average_compliance,
    check_order,
    should_stop,
)
from parallel_agents.workflows.search import METHODS, Landscape, Trial, next_order, recommend
from parallel_agents.workflows.wrapper import ParallelEnvWrapper

SEARCH_FILE = "search.json"
_MAX_FILE_BYTES = 64 * 2**20

OnEpisode = Callable[[int, float, float], None]
"""Called after each episode with its number, mean compliance and mean return."""
Progress = Callable[[str, Mapping[str, Any]], None]
"""Called with the event "episode" or "workflow" and its fields."""


@dataclass
class TrainingHistory:
    """The course of a training, one entry per episode."""

    compliance: list[float] = field(default_factory=list)
    """Mean over environments; an episode without fixes counts one half."""
    returns: list[float] = field(default_factory=list)
    """Mean over environments, without the alignment reward."""
    fixes: list[float] = field(default_factory=list)
    """Removes and Restores, mean over environments."""
    stopped: bool = False
    """Whether the training stopped because the compliance threshold was reached."""

    @property
    def episodes(self) -> int:
        """Number of episodes of each environment."""
        return len(self.returns)


@dataclass(frozen=True)
class OrderEvaluation:
    """A policy's mean return (environment reward only) and compliance under an order."""

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
    on_episode: OnEpisode | None = None,
) -> TrainingHistory:
    """Train under the agent's order until its average compliance reaches the threshold, at most `episodes` episodes."""
    history = TrainingHistory()
    rates: list[NDArray[np.float64]] = []
    fixes = 0
    while history.episodes < episodes and not history.stopped:
        rates.append(_train_episode(agent, envs, history, on_episode))
        fixes += int(agent.compliance.total_fixes.sum())
        history.stopped = should_stop(np.stack(rates), fixes, threshold, min_episodes)
    if agent.buffer.turns:
        agent.update()
    return history


def train_all_orders(
    agent: ParallelOrderConditionedPPO,
    envs: ParallelEnvWrapper,
    episodes: int,
    *,
    seed: int = 0,
    on_episode: OnEpisode | None = None,
) -> TrainingHistory:
    """Train one policy for all orders: every environment gets a random order in every episode."""
    history = TrainingHistory()
    for episode in range(episodes):
        drawn = generator(seed, Purpose.SAMPLE, epoch=episode).integers(0, len(ORDERS), envs.n_envs)
        agent.set_order([ORDERS[i] for i in drawn])
        _train_episode(agent, envs, history, on_episode)
    if agent.buffer.turns:
        agent.update()
    return history


def _train_episode(
    agent: ParallelOrderConditionedPPO, envs: ParallelEnvWrapper, history: TrainingHistory, on_episode: OnEpisode | None
) -> NDArray[np.float64]:
    """Play one episode of every environment, with an update whenever the buffer is full; return compliance (n,)."""
    observations, returns = envs.reset(), np.zeros(envs.n_envs)
    agent.compliance.reset()
    done = False
    while not done:
        access = envs.access  # a fix is judged on the state before the action
        actions = agent.get_actions(observations)
        next_observations, rewards, dones = envs.step(actions)
        alignment = agent.compliance.observe(actions, access)
        agent.buffer.add(observations, actions, rewards + alignment, dones)
        done = bool(dones.all())
        if agent.buffer.turns == agent.steps:
            agent.update(None if done else next_observations)
        observations, returns = next_observations, returns + rewards
    rates = agent.compliance.rates()
    history.compliance.append(average_compliance(rates))
    history.returns.append(float(returns.mean()))
    history.fixes.append(float(agent.compliance.total_fixes.mean()))
    if on_episode is not None:
        on_episode(history.episodes, history.compliance[-1], history.returns[-1])
    return rates


def evaluate_order(agent: ParallelOrderConditionedPPO, order: Iterable[str], worlds: NetworkWorlds) -> OrderEvaluation:
    """Play one episode of every world with the policy's likeliest actions under an order, which may be a new one."""
    checked = check_order(order)
    policy, counters = agent.policy(checked), Compliance(checked, worlds.n_worlds, agent.compliance.rule)
    observations, returns = worlds.reset(0), np.zeros(worlds.n_worlds)
    for turn in range(worlds.late_start, worlds.steps):
        access = worlds.access
        actions = policy(observations, 0, turn)
        observations, rewards, _ = worlds.step(actions)
        counters.observe(actions, access)
        returns += rewards
    error = returns.std(ddof=1) / np.sqrt(len(returns)) if len(returns) > 1 else float("nan")
    return OrderEvaluation(float(returns.mean()), float(error), average_compliance(counters.rates()))


def effective_orders() -> tuple[Order, ...]:
    """Return one order of each of 24 classes: "defender" is never compromised, so its place changes no compliance."""
    return tuple(order for order in ORDERS if order[-1] == "defender")


@dataclass(frozen=True)
class WorkflowResult:
    """One order of a search: the training under it, and the evaluation of the trained policy."""

    order: Order
    training: TrainingHistory
    evaluation: OrderEvaluation

    @property
    def trial(self) -> Trial:
        """The order and its value, as the search reads them."""
        return Trial(self.order, self.evaluation.value)

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {"order": list(self.order), "training": asdict(self.training), **asdict(self.evaluation)}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> WorkflowResult:
        """Return the result that `as_json` described."""
        error = math.nan if content["error"] is None else float(content["error"])
        evaluation = OrderEvaluation(float(content["value"]), error, float(content["compliance"]))
        return cls(check_order(content["order"]), TrainingHistory(**content["training"]), evaluation)


@dataclass(frozen=True)
class Regret:
    """How far the value of each order tried is below that of the best order, (workflows,) each: search + policy.

    `search`: the scripted defender's shortfall under this order against the best order. `policy`: the trained policy's
    shortfall against the scripted defender under the same order; negative where the trained policy is better.
    """

    search: NDArray[np.float64]
    policy: NDArray[np.float64]

    @property
    def total(self) -> NDArray[np.float64]:
        """The trained policy's shortfall against the scripted defender under the best order."""
        return self.search + self.policy


@dataclass(frozen=True)
class SearchResult:
    """All orders of a search, in the order in which they were tried."""

    results: tuple[WorkflowResult, ...]
    seconds: float
    """Duration of this call, without earlier calls that it resumed."""

    @property
    def trials(self) -> list[Trial]:
        """The orders tried and their values."""
        return [result.trial for result in self.results]

    @property
    def best(self) -> Order:
        """The order tried that has the highest mean in the Gaussian process."""
        return recommend(self.trials)

    def regret(self, landscape: Landscape) -> Regret:
        """Return the regret of every order tried, split into search and policy error by a brute-forced landscape."""
        tried = np.array([trial.index for trial in self.trials])
        values = np.array([trial.value for trial in self.trials])
        return Regret(landscape.regrets[tried], landscape.means[tried] - values)


class ParallelWorkflowRLTrainer:
    """Searches the 120 orders.

    worlds: keywords of `NetworkWorlds` (red, version, steps, late_start, …); `options`: further ones of
    `ParallelOrderConditionedPPO`.
    """

    def __init__(
        self,
        n_envs: int = 25,
        n_workflows: int = 20,
        train_episodes_per_env: int = 50,
        compliance_threshold: float = 0.95,
        update_every_steps: int = 100,
        min_episodes: int = 10,
        *,
        method: str = "gp_ucb",
        rule: str = COMPLIANCE_RULES[0],
        alignment_weight: float = ALIGNMENT_WEIGHT,
        evaluation_episodes: int = 100,
        seed: int = 0,
        worlds: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        counts = {
            "n_envs": n_envs, "n_workflows": n_workflows, "train_episodes_per_env": train_episodes_per_env,
            "update_every_steps": update_every_steps, "min_episodes": min_episodes,
            "evaluation_episodes": evaluation_episodes,
        }  # fmt: skip
        for name, count in counts.items():
            if count < 1:
                raise ConfigError(f"{name} is {count}: give a whole number of at least 1")
        if not 0.0 < compliance_threshold <= 1.0:
            raise ConfigError(f"compliance_threshold is {compliance_threshold}: give a share above 0, at most 1")
        if method not in METHODS:
            raise ConfigError(f"search method {method!r} is unknown: choose one of {', '.join(METHODS)}")
        self.settings: dict[str, Any] = {
            **counts, "compliance_threshold": compliance_threshold, "method": method, "rule": rule,
            "alignment_weight": alignment_weight, "seed": seed, "worlds": dict(worlds or {}), "options": options,
        }  # fmt: skip
        self._make_agent(0)  # raises now if the settings are wrong
        self._evaluation_worlds = NetworkWorlds(
            evaluation_episodes, **{**self.settings["worlds"], "seed": seed}, purpose=Purpose.EVALUATION_WORLD
        )

    @property
    def max_total_episodes(self) -> int:
        """Maximum number of training episodes per order, over all environments."""
        return int(self.settings["train_episodes_per_env"] * self.settings["n_envs"])

    def run_workflow_search(self, folder: str | Path | None = None, progress: Progress | None = None) -> SearchResult:
        """Try orders until there are `n_workflows`. With a folder, resume the search in it and write to it."""
        start = time.perf_counter()
        with lock_folder(folder):
            results = self._read_results(folder)
            while len(results) < self.settings["n_workflows"]:
                trials = [result.trial for result in results]
                order = next_order(trials, self.settings["method"], self.settings["seed"])
                results.append(self.run_workflow(len(results), order, progress))
                if folder is not None:
                    content = {"settings": self.settings, "results": [result.as_json() for result in results]}
                    write_json(Path(folder) / SEARCH_FILE, content)
                if progress is not None:
                    progress("workflow", {"number": len(results), **results[-1].as_json()})
        return SearchResult(tuple(results), time.perf_counter() - start)

    def run_workflow(self, number: int, order: Order, progress: Progress | None = None) -> WorkflowResult:
        """Train a fresh policy under one order and evaluate it; `number` selects its draws."""
        s, agent = self.settings, self._make_agent(number)
        agent.set_order(order)
        envs = ParallelEnvWrapper(s["n_envs"], **{**s["worlds"], "seed": self._seed(number)})

        def on_episode(episode: int, compliance: float, mean_return: float) -> None:
            if progress is not None:
                fields = {"number": number + 1, "episode": episode, "compliance": compliance, "return": mean_return}
                progress("episode", fields)

        history = train_order(
            agent, envs, s["train_episodes_per_env"], threshold=s["compliance_threshold"],
            min_episodes=s["min_episodes"], on_episode=on_episode,
        )  # fmt: skip
        return WorkflowResult(check_order(order), history, evaluate_order(agent, order, self._evaluation_worlds))

    def _make_agent(self, number: int) -> ParallelOrderConditionedPPO:
        """Return a fresh agent for the order with this number."""
        s = self.settings
        return ParallelOrderConditionedPPO(
            n_envs=s["n_envs"], steps=s["update_every_steps"], rule=s["rule"],
            alignment_weight=s["alignment_weight"], seed=self._seed(number), **s["options"],
        )  # fmt: skip

    def _seed(self, number: int) -> int:
        """Return the seed of the order with this number."""
        return int(generator(self.settings["seed"], Purpose.SAMPLE, epoch=number + 1).integers(2**62))

    def _read_results(self, folder: str | Path | None) -> list[WorkflowResult]:
        """Return the results in a folder; raise ConfigError if they were made with other settings."""
        if folder is None or not (path := Path(folder) / SEARCH_FILE).exists():
            return []
        stored, results = read_search(path)
        settings = json.loads(json.dumps(self.settings))
        different = [name for name in settings if name != "n_workflows" and stored.get(name) != settings[name]]
        if different:
            raise ConfigError(
                f"{path} is of a search with other settings ({', '.join(different)}): give the same, or another folder"
            )
        return results


def read_search(path: Path) -> tuple[dict[str, Any], list[WorkflowResult]]:
    """Return the settings and results of a stored search."""
    try:
        content = read_json(path, _MAX_FILE_BYTES)
        return content["settings"], [WorkflowResult.from_json(result) for result in content["results"]]
    except (OSError, ValueError, KeyError, TypeError) as fault:
        raise CheckpointError(f"{path} cannot be read as a search ({fault}): give another folder") from fault
