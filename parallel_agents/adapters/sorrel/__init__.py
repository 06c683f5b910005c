"""Speed for games written for sorrel, which stay as they are:

    from parallel_agents.adapters.sorrel import ParallelEnvironment

    class Fast(TheirGame, ParallelEnvironment):
        pass

    Fast(world, config).run_experiment()

sorrel itself is never imported: whatever has its names will do. The game comes first, so that what it overrides is
not skipped. By default agents take their turns one after the other, as in sorrel, and sorrel's own loop counts the
epochs; what is gained is told in docs/adapters.md.
"""

from parallel_agents.adapters.sorrel.environment import ParallelEnvironment, parallelize

__all__ = ["ParallelEnvironment", "parallelize"]
