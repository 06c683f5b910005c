"""Kinds and maps."""

import numpy as np
import pytest

from parallel_agents.core.errors import ConfigError
from parallel_agents.games.layout import Field, Kind, walled_map

WALL = Kind("wall", "#", (1, 2, 3), passable=False)
GEM = Kind("gem", "g", (4, 5, 6), value=10.0)


def test_a_map_becomes_codes_in_the_order_of_the_kinds():
    field = Field([WALL, GEM], "#.g\n##.")
    assert field.cells.tolist() == [[[1, 0, 2], [1, 1, 0]]]
    assert field.values.tolist() == [0.0, 0.0, 10.0]
    assert field.passable.tolist() == [True, False, True]
    assert field.palette.tolist() == [[0, 0, 0], [1, 2, 3], [4, 5, 6]]


def test_the_indentation_of_a_map_is_ignored():
    assert np.array_equal(Field([WALL], "##\n#.").cells, Field([WALL], "\n   ##\n   #.\n").cells)


def test_layers_lie_above_each_other_and_agents_stand_on_the_last_or_the_named_one():
    assert Field([WALL, GEM], "gg", "#.").layer == 1
    assert Field([WALL, GEM], "gg", "#.", layer=0).layer == 0


def test_sites_are_where_nothing_lies_and_no_other_layer_blocks():
    field = Field([WALL, GEM], "#..", "..g")
    assert field.sites().tolist() == [[0, 1]]
    assert field.sites("gem").tolist() == [[0, 2]]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: walled_map(2, 9), r"walled field of 2 x 9 has no room inside: give at least 3 x 3"),
        (lambda: Field([], "."), r"a game with 0 kinds: give 1 to 255"),
        (lambda: Field([WALL, Kind("wall", "w", (0, 0, 0))], "."), r"same name: found 'wall', 'wall'; make"),
        (lambda: Field([WALL, Kind("w", "#", (0, 0, 0))], "."), r"same glyph: found '#', '#'; make them differ"),
        (lambda: Field([Kind("x", ".", (0, 0, 0))], "."), r"'x' has the glyph '\.': give one character"),
        (lambda: Field([Kind("x", "xy", (0, 0, 0))], "."), r"'x' has the glyph 'xy': give one character"),
        (lambda: Field([Kind("x", "x", (0, 0, 256))], "."), r"'x' has the colour .*256.*: give three numbers"),
        (lambda: Field([WALL]), r"a field needs at least one map"),
        (lambda: Field([WALL], "###\n##"), r"all rows of one length .* found \(rows, lengths\) \[\(2, 2, 3\)\]"),
        (lambda: Field([WALL], "##", "#"), r"all maps of one height"),
        (lambda: Field([WALL], "#?"), r"the map has \['\?'\], which no kind has .* there are \. #"),
        (lambda: Field([WALL], "##", layer=1), r"agents on layer 1 of a field with 1: give 0 to 0"),
        (lambda: Field([WALL, GEM], "##", outside="gem"), r"'gem' is passable, but agents must not enter it"),
        (lambda: Field([GEM], "g"), r"no kind 'wall' in this game: there are gem"),
    ],
)
def test_a_wrong_declaration_says_what_is_wrong(make, message):
    with pytest.raises(ConfigError, match=message):
        make()
