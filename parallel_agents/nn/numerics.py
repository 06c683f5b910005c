"""Set up the numeric environment that equal bytes rest on, name it, and probe what it gives.

The rules of the arithmetic itself are in `layers`. They are facts of one library on one machine. So whenever a stack is
built, in every mode, its real computation runs once at its real shapes: all agents together, one agent at a time, and
in the groups that workers will get. Where the bytes differ, that stack is computed one agent at a time in *every* mode,
with a warning.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

import llvmlite.binding as llvm
import numba
import numpy as np
import torch
from torch import Tensor

from parallel_agents.core.errors import NumericsError

CBWR_AUTO = 2
PORTABLE = "portable-1"
"""Arithmetic of the compiled kernels. Its number grows when their bytes change."""
WORLD_FACTS = ("python", "numpy", "numba", "llvm", "libc", "machine", "numpy_cpu", "numba_cpu", "numba_features")
"""What the bytes of a world may depend on that calls functions of Python, numpy or the C library, such as a sine."""
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""Options of glibc's `mallopt`."""
KEPT_BYTES, MAPPED_BYTES = 2**28, 2**25
"""Freed memory that the C library keeps at most; size from which it maps a block by itself (the largest allowed)."""


def require() -> None:
    """Set one torch thread and check MKL's mode; raise NumericsError if equal bytes cannot be promised.

    Called at the start of every run, learner thread and worker process.
    """
    torch.set_num_threads(1)
    _keep_memory()
    mode = _mkl_mode()
    if mode is not None and mode != CBWR_AUTO:
        raise NumericsError(
            f"MKL runs in mode {mode} instead of {CBWR_AUTO} (AUTO): torch was used before parallel_agents was "
            "imported. Import parallel_agents first, or set MKL_CBWR=AUTO in the environment"
        )


@cache
def _keep_memory() -> None:
    """Ask glibc to keep the memory that an update frees for the next update.

    By default it returns blocks of megabytes to the system at once, and the next update waits for fresh pages.
    """
    if platform.libc_ver()[0] == "glibc":
        library = ctypes.CDLL(None)
        library.mallopt(TRIM_THRESHOLD, KEPT_BYTES)
        library.mallopt(MMAP_THRESHOLD, MAPPED_BYTES)


def fingerprint(device: str = "cpu", *, native: bool = False, portable_worlds: bool = False) -> dict[str, str]:
    """Return everything that bytes depend on beside the program: equal digests are promised for equal fingerprints.

    native: compiled kernels compute everything that is learned, so that no library or CPU has a part in it.
    portable_worlds: nor in what happens in the worlds, see `Environment.portable`.
    """
    found = facts(device)
    if native:
        return {name: found[name] for name in (("arithmetic",) if portable_worlds else ("arithmetic", *WORLD_FACTS))}
    del found["arithmetic"]  # a version of this package stands for it
    return found


def facts(device: str = "cpu") -> dict[str, str]:
    """Return all that a fingerprint may name."""
    mode = _mkl_mode()
    return {
        "arithmetic": PORTABLE,
        **_libraries(),
        "mkl_mode": "absent" if mode is None else str(mode),
        "threads": str(torch.get_num_threads()),
        "device": device if device == "cpu" else torch.cuda.get_device_name(),
    }


@cache
def _libraries() -> dict[str, str]:
    """Return the versions of the libraries that compute, and the CPU instructions that each of them uses here."""
    told = numba.config.CPU_FEATURES  # "" tells numba to use none beyond those of the named CPU
    features = llvm.get_host_cpu_features().flatten() if told is None else told
    return {
        "parallel_agents": metadata.version("parallel-agents"),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "numba": numba.__version__,
        "llvm": ".".join(map(str, llvm.llvm_version_info)),
        "libc": " ".join(platform.libc_ver()),
        "machine": platform.machine(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "numpy_cpu": " ".join(np.show_config(mode="dicts")["SIMD Extensions"].get("found", [])),
        "numba_cpu": numba.config.CPU_NAME or llvm.get_host_cpu_name(),
        "numba_features": hashlib.sha256(features.encode()).hexdigest()[:12],
    }


def _mkl_mode() -> int | None:
    """Return the mode that MKL really runs in; None where torch has no MKL (ARM, macOS)."""
    if not torch.backends.mkl.is_available():  # type: ignore[no-untyped-call]
        return None
    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    getter = getattr(ctypes.CDLL(os.fspath(library)), "mkl_serv_cbwr_get", None) if library.exists() else None
    return None if getter is None else int(getter(-1))


# -- the probe -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Invariance:
    """The result of a probe."""

    holds: bool
    detail: str


def probe(compute: Callable[[slice], Sequence[Tensor]], agents: int, groups: Sequence[slice] = ()) -> Invariance:
    """Compare a computation of all agents with that of each agent alone and of each of some groups, byte for byte.

    compute: takes a slice of the agents and returns tensors whose first axis is the agent.

    >>> x = torch.arange(6.0).reshape(3, 2)
    >>> probe(lambda part: [x[part] * 2], 3).holds
    True
    >>> probe(lambda part: [x[part] - x[part].mean()], 3).holds
    False
    """
    whole = compute(slice(0, agents))
    for group in [*(slice(n, n + 1) for n in range(agents)), *groups]:
        for index, (tensor, of_group) in enumerate(zip(whole, compute(group), strict=True)):
            if not _same_bytes(tensor[group], of_group):
                size = group.stop - group.start
                return Invariance(False, f"result {index} of {agents} agents differs from groups of {size}")
    return Invariance(True, f"{agents} agents agree with one at a time, byte for byte")


def _same_bytes(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors hold the same bytes: NaN equals itself, and 0.0 does not equal -0.0."""
    if a.dtype.is_floating_point:
        integers = torch.int64 if a.dtype == torch.float64 else torch.int32
        a, b = a.contiguous().view(integers), b.contiguous().view(integers)
    return torch.equal(a, b)
