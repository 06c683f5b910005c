"""Measure how often 90 % intervals contain the hidden truth, over many different samples."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
from scipy.special import expit, logit
from scipy.stats import binomtest

from parallel_agents.core.types import Ints
from parallel_agents.market.discovery import Estimate, Vocabulary, discover
from parallel_agents.market.discovery.click_history import read_history
from parallel_agents.market.discovery.competition import read_ad_history
from parallel_agents.market.discovery.conversion import ClickWorth
from parallel_agents.market.discovery.discover import fit_competition
from parallel_agents.market.discovery.estimation import LEVEL
from parallel_agents.market.discovery.export_reader import open_export
from parallel_agents.market.discovery.patterns import Competition
from parallel_agents.market.sample import HiddenMarket, Sample, draw_sample

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


def varied_market(seed: int) -> HiddenMarket:
    """Return a market whose competition differs from seed to seed too, so that coverage is over many truths."""
    market, rng = HiddenMarket.draw(seed), np.random.default_rng([seed, 77])
    rivals, ads, count = market.rivals, market.campaigns, len(market.rivals.names)
    return replace(
        market,
        rivals=replace(
            rivals,
            participation=expit(logit(rivals.participation) + 0.3 * rng.standard_normal(rivals.participation.shape)),
            target=rivals.target + 0.1 * rng.standard_normal(rivals.target.shape),
            spread=rivals.spread * np.exp(0.15 * rng.standard_normal(count)),
            shade=np.minimum(rivals.shade * np.exp(0.3 * rng.standard_normal(count)), 0.0),
            drift=rivals.drift * float(np.exp(0.4 * rng.standard_normal())),
            memory=float(rng.uniform(0.7, 0.95)),
            response=rivals.response * rng.uniform(0.5, 1.2, count),
            pacing=rivals.pacing * rng.uniform(0.5, 1.3, (count, 1)),
        ),
        campaigns=replace(
            ads,
            reserve=ads.reserve * float(np.exp(0.2 * rng.standard_normal())),
            hour_price=ads.hour_price * rng.uniform(0.6, 1.3, ads.hour_price.shape),
        ),
    )


def competition_truth(
    sample: Sample, competition: Competition, landscape: Ints
) -> Iterator[tuple[str, float, Estimate]]:
    """Yield the family, the truth and the estimate of everything that discovery should find of the competition.

    landscape: the one that was found for every period.
    """
    rivals, ads, found = sample.market.rivals, sample.market.campaigns, competition
    yield "fatigue", ads.fatigue, found.fatigue
    yield "volatility", rivals.drift, found.volatility
    for x, e in zip(ads.position[1:], found.position[1:], strict=True):
        yield "position", x, e
    hidden = {g: int(sample.reports.landscape[7 * q]) for q, g in enumerate(landscape.tolist())}
    for m, name in enumerate(rivals.names):
        rival = found.competitors[name]
        yield "response", rivals.response[m], rival.response
        yield "shade", rivals.shade[m], rival.shade
        yield "spread", rivals.spread[m], rival.spread
        for gain, e in zip(rivals.pacing[m], rival.pacing, strict=True):
            yield "pacing", gain, e
        for g, true in hidden.items():
            yield "participation", rivals.participation[true, m], found.landscapes[g].participation[name]
            if rivals.participation[true, m] > 0.2:
                for j, campaign in enumerate(ads.paid):
                    level = rivals.level[true, m] + rivals.target[m, j] + rivals.focus[true, j]
                    yield "level", level, found.landscapes[g].level[name][campaign]
    for j, campaign in enumerate(ads.paid):
        if ads.mechanisms[j] != "first_price":
            yield "reserve", ads.reserve, found.campaigns[campaign].reserve
        for hour, e in zip(ads.hour_price[j], found.campaigns[campaign].hour_price, strict=True):
            yield "hour_price", hour, e


def competition_hits(seeds: Iterable[int]) -> dict[str, list[list[bool]]]:
    """Return by family of the competition, for every export and estimate, whether the truth is covered, and at half.

    Users are not described: what the competition does not need takes most of the time of `discover`.
    """
    found: dict[str, list[list[bool]]] = defaultdict(list)
    for seed in seeds:
        sample = draw_sample(varied_market(seed), seed=seed)
        export = open_export(sample.tables)
        history = read_history(export, Vocabulary(), utc_offset_hours=0.0)
        ads, one = read_ad_history(export, history), Estimate.one("not looked at")
        worth = {campaign: ClickWorth(one, (one, one)) for campaign in ads.campaigns}
        fit = fit_competition(ads, history.day_period, worth, np.ones(history.periods))
        for name, truth, e in competition_truth(sample, fit.competition, fit.landscape):
            found[name].append([e.low <= truth <= e.high, narrowed(e, 0.5).low <= truth <= narrowed(e, 0.5).high])
    return found
