"""Train defenders for the challenge's score, seed by seed.

python -m benchmarks.defence_training VERSION SEED FOLDER [--stages N] [--start FILE]

A training is a row of stages, each a run of `NetworkDefence` that starts from the weights of the stage before. Learning
rate and entropy bonus fall from stage to stage. The first third of the stages learns plain rewards; the rest learns
what is scored: turns weighted as the three tables count them, and a real end after turn 100. Every stage writes its
weights, and a line with its score over episodes that neither training nor the final evaluation uses; a training that
was stopped goes on with its next stage.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from parallel_agents.workflows.blue_policies import TrainedDefender
from parallel_agents.workflows.defence import NetworkDefence
from parallel_agents.workflows.evaluation import score

EPOCHS, WORLDS, PASSES, MINIBATCHES = 100, 128, 3, 8
LR, ENTROPY, ENTROPY_FINAL = 1e-3, 0.01, 0.0005
CHECK_SEED, CHECK_EPISODES = 77, 1000


def stage_config(version: str, seed: int, stage: int, stages: int, weights: Path | None, lr: float) -> dict[str, Any]:
    """Return the configuration of one stage."""
    weighted = weights is not None and 3 * stage >= stages
    updates = EPOCHS * PASSES * MINIBATCHES
    return {
        "experiment": {"epochs": EPOCHS, "worlds": WORLDS, "seed": 1000 * seed + stage},
        "world": {
            "version": version, "turn_weights": weighted, "weights": None if weights is None else str(weights),
        },
        "model": {
            "hidden": (64, 64), "n_epochs": PASSES, "n_minibatches": MINIBATCHES,
            "lr": lr * (1 - stage / stages), "lr_final": lr * (1 - (stage + 1) / stages), "lr_updates": updates,
            "ent_coef": ENTROPY * (ENTROPY_FINAL / ENTROPY) ** (stage / max(1, stages - 1)),
            "gamma": 0.995 if weighted else 0.99,
        },
        "parallel": {"world_deadline": 900.0},
    }  # fmt: skip


def main() -> None:
    """Train one seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("version")
    parser.add_argument("seed", type=int)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--stages", type=int, default=18)
    parser.add_argument("--start", type=Path)
    parser.add_argument("--lr", type=float, default=LR)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    weights = given.start
    for stage in range(given.stages):
        target = given.folder / f"{stage:03d}.safetensors"
        if not target.exists():
            begin = time.process_time()
            env = NetworkDefence(config=stage_config(given.version, given.seed, stage, given.stages, weights, given.lr))
            result = env.run_experiment()
            env.agents[0].model.save_weights(target)
            seconds = time.process_time() - begin
            model = env.agents[0].model
            check = score(
                lambda worlds, model=model: TrainedDefender(model, worlds), given.version, episodes=CHECK_EPISODES,
                seed=CHECK_SEED,
            )  # fmt: skip
            line = {
                "stage": stage, "transitions": result["transitions"], "cpu_seconds": seconds, "total": check.total,
                "error": check.total_error, "means": check.means,
            }  # fmt: skip
            with (given.folder / "stages.jsonl").open("a") as file:
                file.write(json.dumps(line) + "\n")
            print(time.strftime("%H:%M:%S"), json.dumps(line), flush=True)
        weights = target


if __name__ == "__main__":
    main()
