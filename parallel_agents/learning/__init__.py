"""IMPROVE: updates on rows. Snapshot in, State out, no other effect."""

from parallel_agents.learning.dqn import DQNLearner

__all__ = ["DQNLearner"]
