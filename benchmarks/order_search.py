"""Search for the best order on trained policies: GP-UCB against random search.

python -m benchmarks.order_search [SEED...]

Meander, blue asleep for 50 turns. One policy is trained on all orders: a clone of the script, improved with PPO. Each
of the 120 orders is then fine-tuned from it twice with different seeds and evaluated greedily in 100 worlds: that
is the exhaustive evaluation; its spread within orders is the noise that the Gaussian process is told. A search draws
one of an order's two returns at every visit. The simple regret is the best order's mean minus that of the order that
the search recommends.

An order's value contains the returns that the searches draw, so that a part of the best order's lead is luck. So each
method is also judged by a fine-tuning that its search has not seen: the search draws from one of the two, and the
return of the recommended order in the other one counts. After each seed it writes results/order_search.json, and keeps
the seeds that were measured before.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.order_compliance import OPTIONS
from benchmarks.run import provenance
from parallel_agents.core.seeding import Purpose, generator
from parallel_agents.workflows.conditioned import ParallelOrderConditionedPPO, save_policy
from parallel_agents.workflows.orders import ORDERS
from parallel_agents.workflows.search import METHODS, Trial, landscape, next_order, recommend
from parallel_agents.workflows.trainer import ParallelWorkflowRLTrainer, train_all_orders
from parallel_agents.workflows.wrapper import ParallelEnvWrapper

GAME: dict[str, Any] = {"red": "Meander", "late_start": 50}
ENVS, CLONING, EPISODES, FINE_TUNING, REPEATS = 120, 30, 30, 2, 2
SEARCHES, TRIALS, SHOWN = 20, 20, (5, 10, 20)


def search_regrets(
    values: NDArray[np.float64], noise: float, n_trials: int, method: str = "gp_ucb", seed: int = 0,
    judge: NDArray[np.float64] | None = None,
) -> NDArray[np.float64]:  # fmt: skip
    """Search orders whose returns are known, and return the simple regret after each trial (n_trials,).

    values: (120,) the orders' values, and a trial's return gets Gaussian noise of this deviation; or (120, S) measured
    returns, of which a trial takes one at random, and an order's value is their mean. The Gaussian process is told the
    noise. The regret is the best value minus that of the order that is recommended: by the Gaussian process, or in
    random search the one with the highest return. judge: (120,) other values by which regrets are counted.
    """
    draws, known = generator(seed, Purpose.NOISE), values.mean(axis=1) if values.ndim == 2 else values
    judged = known if judge is None else judge
    trials: list[Trial] = []
    regrets = np.empty(n_trials)
    for number in range(n_trials):
        order = next_order(trials, method, seed, noise=noise)
        index = ORDERS.index(order)
        if values.ndim == 2:
            value = values[index, draws.integers(values.shape[1])]
        else:
            value = known[index] + draws.normal(0.0, noise)
        trials.append(Trial(order, float(value)))
        chosen = recommend(trials, noise) if method == "gp_ucb" else max(trials, key=lambda trial: trial.value).order
        regrets[number] = judged.max() - judged[ORDERS.index(chosen)]
    return regrets


def exhaustive(seed: int) -> NDArray[np.float64]:
    """Return the value of every order (120, REPEATS) after fine-tuning one policy."""
    agent = ParallelOrderConditionedPPO(n_envs=ENVS, steps=50, seed=seed, **OPTIONS)
    envs = ParallelEnvWrapper(ENVS, seed=seed, **GAME)
    agreement = agent.clone_script(envs, CLONING)
    history = train_all_orders(agent, envs, EPISODES, seed=seed)
    print(
        f"agreement {agreement[-1]:.3f}, return {history.returns[-1]:.1f}, {time.process_time():.0f} CPU-s", flush=True
    )
    values = np.empty((len(ORDERS), REPEATS))
    with tempfile.TemporaryDirectory() as folder:
        save_policy(agent, Path(folder), {})
        for repeat in range(REPEATS):
            trainer = ParallelWorkflowRLTrainer(
                n_envs=25, train_episodes_per_env=FINE_TUNING, update_every_steps=50, compliance_threshold=1.0,
                seed=1000 * seed + repeat, start=folder, worlds=GAME, **OPTIONS,
            )  # fmt: skip
            for i, order in enumerate(ORDERS):
                values[i, repeat] = trainer.run_workflow(i, order).evaluation.value
            print(f"repeat {repeat + 1} of {REPEATS}, {time.process_time():.0f} CPU-s", flush=True)
    return values


def interval(rows: NDArray[np.float64]) -> dict[str, list[float]]:
    """Return mean and half a 95 % interval of rows (searches, TRIALS), after so many orders."""
    half = 1.96 * rows.std(axis=0, ddof=1) / np.sqrt(len(rows))
    return {str(n): [float(rows[:, n - 1].mean()), float(half[n - 1])] for n in SHOWN}


def study(seed: int) -> dict[str, Any]:
    """Return the values, the noise, and the simple regrets of both methods with 95 % intervals over searches."""
    torch.set_num_threads(1)
    values, script = exhaustive(seed), landscape(**GAME, episodes=200).means
    means = values.mean(axis=1)
    noise = float(np.sqrt(values.var(axis=1, ddof=1).mean()))
    result: dict[str, Any] = {
        "seed": seed, "searches": SEARCHES, "values": values.tolist(), "noise": noise,
        "spread_of_orders": float(means.std(ddof=1)), "range_of_orders": float(np.ptp(means)),
        "best": ORDERS[int(means.argmax())],
        "correlation_of_repeats": float(np.corrcoef(values.T)[0, 1]),
        "correlation_with_script": float(np.corrcoef(means, script)[0, 1]), "regret": {},
    }  # fmt: skip
    regrets, unseen = {}, {}
    for method in METHODS:
        regrets[method] = np.stack([search_regrets(values, noise, TRIALS, method, k) for k in range(SEARCHES)])
        unseen[method] = np.stack([
            search_regrets(values[:, [k % REPEATS]], noise, TRIALS, method, k, judge=values[:, (k + 1) % REPEATS])
            for k in range(SEARCHES)
        ])  # fmt: skip
        result["regret"][method] = interval(regrets[method])
    result["regret"]["random - gp_ucb"] = interval(regrets["random"] - regrets["gp_ucb"])
    result["regret"]["random - gp_ucb, unseen"] = interval(unseen["random"] - unseen["gp_ucb"])
    for method, at in result["regret"].items():
        print(method, "  ".join(f"after {n}: {mean:.2f} ± {error:.2f}" for n, (mean, error) in at.items()), flush=True)
    print(
        f"noise {noise:.2f}, orders spread by {result['spread_of_orders']:.2f}, range {result['range_of_orders']:.1f}"
    )
    return result


if __name__ == "__main__":
    target = Path(__file__).parent / "results" / "order_search.json"
    target.parent.mkdir(exist_ok=True)
    for number in [int(word) for word in sys.argv[1:]] or [0]:
        row = {**provenance(), **study(number)}  # each seed says where it was measured: others may be older
        earlier = json.loads(target.read_text()) if target.exists() else []
        rows = sorted([*(each for each in earlier if each["seed"] != number), row], key=lambda each: each["seed"])
        target.write_text(json.dumps(rows, indent=1) + "\n")
