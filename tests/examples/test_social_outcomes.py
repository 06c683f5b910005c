"""Known results of the games, reproduced with this package: `make slow`."""

from __future__ import annotations

from typing import Any

import pytest

from parallel_agents.cli.target import load_target
from parallel_agents.games.social_metrics import sustainability

SEEDS = 5
pytestmark = pytest.mark.usefixtures("own_path")


def evaluate(name: str, epochs: int) -> list[tuple[Any, Any]]:
    """Return (trained, random) episodes of each seed."""
    experiment = {"epochs": epochs, "worlds": 4, "seeds": SEEDS, "record_period": 0}
    model = {"epsilon_epochs": epochs // 2}
    game = load_target(name)(config={"experiment": experiment, "model": model, "parallel": {"backend": "inline"}})
    game.run_experiment()
    return [(env.evaluate(16), env.evaluate(16, exploration=1.0)) for env in game.prepare().environments]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_independent_learners_over_harvest_the_commons() -> None:
    """Perolat et al. (2017): as they learn to pick, apples are gone early, so that sustainability falls."""
    for trained, chance in evaluate("commons_harvest", epochs=40):
        ratio = sustainability(trained.rewards).mean() / sustainability(chance.rewards).mean()
        assert ratio < 0.6
        assert trained.rewards[:20].sum() > 2 * chance.rewards[:20].sum(), "they have learnt to pick"
