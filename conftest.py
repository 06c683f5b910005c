"""Before any test imports numba: its cache is keyed by the sources of all kernels, so that no test sees stale code."""

import parallel_agents.core.compiled  # noqa: F401 - importing it is what it is for
