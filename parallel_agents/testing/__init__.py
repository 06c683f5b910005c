"""The conformance suite: checks of a user's environment or buffer, each with advice on how to fix what it finds.

    from parallel_agents.testing import check_buffer, check_environment

    for finding in check_environment(MyGame):
        print(finding)

or `parallel-agents check my_game.py`. Every check runs the real engine on your own environment; nothing is mocked.

conformance  the checks of an environment and of a buffer
trace        what an environment returned, call by call, where two runs first differ, and an error for every use of a
             global random generator
"""

from parallel_agents.testing.conformance import Finding, check_buffer, check_environment
from parallel_agents.testing.trace import Trace, first_difference, no_global_generators, record

__all__ = [
    "Finding",
    "Trace",
    "check_buffer",
    "check_environment",
    "first_difference",
    "no_global_generators",
    "record",
]
