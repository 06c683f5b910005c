"""What decides whether a checkpoint fits a run."""

from __future__ import annotations

from parallel_agents import DQN
from parallel_agents.checkpoint.contents import _description


def test_the_description_of_a_spec_leaves_out_defaults_so_that_new_options_fit_older_checkpoints() -> None:
    plain = DQN((3,), 2, hidden=(8,)).spec
    normalizing = DQN((3,), 2, hidden=(8,), normalize_rewards=True).spec
    assert "hidden=(8,)" in _description(plain)
    assert "normalize" not in _description(plain)
    assert "normalize=(False, True)" in _description(normalizing)
    assert _description(plain) != _description(DQN((3,), 2, hidden=(9,)).spec)
