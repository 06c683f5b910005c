"""Algorithms: each file holds one, from its options to its update.

acting           from observations to actions, for all agents of a stack
base             what an algorithm defines, and what users hold as `agent.model`
export           an agent's weights as a file and as an ordinary module
learner          what every learner shares: state, snapshot, schedules, cache blocks
dqn, iqn, ppo    the algorithms
external_update  training on batches that somebody else has drawn
"""

from parallel_agents.algorithms.base import AlgorithmSpec, Model
from parallel_agents.algorithms.dqn import DQN
from parallel_agents.algorithms.iqn import IQN
from parallel_agents.algorithms.ppo import PPO
from parallel_agents.algorithms.registry import RandomModel, model_from_config, register_algorithm

__all__ = ["DQN", "IQN", "PPO", "AlgorithmSpec", "Model", "RandomModel", "model_from_config", "register_algorithm"]
