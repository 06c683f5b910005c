"""The workflow search: train under an order, evaluate, let the Gaussian process choose the next one.

    trainer = ParallelWorkflowRLTrainer(n_envs=25, n_workflows=20, red="Meander", late_start=50)
    found = trainer.run_workflow_search("runs/search")
    found.best, found.results[0].training.compliance

After each order the whole history is written to `search.json`; a search that was stopped goes on from there, and
ends as if it had not been: every order is trained from fresh weights on draws of its own number.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parallel_agents.errors import CheckpointError, ConfigError
from parallel_agents.seeding import Purpose, generator
from parallel_agents.tracking.files import read_json, write_json
from parallel_agents.tracking.locks import locked
from parallel_agents.workflows.compliance import ALIGNMENT_WEIGHT, RULES
from parallel_agents.workflows.conditioned import ParallelOrderConditionedPPO
from parallel_agents.workflows.landscape import Landscape
from parallel_agents.workflows.network import NetworkWorlds
from parallel_agents.workflows.orders import ORDERS, Order, check_order
from parallel_agents.workflows.search import METHODS, Evaluation, next_order, recommend
from parallel_agents.workflows.training import Training, Verdict, evaluate_order, train_order
from parallel_agents.workflows.wrapper import ParallelEnvWrapper

__all__ = ["ParallelWorkflowRLTrainer", "Regret", "SearchResult", "WorkflowResult"]

FILE_NAME = "search.json"
_LARGEST_FILE = 64 * 2**20

Progress = Callable[[str, Mapping[str, Any]], None]
"""Called with "episode" or "workflow" and what there is to say."""


@dataclass(frozen=True)
class WorkflowResult:
    """One order that was tried: how its training went and what its policy is worth."""

    order: Order
    training: Training
    verdict: Verdict

    @property
    def evaluation(self) -> Evaluation:
        """As the search reads it."""
        return Evaluation(self.order, self.verdict.value)


@dataclass(frozen=True)
class Regret:
    """How far each order tried fell short, (workflows,) each: total = search + policy.

    `search`: a perfect pupil of this order would still fall so short of the best order's. `policy`: what the
    trained policy lacks of that pupil; negative where it does better than the scripted defender of the landscape.
    """

    search: NDArray[np.float64]
    policy: NDArray[np.float64]

    @property
    def total(self) -> NDArray[np.float64]:
        """Shortfall from the best order's scripted defender."""
        return self.search + self.policy


@dataclass(frozen=True)
class SearchResult:
    """All orders tried, in the order of trying."""

    results: tuple[WorkflowResult, ...]
    seconds: float
    """Of this call; a resumed search has done more."""

    @property
    def history(self) -> list[Evaluation]:
        """What the search knew."""
        return [result.evaluation for result in self.results]

    @property
    def best(self) -> Order:
        """The order of those tried that the Gaussian process thinks best."""
        return recommend(self.history)

    def regret(self, landscape: Landscape) -> Regret:
        """The shortfall of every order tried, split into search and policy error by a brute-forced landscape."""
        tried = np.array([ORDERS.index(result.order) for result in self.results])
        values = np.array([result.verdict.value for result in self.results])
        return Regret(landscape.regrets[tried], landscape.means[tried] - values)


class ParallelWorkflowRLTrainer:
    """Searches the 120 orders; the defaults are the documented ones.

    worlds: keywords of `NetworkWorlds` (red, version, steps, late_start, …); `options`: of the conditioned PPO.
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
        rule: str = RULES[0],
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
        self._agent(0)  # what cannot work is refused now
        self._worlds = NetworkWorlds(
            evaluation_episodes, **{**self.settings["worlds"], "seed": seed}, purpose=Purpose.EVALUATION_WORLD
        )

    @property
    def max_total_episodes(self) -> int:
        """Episodes an order may take, over all environments."""
        return int(self.settings["train_episodes_per_env"] * self.settings["n_envs"])

    def run_workflow_search(self, folder: str | Path | None = None, progress: Progress | None = None) -> SearchResult:
        """Try orders until there are `n_workflows`; with a folder, go on from what it holds and write to it."""
        began = time.perf_counter()
        with locked(folder):
            results = self._resumed(folder)
            while len(results) < self.settings["n_workflows"]:
                history = [result.evaluation for result in results]
                order = next_order(history, self.settings["method"], self.settings["seed"])
                results.append(self.run_workflow(len(results), order, progress))
                if folder is not None:
                    self._write(Path(folder), results)
                if progress is not None:
                    progress("workflow", {"number": len(results), **_as_json(results[-1])})
        return SearchResult(tuple(results), time.perf_counter() - began)

    def run_workflow(self, number: int, order: Order, progress: Progress | None = None) -> WorkflowResult:
        """Train a fresh policy under one order and evaluate it; `number` chooses its draws."""
        s, agent = self.settings, self._agent(number)
        agent.set_order(order)
        envs = ParallelEnvWrapper(s["n_envs"], **{**s["worlds"], "seed": self._seed(number)})

        def tell(episode: int, compliance: float, mean_return: float) -> None:
            if progress is not None:
                progress(
                    "episode",
                    {"number": number + 1, "episode": episode, "compliance": compliance, "return": mean_return},
                )

        training = train_order(
            agent, envs, s["train_episodes_per_env"], threshold=s["compliance_threshold"],
            min_episodes=s["min_episodes"], tell=tell,
        )  # fmt: skip
        return WorkflowResult(check_order(order), training, evaluate_order(agent, order, self._worlds))

    def _agent(self, number: int) -> ParallelOrderConditionedPPO:
        s = self.settings
        return ParallelOrderConditionedPPO(
            n_envs=s["n_envs"], steps=s["update_every_steps"], rule=s["rule"],
            alignment_weight=s["alignment_weight"], seed=self._seed(number), **s["options"],
        )  # fmt: skip

    def _seed(self, number: int) -> int:
        return int(generator(self.settings["seed"], Purpose.SAMPLE, epoch=number + 1).integers(2**62))

    def _resumed(self, folder: str | Path | None) -> list[WorkflowResult]:
        if folder is None:
            return []
        path = Path(folder) / FILE_NAME
        if not path.exists():
            return []
        settings, results = read_search(path)
        wanted = json.loads(json.dumps(self.settings))
        different = [name for name in wanted if name != "n_workflows" and settings.get(name) != wanted[name]]
        if different:
            raise ConfigError(
                f"{path} is of a search with other settings ({', '.join(different)}): give the same, or another folder"
            )
        return results

    def _write(self, folder: Path, results: Sequence[WorkflowResult]) -> None:
        write_json(folder / FILE_NAME, {"settings": self.settings, "results": [_as_json(one) for one in results]})


def read_search(path: Path) -> tuple[dict[str, Any], list[WorkflowResult]]:
    """Settings and results of a search, as it left them."""
    try:
        content = read_json(path, _LARGEST_FILE)
        return content["settings"], [_from_json(one) for one in content["results"]]
    except (OSError, ValueError, KeyError, TypeError) as fault:
        raise CheckpointError(f"{path} cannot be read as a search ({fault}): give another folder") from fault


def _as_json(result: WorkflowResult) -> dict[str, Any]:
    return {"order": list(result.order), "training": asdict(result.training), **asdict(result.verdict)}


def _from_json(one: Mapping[str, Any]) -> WorkflowResult:
    error = math.nan if one["error"] is None else float(one["error"])
    return WorkflowResult(
        check_order(one["order"]),
        Training(**one["training"]),
        Verdict(float(one["value"]), error, float(one["compliance"])),
    )
