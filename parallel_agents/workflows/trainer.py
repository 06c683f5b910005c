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
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from parallel_agents.core.errors import CheckpointError, ConfigError
from parallel_agents.core.files import read_json, write_json
from parallel_agents.core.folder_lock import lock_folder
from parallel_agents.core.seeding import Purpose, generator
from parallel_agents.workflows.blue_policies import OrderScript, play
from parallel_agents.workflows.conditioned import ParallelOrderConditionedPPO, load_policy
from parallel_agents.workflows.evaluation import OrderEvaluation, evaluate_in_order
from parallel_agents.workflows.network import NetworkWorlds
from parallel_agents.workflows.orders import DOCUMENTED, ORDERS, RIGHT_REPAIRS, Compliance, Order, check_order
from parallel_agents.workflows.search import METHODS, Trial, next_order, recommend
from parallel_agents.workflows.wrapper import ParallelEnvWrapper

SEARCH_FILE = "search.json"
_MAX_FILE_BYTES = 64 * 2**20

WINDOW = 5  # the stopping rule averages over this many episodes
MIN_COUNTED = 1  # counted turns per environment in all episodes, below which the stopping rule does not apply

OnEpisode = Callable[["TrainingHistory"], None]
"""Called after each episode with the history so far."""
Progress = Callable[[str, Mapping[str, Any]], None]
"""Called with the event "episode" or "workflow" and its fields."""


@dataclass
class TrainingHistory:
    """The course of a training, one entry per episode: means over environments."""

    compliance: list[float] = field(default_factory=list)
    """By the agent's rule; NaN if no turn called for a repair."""
    documented: list[float] = field(default_factory=list)
    """By the documented measure, `no_higher_compromised`; an episode without fixes counts one half."""
    returns: list[float] = field(default_factory=list)
    """Without the alignment reward."""
    counted: list[float] = field(default_factory=list)
    """Turns (or fixes) that counted for compliance."""
    stopped: bool = False
    """Whether the training stopped because the order was learnt."""

    @property
    def episodes(self) -> int:
        """Number of episodes of each environment."""
        return len(self.returns)

    @property
    def last(self) -> dict[str, float]:
        """The last episode's number, compliance by both measures, and return."""
        return {
            "episode": self.episodes, "compliance": self.compliance[-1], "documented": self.documented[-1],
            "return": self.returns[-1],
        }  # fmt: skip

    def keeps_order(self, threshold: float, min_episodes: int) -> bool:
        """Return whether compliance over the last `WINDOW` episodes has reached the threshold.

        At least `min_episodes` are needed, and `MIN_COUNTED` counted turns per environment.
        """
        if self.episodes < max(min_episodes, 1) or sum(self.counted) < MIN_COUNTED:
            return False
        return bool(np.mean(self.compliance[-WINDOW:]) >= threshold)


def train_order(
    agent: ParallelOrderConditionedPPO,
    envs: ParallelEnvWrapper,
    episodes: int,
    *,
    threshold: float = 0.95,
    min_episodes: int = 10,
    history: TrainingHistory | None = None,
    on_episode: OnEpisode | None = None,
) -> TrainingHistory:
    """Train under the agent's order until it is learnt, at most until there are `episodes` episodes.

    It is learnt once the mean of `WINDOW` episodes reaches the threshold in compliance and, with the default rule, the
    script's return. With the history of earlier episodes, go on from there.
    """
    history, least = history or TrainingHistory(), -math.inf
    if agent.compliance.rule == RIGHT_REPAIRS:
        repeats = -(-200 // envs.n_envs)
        red = envs.options.get("red", "B_line")
        options = {**envs.options, "red": red * repeats if isinstance(red, list | tuple) else red}
        worlds = NetworkWorlds(envs.n_envs * repeats, **options, purpose=Purpose.EVALUATION_WORLD)
        least = float(play(worlds, OrderScript(agent.orders[0]), 0).sum(axis=0).mean())
    envs.episode = history.episodes - 1
    while history.episodes < episodes and not history.stopped:
        _train_episode(agent, envs, history)
        enough = np.mean(history.returns[-WINDOW:]) >= least
        history.stopped = bool(enough) and history.keeps_order(threshold, min_episodes)
        if on_episode is not None:
            on_episode(history)
    if agent.buffer.turns:
        agent.update()
    return history


def train_all_orders(
    agent: ParallelOrderConditionedPPO,
    envs: ParallelEnvWrapper,
    episodes: int,
    *,
    seed: int = 0,
    history: TrainingHistory | None = None,
    on_episode: OnEpisode | None = None,
) -> TrainingHistory:
    """Train one policy for all orders: every environment gets a random order in every episode."""
    history = history or TrainingHistory()
    envs.episode = history.episodes - 1
    while history.episodes < episodes:
        drawn = generator(seed, Purpose.SAMPLE, epoch=history.episodes).integers(0, len(ORDERS), envs.n_envs)
        agent.set_order([ORDERS[i] for i in drawn])
        _train_episode(agent, envs, history)
        if on_episode is not None:
            on_episode(history)
    if agent.buffer.turns:
        agent.update()
    return history


def _train_episode(agent: ParallelOrderConditionedPPO, envs: ParallelEnvWrapper, history: TrainingHistory) -> None:
    """Play one episode of every environment, with an update whenever the buffer is full; add it to the history."""
    observations, returns = envs.reset(), np.zeros(envs.n_envs)
    agent.compliance.reset()
    documented = Compliance(agent.orders, envs.n_envs, DOCUMENTED)
    done = False
    while not done:
        access = envs.access  # an action is judged on the state before it
        actions = agent.get_actions(observations)
        next_observations, rewards, dones = envs.step(actions)
        alignment = agent.compliance.observe(actions, access, observations, envs.repaired)
        documented.observe(actions, access, observations, envs.repaired)
        agent.buffer.add(observations, actions, rewards + alignment, dones)
        done = bool(dones.all())
        if agent.buffer.turns == agent.steps:
            agent.update(None if done else next_observations)
        observations, returns = next_observations, returns + rewards
    history.compliance.append(agent.compliance.average(agent.compliance.rates()))
    history.documented.append(documented.average(documented.rates()))
    history.returns.append(float(returns.mean()))
    history.counted.append(float(agent.compliance.counted.mean()))


def evaluate_order(agent: ParallelOrderConditionedPPO, order: Iterable[str], worlds: NetworkWorlds) -> OrderEvaluation:
    """Play one episode of every world with the policy's likeliest actions under an order, which may be a new one."""
    checked = check_order(order)
    return evaluate_in_order(agent.policy(checked, worlds), checked, worlds)


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
        numbers = {f.name: _number(content[f.name]) for f in fields(OrderEvaluation)}
        training = dict(content["training"])
        for name in ("compliance", "documented", "returns", "counted"):
            training[name] = [_number(value) for value in training[name]]
        return cls(check_order(content["order"]), TrainingHistory(**training), OrderEvaluation(**numbers))


def _number(value: float | None) -> float:
    """Return a stored number; None stands for NaN."""
    return math.nan if value is None else float(value)


@dataclass(frozen=True)
class SearchResult:
    """All orders of a search, in the order in which they were tried."""

    results: tuple[WorkflowResult, ...]
    seconds: float
    """Duration of this call, without earlier calls that it resumed."""
    noise: float | None = None
    """Standard deviation of a value, as the search was told."""

    @property
    def trials(self) -> list[Trial]:
        """The orders tried and their values."""
        return [result.trial for result in self.results]

    @property
    def best(self) -> Order:
        """The order tried that has the highest mean in the Gaussian process."""
        return recommend(self.trials, self.noise)


class ParallelWorkflowRLTrainer:
    """Searches the 120 orders.

    start: folder of a policy trained on all orders; every order is then fine-tuned from it, not trained afresh.
    noise: standard deviation of a trained order's value over seeds, for the Gaussian process; None: it is fitted.
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
        rule: str = RIGHT_REPAIRS,
        alignment_weight: float | None = None,
        evaluation_episodes: int = 100,
        start: str | None = None,
        noise: float | None = None,
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
            "alignment_weight": alignment_weight, "start": start, "noise": noise, "seed": seed,
            "worlds": dict(worlds or {}), "options": options,
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
        start, s = time.perf_counter(), self.settings
        with lock_folder(folder):
            results = self._read_results(folder)
            while len(results) < s["n_workflows"]:
                trials = [result.trial for result in results]
                order = next_order(trials, s["method"], s["seed"], noise=s["noise"])
                results.append(self.run_workflow(len(results), order, progress))
                if folder is not None:
                    content = {"settings": s, "results": [result.as_json() for result in results]}
                    write_json(Path(folder) / SEARCH_FILE, content)
                if progress is not None:
                    progress("workflow", {"number": len(results), **results[-1].as_json()})
        return SearchResult(tuple(results), time.perf_counter() - start, s["noise"])

    def run_workflow(self, number: int, order: Order, progress: Progress | None = None) -> WorkflowResult:
        """Train a policy under one order and evaluate it; `number` selects its draws."""
        s, agent = self.settings, self._make_agent(number)
        agent.set_order(order)
        envs = ParallelEnvWrapper(s["n_envs"], **{**s["worlds"], "seed": self._seed(number)})

        def on_episode(history: TrainingHistory) -> None:
            if progress is not None:
                progress("episode", {"number": number + 1, **history.last})

        history = train_order(
            agent, envs, s["train_episodes_per_env"], threshold=s["compliance_threshold"],
            min_episodes=s["min_episodes"], on_episode=on_episode,
        )  # fmt: skip
        return WorkflowResult(check_order(order), history, evaluate_order(agent, order, self._evaluation_worlds))

    def _make_agent(self, number: int) -> ParallelOrderConditionedPPO:
        """Return the agent for the order with this number: a fresh one, or the policy to start from."""
        s = self.settings
        options: dict[str, Any] = {
            "n_envs": s["n_envs"], "steps": s["update_every_steps"], "rule": s["rule"],
            "alignment_weight": s["alignment_weight"], "seed": self._seed(number),
            "version": s["worlds"].get("version", "head"), **s["options"],
        }  # fmt: skip
        return (
            ParallelOrderConditionedPPO(**options)
            if s["start"] is None
            else load_policy(Path(s["start"]), **options)[0]
        )

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
        return dict(content["settings"]), [WorkflowResult.from_json(result) for result in content["results"]]
    except (OSError, ValueError, KeyError, TypeError, ConfigError) as fault:
        raise CheckpointError(f"{path} cannot be read as a search ({fault}): give another folder") from fault
