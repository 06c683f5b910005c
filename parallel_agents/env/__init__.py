"""What users subclass."""

from parallel_agents.env.agent import Agent
from parallel_agents.env.environment import Environment, ParallelEnvironment

__all__ = ["Agent", "Environment", "ParallelEnvironment"]
