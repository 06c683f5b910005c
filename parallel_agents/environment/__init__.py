"""What users subclass."""

from parallel_agents.environment.agent import Agent
from parallel_agents.environment.environment import Environment, ParallelEnvironment

__all__ = ["Agent", "Environment", "ParallelEnvironment"]
