"""One user in ten is in a crisis and brings half of the value: how should a learner draw its batches?

    python examples/rare_events.py                    some seconds; writes rare_events.png
    python examples/rare_events.py --seeds 40 --updates 600

Each user is met once and gets one of five offers: an ordinary one, which is worth 1 to anybody, or one of four kinds
of help. The right help is worth 9 to a user in a crisis, another kind nothing, and none is worth anything to the
others. Which help is right shows in two features; whether there is a crisis shows in a third, but not for certain.
Past users got random offers. Three learners, equal in all but their batches, learn from the same past:

    uniform     as users come: one in ten is in a crisis
    naive       crises five times as often, and nothing else
    corrected   the same, and each sample's loss is weighted by natural over drawn share, which is exact

Help pays where a crisis is likelier than 1 in 9. A learner who believes that crises are commoner helps too many users;
one who saw few of them does not know yet whom to help, and how.
"""

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from parallel_agents.market.importance import SamplingSetting, Tuning
from parallel_agents.memory import ImportanceSamplingReplayBuffer
from parallel_agents.seeding import Purpose, generator
from parallel_agents.tracking.statistics import Interval, mean_interval

RARE_SHARE, OFFERS = 0.1, 5
SIGNAL = 3.0  # how far the feature that tells a crisis is shifted by one, in deviations
NOISE = np.array([0.5, 5.0])  # deviation of what a regular user and one in a crisis bring
SCALE = 0.1  # rewards are learned in these units, so that most errors lie where the Huber loss is quadratic

WAYS = {
    "uniform": SamplingSetting(enabled=False),
    "naive": SamplingSetting(crisis_parent_weight=5.0, beta=0.0),
    "corrected": SamplingSetting(crisis_parent_weight=5.0, beta=1.0),
}


@dataclass(frozen=True)
class Users:
    """Features (n, 3) of n users, and what is true of them."""

    features: np.ndarray
    rare: np.ndarray

    @staticmethod
    def draw(count: int, seed: int, purpose: Purpose) -> "Users":
        draws = generator(seed, purpose)
        rare = draws.random(count) < RARE_SHARE
        features = draws.standard_normal((count, 3))
        features[:, 0] += SIGNAL * rare
        return Users(features.astype(np.float32), rare)

    def worth(self) -> np.ndarray:
        """(n, offers): what each offer brings on average, knowing who is in a crisis."""
        right = 1 + (self.features[:, 1] > 0) + 2 * (self.features[:, 2] > 0)
        value = np.zeros((len(self.rare), OFFERS))
        value[:, 0] = 1.0
        value[np.arange(len(right)), right] = 9.0 * self.rare
        return value

    def expected(self) -> np.ndarray:
        """(n, offers): the same, knowing the features only; what a perfect learner would believe."""
        odds = RARE_SHARE / (1 - RARE_SHARE) * np.exp(SIGNAL * self.features[:, 0] - SIGNAL**2 / 2)
        value = Users(self.features, np.ones_like(self.rare)).worth()
        value[:, 1:] *= (odds / (1 + odds))[:, None]
        return value


class Offers:
    """The task: the past of a seed, and what a learner's offers bring."""

    def __init__(self, past: int = 8_000) -> None:
        self.past = past
        self.test = Users.draw(20_000, 0, Purpose.EVALUATION_WORLD)

    def fill(self, memory: ImportanceSamplingReplayBuffer, seed: int) -> None:
        users = Users.draw(self.past + 1, seed, Purpose.WORLD)
        draws = generator(seed, Purpose.ACT)
        offers = draws.integers(0, OFFERS, self.past)
        noise = draws.standard_normal(self.past) * NOISE[users.rare[:-1].astype(int)]
        brought = users.worth()[np.arange(self.past), offers] + noise
        kinds = np.where(users.rare[:-1], "crisis_parent", "regular_parent").tolist()
        states, after = users.features[:-1], users.features[1:]  # the next user: kept once, and never learned from
        memory.add_many(states, offers, SCALE * brought, after, np.ones(self.past, bool), kinds, brought)

    def score(self, values, seed: int) -> float:
        """Mean value of the offers to all users."""
        chosen = values(self.test.features).argmax(1)
        return float(self.test.worth()[np.arange(len(chosen)), chosen].mean())


def study(seeds: int, updates: int) -> dict[str, dict[str, np.ndarray]]:
    """Way -> figure -> one number per seed. All learners of all ways are trained as one stack."""
    task = Offers()
    model = {"hidden": (32,), "lr": 2e-3, "gamma": 0.0}
    tuning = Tuning(task, (3,), OFFERS, rows=task.past, updates=updates, batch_size=8, model=model)
    learned = tuning.train(list(WAYS.values()), range(seeds))
    users, truth, belief = task.test, task.test.worth(), task.test.expected()
    found = {}
    for place, way in enumerate(WAYS):
        values = np.stack([v(users.features) / SCALE for v in learned[place * seeds : (place + 1) * seeds]])
        chosen = values.argmax(2)
        value = truth[np.arange(len(truth)), chosen]
        found[way] = {
            "value from rare users": value[:, users.rare].mean(1),
            "value from all users": value.mean(1),
            "users given help": (chosen > 0).mean(1),
            "bias": (values - belief)[..., 1:].mean((1, 2)),
            "variance": ((values - values.mean(0)) ** 2).mean((1, 2)),
        }
    return found


def shares(seed: int = 0, batches: int = 200) -> dict[str, tuple[float, float, float]]:
    """Way -> natural, predicted and measured share of crises in a batch."""
    found = {}
    for way, setting in WAYS.items():
        memory = ImportanceSamplingReplayBuffer(8_000, (3,), setting.sampler(seed))
        Offers().fill(memory, seed)
        draw = memory.sample_importance_weighted if setting.enabled else memory.sample_uniform
        kinds = [kind for _ in range(batches) for kind in memory.event_types(draw(8)[2])]
        natural = memory.statistics()["crisis_parent_share"]
        predicted = memory.sampler.predicted_shares()["crisis_parent"] if setting.enabled else natural
        found[way] = natural, predicted, kinds.count("crisis_parent") / len(kinds)
    return found


def leads(found: dict[str, dict[str, np.ndarray]], figure: str) -> dict[str, Interval]:
    """By how much corrected sampling is ahead of the others, on paired seeds."""
    return {way: mean_interval(found["corrected"][figure] - found[way][figure]) for way in ("uniform", "naive")}


def plot(found: dict[str, dict[str, np.ndarray]], out: Path) -> None:
    from matplotlib.figure import Figure

    figures = ["value from rare users", "value from all users", "bias", "variance"]
    page = Figure(figsize=(11, 3.2), dpi=120, layout="constrained")
    for axes, figure in zip(page.subplots(1, len(figures)), figures, strict=True):
        for place, way in enumerate(WAYS):
            mean, low, high = mean_interval(found[way][figure])
            axes.errorbar(place, mean, [[mean - low], [high - mean]], fmt="o", capsize=5)
        axes.set(title=figure, xticks=range(len(WAYS)), xticklabels=WAYS, xlim=(-0.5, len(WAYS) - 0.5))
        axes.spines[["top", "right"]].set_visible(False)
    page.supylabel("mean and 95 % interval over seeds", fontsize=8)
    page.savefig(out)


def report(found: dict[str, dict[str, np.ndarray]]) -> str:
    """The study as text."""
    lines = ["share of crises        natural  predicted  in batches"]
    lines += [f"  {way:<20} {a:8.1%} {b:10.1%} {c:11.1%}" for way, (a, b, c) in shares().items()]
    for figure in found["uniform"]:
        lines.append(f"{figure}, mean and 95 % interval over {len(found['uniform'][figure])} seeds")
        for way in WAYS:
            mean, low, high = mean_interval(found[way][figure])
            lines.append(f"  {way:<20} {mean:8.3f}   ({low:.3f} to {high:.3f})")
    for figure in ("value from rare users", "value from all users"):
        for way, (mean, low, high) in leads(found, figure).items():
            lines.append(f"corrected over {way}, {figure}: {mean:+.3f} ({low:+.3f} to {high:+.3f})")
    return "\n".join(lines)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--seeds", type=int, default=30)
    options.add_argument("--updates", type=int, default=300)
    options.add_argument("--out", type=Path, default=Path("rare_events.png"))
    chosen = options.parse_args()
    found = study(chosen.seeds, chosen.updates)
    plot(found, chosen.out)
    sys.stdout.write(f"{report(found)}\nplotted in {chosen.out}\n")


if __name__ == "__main__":
    main()
