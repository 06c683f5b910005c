"""The conformance suite: what a world, a model or a buffer must keep to, as checks that say how to mend it.

    from parallel_agents.testing import check_buffer, check_environment

    for finding in check_environment(MyGame):
        print(finding)

or `parallel-agents check my_game.py`. Every check runs the real engine on your own environment; none is a mock.

trace        what an environment shows and gives, turn by turn, and where two runs first differ
generators   traps on the global random generators
conformance  the checks of an environment
buffers      the checks of a buffer
"""

from parallel_agents.testing.buffers import check_buffer
from parallel_agents.testing.conformance import Finding, check_environment
from parallel_agents.testing.generators import no_global_generators
from parallel_agents.testing.trace import Trace, first_difference, record

__all__ = [
    "Finding",
    "Trace",
    "check_buffer",
    "check_environment",
    "first_difference",
    "no_global_generators",
    "record",
]
