"""Network defence in a chosen order of repair, and the search for the best order.

- network: the game, CAGE Challenge 2 batched over worlds
- defence, foreign, wrapper: the game as an environment of the engine, of Gymnasium and PettingZoo, and as arrays
- recordings, replay: recorded episodes of the reference simulator, reproduced exactly
- policies: scripted defenders
- orders: the 120 workflows and their features
- compliance: whether fixes keep an order, and the reward for it
- landscape: what every order is worth, by brute force
- gaussian_process, search: which order to try next
- conditioned, training, trainer: a defender that is told an order, its training, and the whole search
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

_HOMES = {
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
    if name not in _HOMES:
        raise AttributeError(f"module 'parallel_agents.workflows' has no attribute {name!r}")
    return getattr(importlib.import_module(f"parallel_agents.workflows.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
