"""Measure how often 90 % intervals contain the hidden truth, over many different samples."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from scipy.special import expit, logit
from scipy.stats import binomtest

from parallel_agents.market.discovery import Estimate, Patterns, discover
from parallel_agents.market.discovery.estimation import LEVEL
from parallel_agents.market.sample import Sample, draw_sample

FAMILIES = {
    "shares": ("/share", "/value_share", "/devices/"),
    "value": ("/value_log_mean", "/value_log_spread"),
    "conversion": ("/conversion", "/factor", "visits/"),
    "seasonality": ("hours/", "weekdays/", "months/"),
    "delay": ("/delay_hours", "/delay_shape"),
    "behaviour": ("/visits", "/interest"),
}
REFERENCES = ("devices/ios/factor", "channels/paid_search/factor", "visits/0")  # one by definition


def narrowed(e: Estimate, width: float) -> Estimate:
    """Return the estimate with an interval `width` times as wide, on its own scale."""
    there, back = {"linear": (float, float), "log": (np.log, np.exp), "logit": (logit, expit)}[e.scale]
    low, centre, high = (float(there(x)) for x in (e.low, e.value, e.high))
    return replace(
        e, low=float(back(centre - width * (centre - low))), high=float(back(centre + width * (high - centre)))
    )


def hits(seeds: Iterable[int], **size: int) -> dict[str, list[list[bool]]]:
    """Return by address, for every export, whether the interval and the same at half width contain the truth."""
    found: dict[str, list[list[bool]]] = defaultdict(list)
    for seed in seeds:
        sample = draw_sample(seed=seed, **size)
        estimates = discover({"events": sample.events}).estimates()
        for address, truth in sample.truth()["estimates"].items():
            if address in REFERENCES:
                continue
            if address not in estimates:
                found[address].append([False, False])
                continue
            tried = (narrowed(estimates[address], w) for w in (1.0, 0.5))
            found[address].append([e.low <= truth <= e.high for e in tried])
    return found


def family(address: str) -> str:
    """Return the family of an address."""
    return next(name for name, parts in FAMILIES.items() if any(p in address or address.startswith(p) for p in parts))


def rejected(counts: dict[str, tuple[int, int]], level: float = 0.01) -> dict[str, float]:
    """Return the addresses whose hits (of trials) a binomial test rejects, Holm-corrected, with their p-values."""
    p = {a: binomtest(k, n, LEVEL).pvalue for a, (k, n) in counts.items()}
    bad = {}
    for i, (address, value) in enumerate(sorted(p.items(), key=lambda item: item[1])):
        if value >= level / (len(p) - i):
            break
        bad[address] = value
    return bad


def competition_truth(sample: Sample, patterns: Patterns) -> dict[str, float]:
    """Return what discovery should find of the competition, under the addresses of `Patterns.estimates`."""
    rivals, ads, found = sample.market.rivals, sample.market.campaigns, patterns.competition
    assert found is not None
    truth: dict[str, float] = {"competition/fatigue": ads.fatigue}
    hidden = {p.landscape: int(sample.reports.landscape[7 * q]) for q, p in enumerate(patterns.periods)}
    for m, name in enumerate(rivals.names):
        if name not in found.competitors:
            continue
        truth[f"competition/competitors/{name}/response"] = rivals.response[m]
        for i, gain in enumerate(rivals.pacing[m]):
            truth[f"competition/competitors/{name}/pacing/{i}"] = gain
        for g, true in hidden.items():
            truth[f"competition/landscapes/{g}/participation/{name}"] = rivals.participation[true, m]
            for j, campaign in enumerate(ads.paid):
                if ads.mechanisms[j] != "first_price" and rivals.participation[true, m] > 0.2:
                    level = rivals.level[true, m] + rivals.target[m, j] + rivals.focus[true, j]
                    truth[f"competition/landscapes/{g}/level/{name}/{campaign}"] = level
    for j, campaign in enumerate(ads.paid):
        if ads.mechanisms[j] != "first_price":
            truth[f"competition/campaigns/{campaign}/reserve"] = ads.reserve
        for i in range(2):
            truth[f"competition/campaigns/{campaign}/hour_price/{i}"] = ads.hour_price[j, i]
    truth |= {f"competition/position/{i}": x for i, x in enumerate(ads.position) if i > 0}
    return truth


COMPETITION = {
    "participation": "/participation/", "level": "/level/", "response": "/response", "pacing": "/pacing/",
    "reserve": "/reserve", "hour_price": "/hour_price/", "position": "/position/", "fatigue": "/fatigue",
}  # fmt: skip


def competition_hits(seeds: Iterable[int], **size: int) -> dict[str, list[list[bool]]]:
    """Return by family of the competition, for every export and estimate, whether the truth is covered, and at half."""
    found: dict[str, list[list[bool]]] = defaultdict(list)
    for seed in seeds:
        sample = draw_sample(seed=seed, **size)
        patterns = discover(sample.tables)
        estimates = patterns.estimates()
        for address, truth in competition_truth(sample, patterns).items():
            name = next(name for name, part in COMPETITION.items() if part in address)
            tried = (narrowed(estimates[address], w) for w in (1.0, 0.5))
            found[name].append([e.low <= truth <= e.high for e in tried])
    return found
