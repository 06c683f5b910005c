"""Where rounds are computed: inline, in threads, in processes, or wherever measured cost says."""

from parallel_agents.runtime.backends.auto import AutoBackend
from parallel_agents.runtime.backends.inline import InlineBackend
from parallel_agents.runtime.backends.process import ProcessBackend
from parallel_agents.runtime.backends.thread import ThreadBackend
from parallel_agents.runtime.backends.work import Reading

__all__ = ["AutoBackend", "InlineBackend", "ProcessBackend", "Reading", "ThreadBackend"]
