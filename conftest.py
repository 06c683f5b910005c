"""Import what sets up numpy and numba before any test does: threads of numpy's BLAS, and the cache of compiled kernels.

The cache is keyed by the sources of all kernels, so that no test sees stale code.
"""

import parallel_agents.core.kernel_cache  # noqa: F401 - importing it is what it is for
