"""Search for hyper-parameters of PPO on CartPole with Optuna: pip install optuna

python -m parallel_agents.examples.optuna_search --trials 20
"""

from __future__ import annotations

import argparse
from typing import Any

from parallel_agents import train
from parallel_agents.core.types import EpochStats
from parallel_agents.tracking.callbacks import BaseCallback


class Report(BaseCallback):
    """Report the mean return of every tenth epoch to a trial."""

    def __init__(self, trial: Any) -> None:
        self.trial = trial

    def on_epoch(self, stats: EpochStats) -> None:
        episodes, returns, _ = stats.episodes.sum(axis=1)
        if stats.epoch % 10 == 0 and episodes:
            self.trial.report(returns / episodes, stats.epoch)


def objective(trial: Any) -> float:
    """Train one trial and return the mean return of its newest episodes."""
    model = {
        "lr": trial.suggest_float("lr", 1e-4, 1e-2, log=True),
        "gamma": trial.suggest_float("gamma", 0.9, 0.999),
        "lr_final": None,
    }
    run = train(
        "gymnasium:CartPole-v1", algo="ppo", worlds=8, epochs=60, seeds=3, config={"model": model},
        out=f"runs/optuna-{trial.number}", progress=False, callbacks=[Report(trial)],
    )  # fmt: skip
    return run.summary["ep_rew_mean"] or 0.0


def main() -> None:
    import optuna

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=20)
    study = optuna.create_study(direction="maximize")
    study.optimize(objective, n_trials=parser.parse_args().trials)
    print(study.best_params, study.best_value)


if __name__ == "__main__":
    main()
