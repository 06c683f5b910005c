"""Who is next to whom."""

import numpy as np

from parallel_agents.games import beside, crowd, meetings


def test_the_cells_beside_an_agent(boards):
    grid = boards.board("... .0. ...")
    assert beside(grid)[0, 0].tolist() == [[0, 1], [1, 2], [2, 1], [1, 0]]


def test_how_many_stand_next_to_each_cell(boards):
    assert crowd(boards.board("0.1 ...")).tolist() == [[[0, 2, 0], [1, 0, 1]]]


def test_pairs_meet_in_list_order_each_once(boards):
    grid = boards.board("2013 ....")
    assert meetings(grid, np.ones((4, 1), np.bool_))[:, 0].tolist() == [1, 0, -1, -1]
    assert meetings(boards.board("0123"), np.ones((4, 1), np.bool_))[:, 0].tolist() == [1, 0, 3, 2]


def test_only_those_who_are_ready_meet(boards):
    grid = boards.board("012.")
    assert meetings(grid, np.array([[False], [True], [True]]))[:, 0].tolist() == [-1, 2, 1]


def test_a_corner_is_not_beside(boards):
    assert meetings(boards.board("0. .1"), np.ones((2, 1), np.bool_))[:, 0].tolist() == [-1, -1]
