"""The grid engine, from bottom to top:

    kernels          the rules as compiled loops over worlds and agents
    grid             what a game declares (kinds of things, maps), and the state: cells, positions, headings, moves
    program          the parts of a game as a table that compiled code executes
    mechanics        what games have in common: beams, spawning, regrowth, captures, respawning, neighbours
    observation      what agents observe
    render           pictures, terminal, recorded episodes
    environment      a grid game as an environment
    scripted         scripted players
    social_metrics   social outcomes of an episode

A game is a subclass of `GridEnvironment`; `examples/treasure_hunt.py` is a short one.
"""

from parallel_agents.games.environment import GridEnvironment, Rules, dqn_defaults
from parallel_agents.games.grid import (
    AGENT,
    DIRECTIONS,
    MOVE_OFFSETS,
    MOVES,
    TURNING_MOVES,
    WALL,
    Field,
    Grid,
    Kind,
    blank_map,
    values_at,
    walled_map,
)
from parallel_agents.games.kernels import Stream, TurnKey
from parallel_agents.games.mechanics import (
    Beam,
    Capture,
    EndsWithout,
    FixedCount,
    Hindrance,
    Hits,
    LosesTo,
    Lottery,
    Meetings,
    RandomSpawn,
    Regrowth,
    Respawn,
    Tagging,
    neighbour_cells,
    neighbour_counts,
    pair_neighbours,
)
from parallel_agents.games.observation import WindowObserver
from parallel_agents.games.render import Recorder, draw_world, terminal_view
from parallel_agents.games.scripted import (
    Episode,
    best_directions,
    direction_actions,
    play,
    random_policy,
    walk_towards,
)

__all__ = [
    "AGENT",
    "DIRECTIONS",
    "MOVES",
    "MOVE_OFFSETS",
    "TURNING_MOVES",
    "WALL",
    "Beam",
    "Capture",
    "EndsWithout",
    "Episode",
    "Field",
    "FixedCount",
    "Grid",
    "GridEnvironment",
    "Hindrance",
    "Hits",
    "Kind",
    "LosesTo",
    "Lottery",
    "Meetings",
    "RandomSpawn",
    "Recorder",
    "Regrowth",
    "Respawn",
    "Rules",
    "Stream",
    "Tagging",
    "TurnKey",
    "WindowObserver",
    "best_directions",
    "blank_map",
    "direction_actions",
    "dqn_defaults",
    "draw_world",
    "neighbour_cells",
    "neighbour_counts",
    "pair_neighbours",
    "play",
    "random_policy",
    "terminal_view",
    "values_at",
    "walk_towards",
    "walled_map",
]
