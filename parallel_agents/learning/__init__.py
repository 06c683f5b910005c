"""IMPROVE: updates on rows. Snapshot in, State out, no other effect."""

from parallel_agents.learning.dqn import DQNLearner
from parallel_agents.learning.iqn import IQNLearner
from parallel_agents.learning.normalisation import Normalising
from parallel_agents.learning.ppo import PPOLearner
from parallel_agents.learning.recurrent import RecurrentDQNLearner
from parallel_agents.learning.schedules import SHAPES, scheduled

__all__ = ["SHAPES", "DQNLearner", "IQNLearner", "Normalising", "PPOLearner", "RecurrentDQNLearner", "scheduled"]
