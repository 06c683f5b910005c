"""The rules under which a stack of N agents and N stacks of one give the same bytes, in one place.

Facts of one library on one machine, measured and then checked by `probe` wherever a stack is built:

| rule | why |
|---|---|
| `MKL_CBWR=AUTO` before the first MKL call | without it MKL picks kernels by alignment and shape |
| one intra-op thread in every thread and worker | with two, row sums are split at other places |
| no width of 1, in or out (`width`) | such products go to other kernels, in other orders |
| rows per agent fixed (`tile_rows`) | the same row differs between batch sizes |
| activations from exp, tanh, log1p, expm1, relu | others differ in the tails of their vector loops |
| rows padded to a multiple of 32 (`padded`) | every row then has the same alignment |
| Adam fused over row views, each its own step | fused over separate layers is not invariant |
| clipping by the norm of a row | a common norm would couple the agents |

A rule is a function here and nowhere else, so that a test can break each one and see equality fail.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
from collections.abc import Callable
from functools import cache, partial
from importlib import metadata
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numba
import numpy as np
import torch
from torch import Tensor
from torch.optim.adam import adam

from parallel_agents.errors import NumericsError

__all__ = [
    "RowAdam",
    "clip_rows",
    "elu",
    "fingerprint",
    "layer",
    "linear",
    "padded",
    "require",
    "sigmoid",
    "sigmoid_",
    "silu",
    "softplus",
    "tile_rows",
    "weight_gradient",
    "width",
]

Layer = Callable[[Tensor], Tensor]
ROW_MULTIPLE = 32
MIN_WIDTH = 2
MAX_TILE = 64
CBWR_AUTO = 2
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""Options of glibc's `mallopt`."""
KEPT_BYTES, MAPPED_BYTES = 2**28, 2**25
"""Freed memory that is kept, at most; size from which a block is the system's own matter (the largest allowed)."""
LARGE_WEIGHT = 2**13
"""Numbers in one agent's weight from which its gradient is computed in the weight's own order."""


def width(n: int) -> int:
    """The width a layer is computed with: never 1."""
    return max(n, MIN_WIDTH)


def padded(length: int) -> int:
    """Length of an agent's row."""
    return -(-length // ROW_MULTIPLE) * ROW_MULTIPLE


def tile_rows(worlds: int) -> int:
    """Rows per agent in every forward of acting; part of the resolved configuration."""
    return min(worlds, MAX_TILE)


def layer(weight: Tensor, bias: Tensor) -> Layer:
    """`linear` with these, (N, out, in) and (N, 1, out), made ready once for many calls."""
    if weight.requires_grad:
        return partial(linear, weight=weight, bias=bias)
    return partial(torch.baddbmm, bias, batch2=weight.transpose(1, 2))


def linear(inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """(N, R, in), (N, out, in), (N, 1, out) -> (N, R, out), agent by agent with its own weights."""
    if weight.requires_grad and weight.shape[1] * weight.shape[2] >= LARGE_WEIGHT:
        return _Linear.apply(inputs, weight, bias)  # type: ignore[no-any-return, no-untyped-call]
    return torch.baddbmm(bias, inputs, weight.transpose(1, 2))


class _Linear(torch.autograd.Function):
    """`linear` whose weight gets its gradient in its own order, and at once where it belongs.

    Torch's own comes transposed and has to be turned, which for large layers takes longer than computing it.
    """

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(inputs, weight)
        return torch.baddbmm(bias, inputs, weight.transpose(1, 2))

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor]:
        inputs, weight = ctx.saved_tensors
        back = torch.bmm(slope, weight) if ctx.needs_input_grad[0] else None
        return back, weight_gradient(weight, slope, inputs), slope.sum(1, keepdim=True)


def weight_gradient(weight: Tensor, slope: Tensor, inputs: Tensor) -> Tensor | None:
    """The gradient of a weight (N, out, in) from (N, R, out) and (N, R, in), in the weight's own order.

    None where it was added at once to its place: a large leaf whose place for gradients is known (`gradient_rows`)
    needs none that is made only to be copied there.
    """
    if not weight.is_leaf or weight.grad is None or weight.shape[1] * weight.shape[2] < LARGE_WEIGHT:
        return torch.bmm(slope.transpose(1, 2), inputs)
    for place, own, seen in zip(weight.grad, slope, inputs, strict=True):  # one by one also where there is one
        place.addmm_(own.t(), seen)
    return None


def sigmoid(x: Tensor) -> Tensor:
    """The logistic function without overflow, from tanh alone."""
    return 0.5 * torch.tanh(0.5 * x) + 0.5


def sigmoid_(x: Tensor) -> Tensor:
    """`sigmoid` in place, with the same bytes."""
    return x.mul_(0.5).tanh_().mul_(0.5).add_(0.5)


def silu(x: Tensor) -> Tensor:
    """x · sigmoid(x)"""
    return x * sigmoid(x)


def elu(x: Tensor) -> Tensor:
    """x above zero, exp(x) - 1 below."""
    return torch.relu(x) + torch.expm1(-torch.relu(-x))


def softplus(x: Tensor) -> Tensor:
    """log(1 + exp(x)) without overflow."""
    return torch.relu(x) + torch.log1p(torch.exp(-torch.abs(x)))


def clip_rows(gradients: Tensor, limits: Tensor) -> Tensor:
    """Scale (N, P) gradients in place so that no row's norm exceeds its (N,) limit; the (N,) norms before."""
    norms: Tensor = torch.linalg.vector_norm(gradients, dim=1)
    factors = (limits / (norms + 1e-6)).clamp(max=1.0)
    if bool((factors < 1.0).any()):  # times 1 changes nothing
        gradients.mul_(factors[:, None])
    return norms


class RowAdam:
    """Adam over rows, each with its own step count and learning rate (Kingma and Ba 2015).

    rows, gradients, first, second: (N, P); steps: (N,). All but the gradients are written in place.
    """

    def __init__(self, rows: Tensor, gradients: Tensor, first: Tensor, second: Tensor, steps: Tensor) -> None:
        # Fused over separate layers, Adam would not be invariant; fused over whole rows it is.
        self._parts = [list(part.unbind()) for part in (rows, gradients, first, second, steps)]

    def step(self, rates: list[float], accepted: list[bool]) -> None:
        """One step for the accepted rows."""
        for rate in sorted(set(rates)):
            chosen = [n for n, own in enumerate(rates) if own == rate and accepted[n]]
            if chosen:
                every = len(chosen) == len(rates)
                parts = self._parts if every else [[part[n] for n in chosen] for part in self._parts]
                rows, gradients, first, second, steps = parts
                adam(
                    rows, gradients, first, second, [], steps,
                    foreach=False, fused=True, amsgrad=False, beta1=0.9, beta2=0.999,
                    lr=rate, weight_decay=0.0, eps=1e-8, maximize=False,
                )  # fmt: skip


def require() -> None:
    """Put the calling thread under the rules, or say what stands in the way.

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
    """Let the C library keep what an update frees for the next one, where it can be asked to.

    By default it hands blocks of megabytes back to the system at once, and the next update waits for fresh pages.
    """
    if platform.libc_ver()[0] == "glibc":
        library = ctypes.CDLL(None)
        library.mallopt(TRIM_THRESHOLD, KEPT_BYTES)
        library.mallopt(MMAP_THRESHOLD, MAPPED_BYTES)


def fingerprint(device: str = "cpu") -> dict[str, str]:
    """What equality of digests is promised for: the same fingerprint, the same bytes."""
    mode = _mkl_mode()
    return {
        **_libraries(),
        "mkl_mode": "absent" if mode is None else str(mode),
        "threads": str(torch.get_num_threads()),
        "device": device if device == "cpu" else torch.cuda.get_device_name(),
    }


@cache
def _libraries() -> dict[str, str]:
    """Versions of all that computes, and the instructions that each of them uses on this machine."""
    features = numba.config.CPU_FEATURES or llvm.get_host_cpu_features().flatten()
    return {
        "parallel_agents": metadata.version("parallel-agents"),
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
    """The mode MKL really runs in; None where torch has no MKL (ARM, macOS)."""
    if not torch.backends.mkl.is_available():  # type: ignore[no-untyped-call]
        return None
    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    getter = getattr(ctypes.CDLL(os.fspath(library)), "mkl_serv_cbwr_get", None) if library.exists() else None
    return None if getter is None else int(getter(-1))
