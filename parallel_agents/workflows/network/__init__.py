"""CAGE Challenge 2, Scenario 2, rebuilt from its rules and batched over worlds.

tables ─► quirks ─► state ─► blue, attack, red, sight ─► engine ─► worlds: data, switches, one turn, the batch.
"""

from parallel_agents.workflows.network.quirks import VERSIONS, Quirks
from parallel_agents.workflows.network.red import RED_AGENTS
from parallel_agents.workflows.network.tables import ACTION_NAMES, HOST_NAMES, action_id
from parallel_agents.workflows.network.worlds import NetworkWorlds

__all__ = ["ACTION_NAMES", "HOST_NAMES", "RED_AGENTS", "VERSIONS", "NetworkWorlds", "Quirks", "action_id"]
