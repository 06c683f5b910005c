"""Score trained defenders, alone and as an ensemble, beside scripted ones.

python -m benchmarks.defence_score VERSION FOLDER...

Each folder is a training of `benchmarks.defence_training`; its last stage counts. Episodes are those of
`workflow evaluate --seed 0`, which no training and no choice of settings has used. After each defender it writes the
version's part of results/defence_score.json and keeps the other ones.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.run import provenance
from parallel_agents.workflows.blue_policies import PolicyFactory, TrainedDefender, scripted
from parallel_agents.workflows.defence import NetworkDefence
from parallel_agents.workflows.evaluation import Z95, score

EPISODES, BASELINES = 1000, ("random", "sleep", "react_restore", "blue_react_restore")


def main(version: str, folders: list[Path]) -> None:
    """Score every training's last stage, their ensemble and the baselines; write the results."""
    torch.set_num_threads(1)
    files = [max(folder.glob("*.safetensors")) for folder in folders]
    models = [NetworkDefence(config={"world": {"weights": str(file)}}).agents[0].model for file in files]
    policies: dict[str, PolicyFactory] = {}
    if len(models) > 1:
        policies["ensemble"] = lambda worlds: TrainedDefender(models, worlds)
    for folder, model in zip(folders, models, strict=True):
        policies[folder.name] = partial(TrainedDefender, model)
    policies |= {name: lambda worlds, name=name: scripted(name) for name in BASELINES}  # type: ignore[misc]
    courses = {
        folder.name: [json.loads(line) for line in (folder / "stages.jsonl").read_text().splitlines()]
        for folder in folders
    }
    rows: dict[str, Any] = {}
    for name, make_policy in policies.items():
        result = score(make_policy, version, episodes=EPISODES)
        rows[name] = result.as_json()
        print(f"{name:20}{result.total:9.2f} ± {Z95 * result.total_error:.2f}", result.means, flush=True)
        write({version: {"scores": rows, "stages": courses}})


def write(part: dict[str, Any]) -> None:
    """Write one version's results beside those of the other versions."""
    target = Path(__file__).parent / "results" / "defence_score.json"
    earlier = json.loads(target.read_text())["games"] if target.exists() else {}
    target.write_text(json.dumps({**provenance(), "games": {**earlier, **part}}, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], [Path(word) for word in sys.argv[2:]])
