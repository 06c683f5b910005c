"""The grid engine, bottom to top:

    kernels       the rules as compiled loops over worlds and agents
    field         what a game declares: kinds and maps
    grid          what changes: cells, positions, headings
    sight         what agents see
    draw, record  pictures and recorded episodes
    environment   a grid game as an environment

A game is a subclass of `GridEnvironment`; `examples/treasure_hunt.py` is a short one.
"""

from parallel_agents.games.draw import frame, write_gif
from parallel_agents.games.environment import GridEnvironment, Rules
from parallel_agents.games.field import Field, Kind, walled
from parallel_agents.games.grid import Grid, Spawning
from parallel_agents.games.kernels import Moment, Stream
from parallel_agents.games.record import Recorder
from parallel_agents.games.sight import Sight

__all__ = [
    "Field",
    "Grid",
    "GridEnvironment",
    "Kind",
    "Moment",
    "Recorder",
    "Rules",
    "Sight",
    "Spawning",
    "Stream",
    "frame",
    "walled",
    "write_gif",
]
