"""CAGE Challenge 2, Scenario 2, rebuilt from its rules and simulated for many worlds at once.

scenario ─► state ─► blue, red ─► observations ─► step_kernels ─► network_worlds
(data)               (actions)    (of blue)       (one turn)      (a batch of worlds)
"""

from parallel_agents.workflows.network.network_worlds import NetworkWorlds
from parallel_agents.workflows.network.red import RED_AGENTS, RedAgent
from parallel_agents.workflows.network.scenario import ACTION_NAMES, HOST_NAMES, VERSIONS, Quirks, action_id

__all__ = ["ACTION_NAMES", "HOST_NAMES", "RED_AGENTS", "VERSIONS", "NetworkWorlds", "Quirks", "RedAgent", "action_id"]
