"""Network defence in a chosen order of repair, and the search for the best order.

- network: the game, CAGE Challenge 2 simulated for many worlds at once
- recordings: recorded episodes of the reference simulator, reproduced exactly
- defence, wrapper: the game as an environment of the engine; as arrays, and for Gymnasium and PettingZoo
- orders: the 120 orders, their features, and whether a defender keeps one
- blue_policies: scripted and trained defenders as policies, and the challenge's score
- conditioned: a defender that is conditioned on an order
- gaussian_process, search: which order to try next, and what every order is worth
- trainer: the training of a conditioned defender, and the whole search
- pictures: pictures of a search and of an episode
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

_MODULES = {
    "NetworkDefence": "defence",
    "NetworkWorlds": "network",
    "ParallelEnvWrapper": "wrapper",
    "ParallelOrderConditionedPPO": "conditioned",
    "ParallelTrajectoryBuffer": "conditioned",
    "ParallelWorkflowRLTrainer": "trainer",
}

__all__ = [
    "NetworkDefence",
    "NetworkWorlds",
    "ParallelEnvWrapper",
    "ParallelOrderConditionedPPO",
    "ParallelTrajectoryBuffer",
    "ParallelWorkflowRLTrainer",
]

if TYPE_CHECKING:
    from parallel_agents.workflows.conditioned import ParallelOrderConditionedPPO, ParallelTrajectoryBuffer
    from parallel_agents.workflows.defence import NetworkDefence
    from parallel_agents.workflows.network import NetworkWorlds
    from parallel_agents.workflows.trainer import ParallelWorkflowRLTrainer
    from parallel_agents.workflows.wrapper import ParallelEnvWrapper


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'parallel_agents.workflows' has no attribute {name!r}")
    return getattr(importlib.import_module(f"parallel_agents.workflows.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
