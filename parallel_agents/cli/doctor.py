"""`parallel-agents doctor`: print what this machine has, and whether equal results can be promised on it."""

from __future__ import annotations

import platform
import shutil
from importlib import metadata
from typing import Any

from parallel_agents.cli.output import print_result

PACKAGES = (
    "numpy", "torch", "numba", "gymnasium", "pettingzoo", "safetensors", "structlog", "matplotlib", "imageio", "duckdb",
    "ray",
)  # fmt: skip


def examine() -> dict[str, Any]:
    """Return versions, resources and the numeric mode of this machine as plain values."""
    import torch

    from parallel_agents.algorithms import DQN
    from parallel_agents.core.errors import NumericsError
    from parallel_agents.engine.stacks import Stack
    from parallel_agents.execution.resources import cores
    from parallel_agents.nn import numerics

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
        "process_start": "forkserver",
        "shared_memory_free": _free_bytes("/dev/shm"),
        "disk_free": _free_bytes("."),
    }


def doctor(*, as_json: bool) -> None:
    """Examine this machine and print the result."""
    result = examine()
    packages = ", ".join(f"{name} {version}" for name, version in result["packages"].items() if version)
    absent = ", ".join(name for name, version in result["packages"].items() if not version) or "nothing"
    verdict = "yes: a stack of agents gives each the bytes it gets alone" if result["equal_bytes"] else "NO"
    text = (
        f"Python {result['python']} on {result['platform']}\n"
        f"packages       {packages}\n"
        f"not installed  {absent}\n"
        f"cores {result['cores']}, CUDA {'yes' if result['cuda'] else 'no'}\n"
        f"numeric mode   {', '.join(f'{key} {value}' for key, value in result['fingerprint'].items())}\n"
        f"equal bytes    {verdict}\n"
        + (f"problem        {result['numeric_problem']}\n" if result["numeric_problem"] else "")
        + f"free           {result['disk_free']:,} bytes on disk, {result['shared_memory_free']:,} shared memory\n"
    )
    print_result(result, text, as_json=as_json)


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _free_bytes(path: str) -> int:
    try:
        return shutil.disk_usage(path).free
    except OSError:
        return 0
