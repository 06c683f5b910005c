"""Networks whose parameters are rows: layouts, layers, the numeric rules and the probe that checks them."""

from parallel_agents.networks.mlp import MLP
from parallel_agents.networks.probe import Invariance, probe
from parallel_agents.networks.rows import Layout, gradient_rows

__all__ = ["MLP", "Invariance", "Layout", "gradient_rows", "probe"]
