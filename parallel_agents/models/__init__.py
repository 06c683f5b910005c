"""What a user holds as agent.model: take_action, train_step, memory; and how models become rows of a stack."""

from parallel_agents.models.base import Blueprint, Model
from parallel_agents.models.dqn import DQN
from parallel_agents.models.iqn import IQN
from parallel_agents.models.ppo import PPO
from parallel_agents.models.registry import model_from_config
from parallel_agents.models.simple import RandomModel
from parallel_agents.models.stack import Stack, group, shares

__all__ = ["DQN", "IQN", "PPO", "Blueprint", "Model", "RandomModel", "Stack", "group", "model_from_config", "shares"]
