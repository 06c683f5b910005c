"""Networks whose parameters are rows: layouts, layers, the numeric rules and the probe that checks them."""

from parallel_agents.nn.actor_critic import ActorCritic
from parallel_agents.nn.distributions import Discrete, Distribution, MultiDiscrete, SquashedGaussian
from parallel_agents.nn.layers import MLP, ActingNetwork, Convolution, Forward, Layout, Network
from parallel_agents.nn.numerics import Invariance, probe
from parallel_agents.nn.optimizer import gradient_rows
from parallel_agents.nn.quantile import QuantileNetwork
from parallel_agents.nn.recurrent import Recurrent
from parallel_agents.nn.user_module import Architecture, Factory, ModuleNetwork

__all__ = [
    "MLP",
    "ActingNetwork",
    "ActorCritic",
    "Architecture",
    "Convolution",
    "Discrete",
    "Distribution",
    "Factory",
    "Forward",
    "Invariance",
    "Layout",
    "ModuleNetwork",
    "MultiDiscrete",
    "Network",
    "QuantileNetwork",
    "Recurrent",
    "SquashedGaussian",
    "gradient_rows",
    "probe",
]
