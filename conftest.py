"""Set what must hold before any test imports numpy or numba.

Two processes run tests on two cores, so threads of numpy's BLAS would only wait for each other. The cache of numba is
keyed by the sources of all kernels, so that no test sees stale code.
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import parallel_agents.core.kernel_cache  # noqa: F401 - importing it is what it is for
