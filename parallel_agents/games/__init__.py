"""The grid engine, bottom to top:

    kernels              the rules as compiled loops over worlds and agents
    steps, field         what a game declares: actions, kinds and maps
    grid                 what changes: cells, positions, headings
    beams, growth, near  what games have in common: beams, regrowth and respawning, meetings
    sight                what agents see
    draw, record         pictures and recorded episodes
    environment          a grid game as an environment
    play, social         scripted players, and social outcomes of an episode

A game is a subclass of `GridEnvironment`; `examples/treasure_hunt.py` is a short one.
"""

from parallel_agents.games.beams import Beam, Hits
from parallel_agents.games.draw import frame, write_gif
from parallel_agents.games.environment import GridEnvironment, Rules
from parallel_agents.games.field import Field, Kind, blank, walled
from parallel_agents.games.grid import Grid, Spawning
from parallel_agents.games.growth import Regrowth, Scattering, count, respawn
from parallel_agents.games.kernels import Moment, Stream
from parallel_agents.games.near import beside, crowd, meetings
from parallel_agents.games.play import Episode, go, play, random_player, ways
from parallel_agents.games.record import Recorder
from parallel_agents.games.sight import Sight
from parallel_agents.games.steps import MOVES, TURNING_MOVES, WAYS

__all__ = [
    "MOVES",
    "TURNING_MOVES",
    "WAYS",
    "Beam",
    "Episode",
    "Field",
    "Grid",
    "GridEnvironment",
    "Hits",
    "Kind",
    "Moment",
    "Recorder",
    "Regrowth",
    "Rules",
    "Scattering",
    "Sight",
    "Spawning",
    "Stream",
    "beside",
    "blank",
    "count",
    "crowd",
    "frame",
    "go",
    "meetings",
    "play",
    "random_player",
    "respawn",
    "walled",
    "ways",
    "write_gif",
]
