"""Network defence in a chosen order of repair, and the search for the best order.

- network: the game, CAGE Challenge 2 simulated for many worlds at once
- recordings: recorded episodes of the reference simulator, reproduced exactly
- defence, wrapper: the game as an environment of the engine; as arrays, for Gymnasium, PettingZoo and challenge agents
- orders: the 120 orders, their features, and whether a defender keeps one
- blue_policies: scripted, trained and outside defenders as policies
- evaluation: the challenge's score, a defender under an order, and an episode turn by turn
- conditioned: a defender that is conditioned on an order
- gaussian_process, search: which order to try next, and what every order is worth
- trainer: the training of a conditioned defender, and the whole search
- pictures: pictures of scores, orders, trainings, searches and episodes

Importing it registers `parallel_agents/NetworkDefence-v0` with Gymnasium.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import gymnasium

_MODULES = {
    "ChallengeWrapper": "wrapper",
    "NetworkDefence": "defence",
    "NetworkWorlds": "network",
    "ParallelEnvWrapper": "wrapper",
    "ParallelOrderConditionedPPO": "conditioned",
    "ParallelTrajectoryBuffer": "conditioned",
    "ParallelWorkflowRLTrainer": "trainer",
    "RedAgent": "network",
}

__all__ = [
    "ChallengeWrapper",
    "NetworkDefence",
    "NetworkWorlds",
    "ParallelEnvWrapper",
    "ParallelOrderConditionedPPO",
    "ParallelTrajectoryBuffer",
    "ParallelWorkflowRLTrainer",
    "RedAgent",
]

gymnasium.register("parallel_agents/NetworkDefence-v0", entry_point="parallel_agents.workflows.wrapper:NetworkEnv")

if TYPE_CHECKING:
    from parallel_agents.workflows.conditioned import ParallelOrderConditionedPPO, ParallelTrajectoryBuffer
    from parallel_agents.workflows.defence import NetworkDefence
    from parallel_agents.workflows.network import NetworkWorlds, RedAgent
    from parallel_agents.workflows.trainer import ParallelWorkflowRLTrainer
    from parallel_agents.workflows.wrapper import ChallengeWrapper, ParallelEnvWrapper


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'parallel_agents.workflows' has no attribute {name!r}")
    return getattr(importlib.import_module(f"parallel_agents.workflows.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
