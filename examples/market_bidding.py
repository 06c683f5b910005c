"""Bid for clicks in a hundred different markets at once, all of them drawn from data.

    parallel-agents train examples/market_bidding.py --epochs 100
    parallel-agents train examples/market_bidding.py --agents 3 --set world.patterns=patterns.json
    python examples/market_bidding.py --epochs 100

The markets come from a sample export until you name your own data: `world.patterns` takes a file of
`parallel-agents market discover`, or an export. A bidder chooses an alpha for each campaign (it bids alpha times the
predicted value of a click) and a creative. It has a budget and a target for the cost of an acquisition; its score is
acquisitions × min(1, (target / cost of one)²).
"""

import argparse
import sys

from parallel_agents.market import MarketEnvironment
from parallel_agents.market.baselines import Constant, PIDPacer, Random, play
from parallel_agents.market.compare import UNSEEN_SEED, recipe
from parallel_agents.market.policies import TrainedBidder
from parallel_agents.market.simulation import MarketWorlds
from parallel_agents.market.worlds import create_world_variants
from parallel_agents.tracking.statistics import mean_interval


class MarketBidding(MarketEnvironment):
    """One bidder in 100 markets, trained with PPO, one round per epoch."""

    default_config = {
        **MarketEnvironment.default_config,
        "experiment": {"epochs": 100, "max_turns": 48, "worlds": 100, "eval_episodes": 200},
        "model": recipe("ppo", 100)["model"],
    }


def main() -> None:
    """Train a bidder, and print its score in unseen worlds beside simple bidders."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--epochs", type=int, default=100)
    options.add_argument("--worlds", type=int, default=100)
    options.add_argument("--seed", type=int, default=0)
    arguments = options.parse_args()
    environment = MarketBidding(config={"experiment": vars(arguments)})
    environment.run_experiment()
    unseen = create_world_variants(environment.patterns, arguments.worlds, seed=UNSEEN_SEED)
    bidders = {
        "trained": TrainedBidder.of(environment),
        "random": Random(),
        "constant": Constant(0.08, creative=3),
        "pid pacer": PIDPacer(start=0.05, cap=0.006, creative=3),
    }
    with MarketWorlds(unseen) as market:
        for name, bidder in bidders.items():
            mean, low, high = mean_interval(play(market, bidder, [0]).by_world)
            sys.stdout.write(f"{name:<10} score in unseen worlds {mean:6.2f} ({low:.2f} to {high:.2f})\n")


if __name__ == "__main__":
    main()
