"""Networks whose parameters are rows: layouts, layers, the numeric rules and the probe that checks them."""

from parallel_agents.networks.actor_critic import ActorCritic
from parallel_agents.networks.architecture import Architecture, Factory
from parallel_agents.networks.convolution import Convolution
from parallel_agents.networks.distributions import Discrete, Distribution, MultiDiscrete, SquashedGaussian
from parallel_agents.networks.mlp import MLP
from parallel_agents.networks.module import ModuleNetwork
from parallel_agents.networks.probe import Invariance, probe
from parallel_agents.networks.quantile import QuantileNetwork
from parallel_agents.networks.recurrent import Recurrent
from parallel_agents.networks.rows import Layout, gradient_rows

__all__ = [
    "MLP",
    "ActorCritic",
    "Architecture",
    "Convolution",
    "Discrete",
    "Distribution",
    "Factory",
    "Invariance",
    "Layout",
    "ModuleNetwork",
    "MultiDiscrete",
    "QuantileNetwork",
    "Recurrent",
    "SquashedGaussian",
    "gradient_rows",
    "probe",
]
