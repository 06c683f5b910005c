"""Make run folders as a run leaves them, without running anything."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

# one pixel
GIF = bytes.fromhex("47494638396101000100800000ff0000000000ff2c00000000010001000002024401003b".replace("ff2c", "2c"))


def epoch_line(epoch: int, rewards: list[float], **extra: Any) -> str:
    return json.dumps({
        "kind": "epoch", "epoch": epoch, "turns": 100, "transitions": 200, "seconds": 0.1, "turns_per_second": 1000.0 + epoch,
        "mean_reward": float(np.mean(rewards)), "rewards": rewards, "version": epoch // 4, "lag": 1, "updates": 8 * epoch,
        "updates_per_second": 80.0, "metrics": {"epsilon": [0.5] * len(rewards), "buffer_fill": [0.1] * len(rewards)}, **extra,
    })  # fmt: skip


def start_line(epochs: int, *, replicas: int = 1, agents: tuple[str, ...] = ("a", "b")) -> str:
    return json.dumps({
        "kind": "start", "run": "r1", "environment": "Hunt", "first_epoch": 1, "epochs": epochs,
        "agents": list(agents) * replicas, "replicas": replicas, "worlds": 1,
    })  # fmt: skip


def make_run_folder(
    path: Path, *, epochs: int, replicas: int = 1, offset: float = 0.0, summary: bool = True,
    agents: tuple[str, ...] = ("a", "b"), extra: dict[str, Any] | None = None,
) -> Path:  # fmt: skip
    """Write the folder of a run whose agents earn more from epoch to epoch."""
    path.mkdir(parents=True)
    draws = np.random.default_rng(3)
    count = replicas * len(agents)
    lines = [start_line(epochs, replicas=replicas, agents=agents)]
    for epoch in range(1, epochs + 1):
        rewards = (
            np.arange(count) % len(agents) + offset + 5.0 * epoch / epochs + draws.normal(0, 0.1, count)
        ).tolist()
        lines.append(epoch_line(epoch, rewards, **(extra or {})))
        if epoch % 4 == 0:
            lines.append(json.dumps({
                "kind": "round", "round": epoch // 4, "epoch": epoch, "seconds": 0.05, "updates": [32] * count,
                "rejected": [0] * count, "metrics": {"loss": [1.0 / epoch] * count, "gradient_norm": [0.5] * count},
            }))  # fmt: skip
    (path / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    (path / "run.json").write_text(json.dumps({"run_id": "r1", "environment": "hunt"}))
    (path / "config.json").write_text(
        json.dumps({"experiment": {"seed": 3, "seeds": replicas}, "model": {"algorithm": "dqn"}})
    )
    log = {"time": "2026-01-01T00:00:00.000+00:00", "level": "warning", "event": "worker_replaced", "round": 3}
    (path / "log.jsonl").write_text(json.dumps(log | {"level": "info"}) + "\n" + json.dumps(log) + "\n")
    (path / "episode_000001.gif").write_bytes(GIF)
    (path / "fingerprint.json").write_text(json.dumps({"torch": "2.13.0"}))
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "args": {"name": "main"}},
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": 1, "args": {"name": "collector"}},
    ]
    for epoch in range(min(epochs, 40)):
        where = {"ph": "X", "pid": 1, "tid": 1}
        events.append(
            {
                **where,
                "name": "collect",
                "cat": "collector",
                "ts": 1000.0 * epoch,
                "dur": 700.0,
                "args": {"epoch": epoch + 1},
            }
        )
        events.append(
            {
                **where,
                "name": "learn",
                "cat": "learner",
                "tid": 2,
                "ts": 1000.0 * epoch + 100,
                "dur": 500.0,
                "args": {"round": epoch + 1},
            }
        )
    (path / "trace.json").write_text(json.dumps({"traceEvents": events}))
    if summary:
        (path / "summary.json").write_text(json.dumps({"digest": "d" * 64, "epochs": epochs, "mean_reward": 5.0}))
    return path
