"""Bid for clicks in a hundred different markets at once, all of them drawn from data.

    parallel-agents train examples/market_bidding.py --epochs 60
    parallel-agents train examples/market_bidding.py --agents 3 --set world.patterns=patterns.json
    python examples/market_bidding.py --epochs 60

The markets come from a sample export until you name your own data: `world.patterns` takes a file of
`parallel-agents market discover`, or an export. A bidder chooses a bid for each campaign, a creative, and how many
auctions to take part in. Its reward is the revenue credited to its clicks minus their cost, divided by its budget.
"""

import argparse
import sys

import numpy as np

from parallel_agents.market import MarketEnvironment


class MarketBidding(MarketEnvironment):
    """One bidder in 100 markets, trained with PPO, one round per epoch."""

    default_config = {
        **MarketEnvironment.default_config,
        "experiment": {"epochs": 60, "max_turns": 50, "worlds": 100, "eval_episodes": 200},
        "world": {**MarketEnvironment.default_config["world"], "actions": "continuous"},
        "model": {"algorithm": "ppo", "hidden": (32,), "lr": 3e-3, "gamma": 1.0, "gae_lambda": 0.8, "ent_coef": 0.001},
    }


def main() -> None:
    """Train a bidder, and print its profit before and after."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--epochs", type=int, default=60)
    options.add_argument("--worlds", type=int, default=100)
    options.add_argument("--seed", type=int, default=0)
    arguments = options.parse_args()
    environment = MarketBidding(config={"experiment": vars(arguments)})
    before = environment.evaluate(exploration=1.0)
    environment.run_experiment()
    after = environment.evaluate()
    for name, evaluation in (("untrained", before), ("trained", after)):
        mean, low, high = evaluation.interval
        sys.stdout.write(f"{name:<10} profit over budget in unseen worlds {mean:6.2f} ({low:.2f} to {high:.2f})\n")
    kinds = np.array([world.kind.value for world in environment.market.worlds])
    revenue, crisis = (environment.market.info(episode=True)[n].sum() for n in ("revenue", "crisis_revenue"))
    sys.stdout.write(
        f"{len(set(kinds))} kinds of worlds; {crisis / revenue:.0%} of the last epoch's value from crises\n"
    )


if __name__ == "__main__":
    main()
