"""`discover`: from an export to `Patterns`. This module is the whole flow; most steps are modules of their own.

How the market differs over time stands here: factors of hours, weekdays and months, and deviations of periods (weeks).
A period's deviation along an axis is mostly noise in a small export. It is shrunk by the evidence that periods differ
at all (DerSimonian and Laird 1986); an axis along which they do not is reported as not identified.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from parallel_agents.core.errors import ConfigError
from parallel_agents.core.types import Floats, Ints
from parallel_agents.market.discovery.click_history import PERIOD_DAYS, VISITS, History, Vocabulary, read_history
from parallel_agents.market.discovery.competition import (
    AdHistory,
    fit_campaigns,
    fit_creatives,
    price_by_hour,
    price_by_period,
    read_ad_history,
)
from parallel_agents.market.discovery.conversion import ClickWorth, Conversion, fit_conversion, worth_of_clicks
from parallel_agents.market.discovery.day_levels import fit_reactions
from parallel_agents.market.discovery.estimation import Estimate, Fit, dummies, fit_poisson, ratio
from parallel_agents.market.discovery.export_reader import ColumnMap, Export, open_export, some_of
from parallel_agents.market.discovery.patterns import Competition, Competitor, Landscape, Patterns, Period
from parallel_agents.market.discovery.rivals import Auctions, Rivals, cluster_landscapes, describe_rivals
from parallel_agents.market.discovery.user_segments import classify_users, describe_segments, factors, interest_lift

FEWEST_DAYS = 14
_HOUR_ROUNDS = 2  # bids and the wave of the hours depend on each other


def discover(
    source: str | Path | Mapping[str, Any],
    *,
    vocabulary: Vocabulary | None = None,
    utc_offset_hours: float = 0.0,
    columns: ColumnMap | None = None,
    seed: int = 0,
) -> Patterns:
    """Return everything an export shows of its market; the seed only starts the search for classes of users."""
    export = open_export(source, columns)
    history = read_history(export, vocabulary or Vocabulary(), utc_offset_hours=utc_offset_hours)
    if history.days < FEWEST_DAYS:
        raise ConfigError(f"export {export.source} spans {history.days} days: at least {FEWEST_DAYS} are needed")
    classes = classify_users(history, seed=seed)
    weights = classes.weights(history.clicks)
    conversion = fit_conversion(history, classes.chance, weights)
    rates = conversion.rates
    segments, notes = describe_segments(history, classes, weights, conversion)
    notes += [*export.notes, *export.odd]
    if export.absent:
        notes.append(f"columns absent from the export: {', '.join(export.absent)}")
    if not history.by_click.all():
        notes.append(
            f"{int((~history.by_click).sum())} purchases have no click within the export: left out of delays, "
            "rates and shares of the value"
        )
    hours, weekdays, months = seasonality(history)
    if len(months) < 12:
        notes.append(f"months other than {', '.join(months)}: the export does not cover them")

    deviations = {
        "volume": volume_by_period(history),
        "conversion": rates.period,
        "value": conversion.values.period,
        "delay": conversion.delays.period,
    }
    for i, device in enumerate(history.devices):
        deviations[f"device:{device}"] = mix_by_period(history, (history.device == i).astype(np.float64))
    for k, segment in segments.items():
        deviations[f"segment:{segment.name}"] = mix_by_period(history, weights[:, k])
    competition, landscape = None, np.zeros(history.periods, np.int64)
    if "ads" in export.reports:
        ads = read_ad_history(export, history)
        notes += _unmatched(history.campaigns, ads.campaigns)
        gap = ads.unknown()
        if gap is None:
            worth, bought = worth_of_clicks(history, conversion), _bought(history, conversion)
            fit = fit_competition(ads, history.day_period, worth, bought)
            competition, landscape, deviations["price"] = fit.competition, fit.landscape, fit.price
            notes += [*fit.notes, *_assumed(export)]
        else:
            notes.append(f"competition and prices: {gap}")
    else:
        notes.append("competition, prices, creatives and fatigue: GA4 holds no auctions; give an ads table")
    visit_counts = np.bincount(history.visit, history.converted, VISITS)
    visit_source = "conversion regression: first, second, third or later click"
    return Patterns(
        source=export.source,
        first_day=str(history.first_day),
        days=history.days,
        users=len(history.clicks),
        events=history.events,
        segments=tuple(segments.values()),
        interest_lift=interest_lift(history, weights, rates, segments),
        channels=factors(history, history.channels, history.channel, rates.channel, conversion),
        devices=factors(history, history.devices, history.device[history.user], rates.device, conversion),
        visits=tuple(rates.visit.log_estimate(i, count=visit_counts[i], source=visit_source) for i in range(VISITS)),
        hours=hours,
        weekdays=weekdays,
        months=months,
        competition=competition,
        periods=_periods(history, landscape, _effects(history.periods, deviations, notes)),
        not_identified=tuple(notes),
    )


@dataclass(frozen=True, eq=False)
class CompetitionFit:
    """The competition, the landscape (Q,) and log price deviation (Q,) of every period, and what is not identified."""

    competition: Competition
    landscape: Ints
    price: Fit
    notes: list[str]


def fit_competition(ads: AdHistory, period: Ints, worth: Mapping[str, ClickWorth], bought: Floats) -> CompetitionFit:
    """Fit campaigns, creatives and rivals; `period` (D,) is the period of every day.

    worth: what the events say of each campaign. bought: purchases after paid clicks, by period (Q,).
    """
    creatives = fit_creatives(ads)
    hours = price_by_hour(ads, creatives.mean_quality, period)
    campaigns = fit_campaigns(ads, worth, hours, creatives)
    reserve = np.array([campaigns[c].reserve.value if c in campaigns else 0.0 for c in ads.campaigns])
    auctions = Auctions(ads, creatives, reserve, hours)
    landscape = cluster_landscapes(auctions, period)
    rivals = Rivals.of(auctions, landscape[period])
    for _ in range(_HOUR_ROUNDS):
        rivals = rivals.again()
    rare = [name for r, name in enumerate(ads.rivals) if r not in rivals.bidding]
    notes = [f"rival {name}: met too rarely, or our bids vary too little, to tell how it bids" for name in rare]
    if hours is None:
        notes.append("prices by hour: no ads_by_hour table with impression shares; assumed equal at all hours")
    if not ads.rivals:
        notes.append("rivals: no auction-insights table; only the price level of periods is known")
    competitors: dict[str, Competitor] = {}
    landscapes: tuple[Landscape, ...] = ()
    movement = Estimate.zero(0, "nothing known of rivals")
    if rivals.bidding:
        rivals = rivals.widened([rivals.varied(variant) for variant in rivals.auctions.variants(campaigns)])
        campaigns = fit_campaigns(ads, worth, rivals.auctions.hours, creatives)
        levels, reactions, movement = fit_reactions(rivals)
        if not np.isfinite(ads.rival_shown).any():
            notes.append("pacing of rivals: the auction insights hold no impression share of theirs; assumed none")
        competitors, landscapes = describe_rivals(rivals, landscape, campaigns, levels, reactions)
        notes.append(
            "whether rivals bid their true value: only what they bid is seen, shading in first-price auctions apart"
        )
    held, cost = ads.auctions.sum(axis=1), ads.cells(ads.cost).sum(axis=1)
    days = np.isfinite(held) & (held > 0.0) & (cost > 0.0)
    users, source = np.full(int(days.sum()), float(ads.users)), "eligible auctions per user and day"
    spent = np.bincount(period, cost)
    sold = (bought > 0.0) & (spent > 0.0)
    competition = Competition(
        campaigns=campaigns,
        creatives=creatives.rate,
        fatigue=creatives.fatigue,
        position=creatives.position,
        competitors=competitors,
        landscapes=landscapes,
        volatility=movement,
        auctions=ratio(held[days], users, "log", count=len(users), source=source),
        budget=Estimate.spread_of(cost[days] / held[days], source="spend per eligible auction of each day"),
        target=Estimate.spread_of(spent[sold] / bought[sold], source="cost per purchase of each period"),
    )
    return CompetitionFit(competition, landscape, price_by_period(ads, creatives.mean_quality, period), notes)


def load_patterns(source: str | Path = "") -> Patterns:
    """Return the patterns of a `.json` file of `Patterns.save` or of an export; without a source, of a sample."""
    if not str(source):
        return sample_patterns()
    path = Path(source)
    return Patterns.load(path) if path.suffix == ".json" else discover(path)


@lru_cache(maxsize=1)
def sample_patterns() -> Patterns:
    """Return what discovery found in a sample export (`draw_sample(users=3_000, seed=1)`): a first run needs no data.

    They are stored, since a fit differs in its last digits from one machine to another, and so would its worlds.
    """
    return Patterns.load(Path(__file__).with_name("sample_patterns.json"))


def seasonality(history: History) -> tuple[tuple[Estimate, ...], tuple[Estimate, ...], dict[str, Estimate]]:
    """Return factors of 24 hours, 7 weekdays and the months seen, each with mean 1, from clicks per calendar hour."""
    cells = history.days * 24
    hour = np.arange(cells) % 24
    dates = history.first_day + np.arange(history.days)
    weekdays, weekday = np.unique(np.repeat((dates.astype(np.int64) + 3) % 7, 24), return_inverse=True)
    months, month = np.unique(np.repeat(dates.astype("datetime64[M]").astype(np.int64) % 12, 24), return_inverse=True)
    counts = np.bincount(np.minimum(history.time.astype(np.int64), cells - 1), minlength=cells).astype(np.float64)
    x = np.hstack([dummies(hour, 24), dummies(weekday, len(weekdays), drop=0), dummies(month, len(months), drop=0)])
    fit = fit_poisson(x, counts, np.ones(cells), np.ones(cells), np.arange(cells))

    def factors(name: str, start: int, count: int, drop: int) -> tuple[Estimate, ...]:
        logs = fit.block(start, np.eye(count)[:, drop:])
        share = np.exp(logs.values) / np.exp(logs.values).sum()
        centred = logs.combine(np.eye(count) - share)  # gradient of log f − log mean f
        logs = Fit(logs.values - np.log(np.exp(logs.values).mean()), centred.covariance)
        source = f"clicks per calendar hour, log-linear: {name}"
        return tuple(logs.log_estimate(i, count=len(history.user), source=source) for i in range(count))

    by_weekday = dict(zip(weekdays.tolist(), factors("weekday", 24, len(weekdays), 1), strict=True))
    by_month = factors("month", 24 + len(weekdays) - 1, len(months), 1)
    return (
        factors("hour", 0, 24, 0),
        tuple(by_weekday[d] for d in range(7)),
        {str(m + 1): e for m, e in zip(months.tolist(), by_month, strict=True)},
    )


def shrink(effect: Floats, error: Floats, source: str) -> tuple[Estimate, ...] | None:
    """Return deviations (Q,) shrunk by the evidence for them, or None if periods do not differ beyond chance."""
    error = np.maximum(error, 1e-9)
    weight = 1.0 / error**2
    centre = weight @ effect / weight.sum()
    excess = float(weight @ (effect - centre) ** 2) - (len(effect) - 1)
    scale = weight.sum() - (weight @ weight) / weight.sum()
    between = excess / scale if scale > 0.0 else 0.0
    if between <= 0.0:
        return None
    keep = between / (between + error**2)
    return tuple(
        Estimate.from_error(
            k * e, np.sqrt(k) * s, "linear", count=len(effect), source=f"{source}, shrunk by {1 - k:.2f}"
        )
        for k, e, s in zip(keep, effect, error, strict=True)
    )


def volume_by_period(history: History) -> Fit:
    """Return the log deviation (Q,) of clicks per day."""
    days = np.bincount(history.day_period)
    clicks = np.maximum(np.bincount(history.period, minlength=history.periods), 0.5)
    effect = np.log(clicks / days) - np.log(clicks.sum() / days.sum())
    return Fit(effect, np.diag(1.0 / clicks))


def mix_by_period(history: History, membership: Floats) -> Fit:
    """Return the log deviation (Q,) of the share of clicks by a group, to which users belong by `membership` (U,)."""
    periods, users = history.periods, len(membership)
    clicks = np.bincount(history.user * periods + history.period, minlength=users * periods)
    clicks = clicks.reshape(-1, periods).astype(np.float64)
    total = np.maximum(clicks.sum(axis=0), 1.0)
    overall = float(membership @ clicks.sum(axis=1) / total.sum())
    share = np.maximum(membership @ clicks / total, 0.05 * overall)
    influence = (membership[:, None] - share) * clicks / total
    return Fit(np.log(share / overall), np.diag((influence**2).sum(axis=0) / share**2))


def _unmatched(clicked: tuple[str, ...], reported: tuple[str, ...]) -> list[str]:
    """Return notes on campaigns that only one of the two tables names: they are not part of any world."""
    pairs = (
        (reported, clicked, "the ads table but no paid click"),
        (clicked, reported, "paid clicks but no row of ads"),
    )
    return [
        f"campaign {name!r}: {where} has this name; if it was renamed, give both tables one name"
        for here, there, where in pairs
        for name in here
        if name not in there
    ]


def _assumed(export: Export) -> list[str]:
    """Return notes on what is assumed where rows of the reports have no position or no impression share."""
    notes = []
    rows = export.connection.execute(
        "SELECT DISTINCT campaign FROM ads WHERE position IS NULL AND impressions > 0 ORDER BY campaign"
    ).fetchall()
    if rows:
        notes.append(
            f"slots and mechanisms: rows of the ads table have no position ({some_of([str(row[0]) for row in rows])}) "
            "and count as the first; a campaign without positions is assumed to have one slot, at second price unless "
            "we pay our bid"
        )
    if "auction_insights" in export.reports:
        known, count = export.connection.execute("SELECT count(impression_share), count(*) FROM insights").fetchall()[0]
        if 0 < known < count:
            notes.append(
                f"impression shares of rivals: {count - known} of {count} rows of the auction insights have none, and "
                "count as 0; this makes the pacing of rivals look weaker, and its intervals too narrow"
            )
    return notes


def _bought(history: History, conversion: Conversion) -> Floats:
    """Return purchases after paid clicks by period (Q,), those not yet seen included."""
    paid = (history.campaign >= 0).astype(np.float64)
    bought, seen, made = (
        np.bincount(history.period, paid * column, history.periods)
        for column in (history.converted, *conversion.expected)
    )
    return np.asarray(bought * made / np.maximum(seen, 1e-9), np.float64)


def _effects(periods: int, deviations: Mapping[str, Fit], notes: list[str]) -> dict[str, tuple[Estimate, ...]]:
    """Return the shrunk deviations of the periods along every axis; an axis without differences is noted and 0."""
    effects = {}
    for axis, fit in deviations.items():
        shrunk = shrink(fit.values, fit.errors, f"{axis} by period") if periods > 1 else None
        if shrunk is None:
            notes.append(f"{axis}: no period differs beyond chance")
            shrunk = (Estimate.zero(periods, notes[-1]),) * periods
        effects[axis] = shrunk
    return effects


def _periods(history: History, landscape: Ints, effects: Mapping[str, tuple[Estimate, ...]]) -> tuple[Period, ...]:
    """Return the periods; the last one is longer where days remain."""
    return tuple(
        Period(
            str(history.first_day + PERIOD_DAYS * q),
            days,
            int(landscape[q]),
            {axis: estimates[q] for axis, estimates in effects.items()},
        )
        for q, days in enumerate(np.bincount(history.day_period).tolist())
    )
