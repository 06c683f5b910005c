"""Import what sets up numpy and numba before any test does: threads of numpy's BLAS, and the cache of compiled kernels.

The cache is keyed by the sources of all kernels, so that no test sees stale code. What test modules import stays until
the end: the garbage collector does not look through it again and again.
"""

import gc

gc.disable()  # until all of it is imported

import parallel_agents.core.kernel_cache  # noqa: E402, F401 - importing it is what it is for


def pytest_collection_finish() -> None:
    """Let the collector look at what comes from now on."""
    gc.freeze()
    gc.enable()
