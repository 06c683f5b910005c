"""One user in ten is in a crisis and brings half of the value: how should a learner draw its batches?

    python examples/rare_events.py                    some seconds; writes rare_events.png
    python examples/rare_events.py --seeds 40 --updates 600

Each user appears once and gets one of five offers: an ordinary one, which is worth 1 to anybody, or one of four kinds
of help. The right help is worth 9 to a user in a crisis; the other kinds are worth nothing, and no help is worth
anything to the other users. Two features show which help is right; a third one shows, with errors, whether there is a
crisis. Past users got random offers. Three learners that differ only in their batches learn from the same past:

    uniform     samples users as they come: one in ten is in a crisis
    naive       samples crises five times as often, without correction
    corrected   does the same, and weights each sample's loss by its natural share / its share in batches

Help pays if the probability of a crisis is above 1 in 9. A learner that overestimates it helps too many users; a
learner that has seen few crises does not know yet whom to help, and how.
"""

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from parallel_agents.core.seeding import Purpose, generator
from parallel_agents.env.importance_tuning import SamplingSetting, Tuning
from parallel_agents.replay import ImportanceSamplingReplayBuffer
from parallel_agents.tracking.statistics import Interval, mean_interval

RARE_SHARE, OFFERS = 0.1, 5
SIGNAL = 3.0  # by how many standard deviations a crisis shifts the feature that indicates it
NOISE = np.array([0.5, 5.0])  # standard deviation of the value of a regular user, and of one in a crisis
SCALE = 0.1  # rewards are multiplied by it, so that most errors are where the Huber loss is quadratic

SAMPLINGS = {
    "uniform": SamplingSetting(enabled=False),
    "naive": SamplingSetting(crisis_parent_weight=5.0, beta=0.0),
    "corrected": SamplingSetting(crisis_parent_weight=5.0, beta=1.0),
}


@dataclass(frozen=True)
class Users:
    """Features (n, 3) of n users, and which of them are in a crisis."""

    features: np.ndarray
    rare: np.ndarray

    @staticmethod
    def draw(count: int, seed: int, purpose: Purpose) -> "Users":
        """Return random users."""
        draws = generator(seed, purpose)
        rare = draws.random(count) < RARE_SHARE
        features = draws.standard_normal((count, 3))
        features[:, 0] += SIGNAL * rare
        return Users(features.astype(np.float32), rare)

    def worth(self) -> np.ndarray:
        """Return (n, offers) the mean value of each offer, given who is in a crisis."""
        right = 1 + (self.features[:, 1] > 0) + 2 * (self.features[:, 2] > 0)
        value = np.zeros((len(self.rare), OFFERS))
        value[:, 0] = 1.0
        value[np.arange(len(right)), right] = 9.0 * self.rare
        return value

    def expected(self) -> np.ndarray:
        """Return (n, offers) the mean value of each offer, given the features only: a perfect learner's estimate."""
        odds = RARE_SHARE / (1 - RARE_SHARE) * np.exp(SIGNAL * self.features[:, 0] - SIGNAL**2 / 2)
        value = Users(self.features, np.ones_like(self.rare)).worth()
        value[:, 1:] *= (odds / (1 + odds))[:, None]
        return value


class Offers:
    """The task: past users to learn from, and the value of a learner's offers."""

    def __init__(self, past: int = 8_000) -> None:
        self.past = past
        self.test = Users.draw(20_000, 0, Purpose.EVALUATION_WORLD)

    def fill(self, memory: ImportanceSamplingReplayBuffer, seed: int) -> None:
        """Fill a buffer with past users and their random offers."""
        users = Users.draw(self.past + 1, seed, Purpose.WORLD)
        draws = generator(seed, Purpose.ACT)
        offers = draws.integers(0, OFFERS, self.past)
        noise = draws.standard_normal(self.past) * NOISE[users.rare[:-1].astype(int)]
        values = users.worth()[np.arange(self.past), offers] + noise
        event_types = np.where(users.rare[:-1], "crisis_parent", "regular_parent").tolist()
        states, next_states = users.features[:-1], users.features[1:]  # every row is terminal: the next state is unused
        dones = np.ones(self.past, bool)
        memory.add_many(states, offers, SCALE * values, next_states, dones, event_types, values)

    def score(self, values, seed: int) -> float:
        """Return the mean value of the offers to all test users."""
        chosen = values(self.test.features).argmax(1)
        return float(self.test.worth()[np.arange(len(chosen)), chosen].mean())


def study(seeds: int, updates: int) -> dict[str, dict[str, np.ndarray]]:
    """Return sampling -> figure -> one number per seed. All learners of all samplings are trained as one stack."""
    task = Offers()
    model = {"hidden": (32,), "lr": 2e-3, "gamma": 0.0}
    tuning = Tuning(task, (3,), OFFERS, rows=task.past, updates=updates, batch_size=8, model=model)
    learned = tuning.train(list(SAMPLINGS.values()), range(seeds))
    users, truth, belief = task.test, task.test.worth(), task.test.expected()
    results = {}
    for index, sampling in enumerate(SAMPLINGS):
        values = np.stack([v(users.features) / SCALE for v in learned[index * seeds : (index + 1) * seeds]])
        chosen = values.argmax(2)
        value = truth[np.arange(len(truth)), chosen]
        results[sampling] = {
            "value from rare users": value[:, users.rare].mean(1),
            "value from all users": value.mean(1),
            "users given help": (chosen > 0).mean(1),
            "bias": (values - belief)[..., 1:].mean((1, 2)),
            "variance": ((values - values.mean(0)) ** 2).mean((1, 2)),
        }
    return results


def shares(seed: int = 0, batches: int = 200) -> dict[str, tuple[float, float, float]]:
    """Return sampling -> natural, predicted and measured share of crises in a batch."""
    results = {}
    for sampling, setting in SAMPLINGS.items():
        memory = ImportanceSamplingReplayBuffer(8_000, (3,), setting.sampler(seed))
        Offers().fill(memory, seed)
        draw = memory.sample_importance_weighted if setting.enabled else memory.sample_uniform
        event_types = [name for _ in range(batches) for name in memory.event_types(draw(8)[2])]
        natural = memory.statistics()["crisis_parent_share"]
        predicted = memory.sampler.predicted_shares()["crisis_parent"] if setting.enabled else natural
        results[sampling] = natural, predicted, event_types.count("crisis_parent") / len(event_types)
    return results


def leads(results: dict[str, dict[str, np.ndarray]], figure: str) -> dict[str, Interval]:
    """Return by how much corrected sampling is ahead of the others, on paired seeds."""
    return {
        sampling: mean_interval(results["corrected"][figure] - results[sampling][figure])
        for sampling in ("uniform", "naive")
    }


def plot(results: dict[str, dict[str, np.ndarray]], out: Path) -> None:
    """Draw the figures of the study as points with intervals."""
    from matplotlib.figure import Figure

    figures = ["value from rare users", "value from all users", "bias", "variance"]
    page = Figure(figsize=(11, 3.2), dpi=120, layout="constrained")
    for axes, figure in zip(page.subplots(1, len(figures)), figures, strict=True):
        for index, sampling in enumerate(SAMPLINGS):
            mean, low, high = mean_interval(results[sampling][figure])
            axes.errorbar(index, mean, [[mean - low], [high - mean]], fmt="o", capsize=5)
        axes.set(title=figure, xticks=range(len(SAMPLINGS)), xticklabels=SAMPLINGS, xlim=(-0.5, len(SAMPLINGS) - 0.5))
        axes.spines[["top", "right"]].set_visible(False)
    page.supylabel("mean and 95 % interval over seeds", fontsize=8)
    page.savefig(out)


def report(results: dict[str, dict[str, np.ndarray]]) -> str:
    """Return the study as text."""
    lines = ["share of crises        natural  predicted  in batches"]
    lines += [f"  {sampling:<20} {a:8.1%} {b:10.1%} {c:11.1%}" for sampling, (a, b, c) in shares().items()]
    for figure in results["uniform"]:
        lines.append(f"{figure}, mean and 95 % interval over {len(results['uniform'][figure])} seeds")
        for sampling in SAMPLINGS:
            mean, low, high = mean_interval(results[sampling][figure])
            lines.append(f"  {sampling:<20} {mean:8.3f}   ({low:.3f} to {high:.3f})")
    for figure in ("value from rare users", "value from all users"):
        for sampling, (mean, low, high) in leads(results, figure).items():
            lines.append(f"corrected over {sampling}, {figure}: {mean:+.3f} ({low:+.3f} to {high:+.3f})")
    return "\n".join(lines)


def main() -> None:
    """Run the study, draw and print it."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--seeds", type=int, default=30)
    options.add_argument("--updates", type=int, default=300)
    options.add_argument("--out", type=Path, default=Path("rare_events.png"))
    arguments = options.parse_args()
    results = study(arguments.seeds, arguments.updates)
    plot(results, arguments.out)
    sys.stdout.write(f"{report(results)}\nplotted in {arguments.out}\n")


if __name__ == "__main__":
    main()
