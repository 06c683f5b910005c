"""A world in the terminal: two characters a cell, agents as arrows in the colours that they have in pictures."""

from __future__ import annotations

from rich.console import Group
from rich.style import Style
from rich.table import Table
from rich.text import Text

from parallel_agents.games.draw import agent_colours
from parallel_agents.games.environment import GridEnvironment
from parallel_agents.games.grid import uppermost

__all__ = ["terminal_view"]

_ARROWS, _FROZEN = "▲▶▼◀", "✖"
_GROUND = "rgb(24,26,32)"


def terminal_view(game: GridEnvironment, world: int = 0) -> Group:
    """One world as it is now, with its turn and what its agents have earned."""
    earned = Table.grid(padding=(0, 1))
    colours = [_colour(colour) for colour in agent_colours(len(game.agents))]
    for n, agent in enumerate(game.agents):
        earned.add_row(Text("●", colours[n]), str(agent.name), Text(f"{game.earned[n, world]:.4g}", justify="right"))
    beside = Table.grid(padding=(0, 3))
    beside.add_row(_field(game, world, colours), earned)
    return Group(Text(f"{type(game).__name__}, turn {game.turn}", "bold"), beside)


def _field(game: GridEnvironment, world: int, colours: list[str]) -> Text:
    grid, frozen = game.grid, game.frozen()
    standing = {(int(y), int(x)): n for n, (y, x) in enumerate(grid.positions[:, world])}
    lines = Text(no_wrap=True)
    for y, row in enumerate(uppermost(grid.cells[world])):
        for x, code in enumerate(row):
            ground = _colour(grid.field.palette[code]) if code else _GROUND
            n = standing.get((y, x))
            if n is None:
                lines.append("  ", Style(bgcolor=ground))
                continue
            sign = _FROZEN if frozen[n, world] else _ARROWS[grid.headings[n, world]]
            below = ground if code != grid.looks[n, world] else _GROUND  # a beam over an agent stays to be seen
            lines.append(f"{sign} ", Style(color=colours[n], bgcolor=below, bold=True))
        lines.append("\n")
    return lines


def _colour(rgb: object) -> str:
    red, green, blue = (int(part) for part in rgb)  # type: ignore[attr-defined]
    return f"rgb({red},{green},{blue})"
