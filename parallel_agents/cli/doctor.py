"""`parallel-agents doctor`: what this machine has, and what can be promised on it."""

from __future__ import annotations

import json
import platform
import shutil
from importlib import metadata
from typing import Any

from parallel_agents.cli.answers import answer

__all__ = ["doctor", "examine"]

PACKAGES = (
    "numpy",
    "torch",
    "numba",
    "gymnasium",
    "pettingzoo",
    "safetensors",
    "structlog",
    "matplotlib",
    "imageio",
    "duckdb",
    "ray",
)


def examine() -> dict[str, Any]:
    """Everything the doctor looks at, as plain values."""
    import torch

    from parallel_agents.errors import NumericsError
    from parallel_agents.models import DQN, Stack
    from parallel_agents.networks import numerics
    from parallel_agents.runtime.plan import cores

    problem = None
    try:
        numerics.require()
    except NumericsError as error:
        problem = str(error)
    models = [DQN((17,), 3, hidden=(33, 31)) for _ in range(5)]
    for agent, model in enumerate(models):
        model.place(seed=0, agent=agent, worlds=1)
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: _version(name) for name in PACKAGES},
        "cores": cores(),
        "cuda": torch.cuda.is_available(),
        "fingerprint": numerics.fingerprint(),
        "numeric_problem": problem,
        "equal_bytes": Stack(models, together=True).invariance.holds and problem is None,
        "process_start": "spawn",
        "shared_memory_free": _free("/dev/shm"),
        "disk_free": _free("."),
    }


def doctor(*, as_json: bool) -> None:
    """Print what was found."""
    found = examine()
    if as_json:
        answer(json.dumps(found) + "\n")
        return
    packages = ", ".join(f"{name} {version}" for name, version in found["packages"].items() if version)
    absent = ", ".join(name for name, version in found["packages"].items() if not version) or "nothing"
    verdict = "yes: a stack of agents gives each the bytes it gets alone" if found["equal_bytes"] else "NO"
    answer(
        f"Python {found['python']} on {found['platform']}\n"
        f"packages       {packages}\n"
        f"not installed  {absent}\n"
        f"cores {found['cores']}, CUDA {'yes' if found['cuda'] else 'no'}\n"
        f"numeric mode   {', '.join(f'{key} {value}' for key, value in found['fingerprint'].items())}\n"
        f"equal bytes    {verdict}\n"
        + (f"problem        {found['numeric_problem']}\n" if found["numeric_problem"] else "")
        + f"free           {found['disk_free']:,} bytes on disk, {found['shared_memory_free']:,} shared memory\n"
    )


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _free(path: str) -> int:
    try:
        return shutil.disk_usage(path).free
    except OSError:
        return 0
