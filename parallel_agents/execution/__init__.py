"""Where rounds are computed: inline, in threads, in processes, or wherever measured cost says."""

from parallel_agents.execution.backend import Backend, InlineBackend, LazySnapshot
from parallel_agents.execution.launcher import BackendLauncher

__all__ = ["Backend", "BackendLauncher", "InlineBackend", "LazySnapshot"]
