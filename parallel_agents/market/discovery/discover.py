"""`discover`: from an export to `Patterns`. This file is the whole flow; each step lives in a module of its own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parallel_agents.errors import ConfigError
from parallel_agents.market.discovery import competition as ads
from parallel_agents.market.discovery import rivals as bids
from parallel_agents.market.discovery.conversion import (
    Conversion,
    Delay,
    Values,
    fit_delay,
    fit_rates,
    fit_values,
)
from parallel_agents.market.discovery.estimates import Estimate, of_totals
from parallel_agents.market.discovery.history import History, Vocabulary, read_history
from parallel_agents.market.discovery.patterns import (
    Competition,
    Competitor,
    Landscape,
    Patterns,
    Period,
    Segment,
)
from parallel_agents.market.discovery.periods import clusters, mix_by_period, shrink, volume_by_period
from parallel_agents.market.discovery.reader import open_export
from parallel_agents.market.discovery.seasonality import seasonality
from parallel_agents.market.discovery.segments import classes_of, factors, interest_lift, segments_of
from parallel_agents.market.discovery.statistics import Fit

__all__ = ["discover"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_SHORTEST = 14


def discover(
    source: str | Path | Mapping[str, Any],
    *,
    vocabulary: Vocabulary | None = None,
    utc_offset_hours: float = 0.0,
    seed: int = 0,
) -> Patterns:
    """Everything an export tells of its market; the seed only starts the search for classes."""
    export = open_export(source)
    h = read_history(export, vocabulary or Vocabulary(), utc_offset_hours=utc_offset_hours)
    if h.days < _SHORTEST:
        raise ConfigError(f"export {export.source} spans {h.days} days: at least {_SHORTEST} are needed")
    classes = classes_of(h, seed=seed)
    weights = classes.weights(h.clicks.astype(np.float64))
    delay = fit_delay(h, classes.chance, weights)
    rates = fit_rates(h, weights, delay)
    values = fit_values(h, classes.chance, weights)
    segments, order, missing = segments_of(h, classes, delay, rates, values)
    notes = list(missing)
    if export.absent:
        notes.append(f"columns absent from the export: {', '.join(export.absent)}")
    if not h.by_click.all():
        notes.append(
            f"{int((~h.by_click).sum())} purchases have no click within the export: left out of delays and rates"
        )
    hours, weekdays, months = seasonality(h)
    if len(months) < 12:
        notes.append(f"months other than {', '.join(months)}: the export does not cover them")

    market = ads.read_market(export, h) if "ads" in export.reports else None
    competition, landscape, price = None, np.zeros(h.periods, np.int64), None
    if market is None:
        notes.append("competition, prices, creatives and fatigue: GA4 holds no auctions; give an ads table")
    else:
        competition, landscape, price = _competition(market, h, notes)
    effects = _effects(h, weights, segments, order, delay, rates, values, price, notes)
    return Patterns(
        source=export.source,
        first_day=str(h.first_day),
        days=h.days,
        users=len(h.clicks),
        events=h.events,
        segments=segments,
        interest_lift=interest_lift(h, weights, rates, dict(zip(order, segments, strict=True))),
        channels=factors(h, h.channels, h.channel, rates.channel, weights, delay),
        devices=factors(h, h.devices, h.device[h.user], rates.device, weights, delay),
        visits=_visits(h, rates),
        hours=hours,
        weekdays=weekdays,
        months=months,
        competition=competition,
        periods=tuple(
            Period(
                str(h.first_day + 7 * q),
                7 if q < h.periods - 1 else h.days - 7 * q,
                int(landscape[q]),
                {axis: estimates[q] for axis, estimates in effects.items()},
            )
            for q in range(h.periods)
        ),
        not_identified=tuple(notes),
    )


def _visits(h: History, rates: Conversion) -> tuple[Estimate, ...]:
    source = "conversion regression: first, second, third or later click"
    counts = np.bincount(h.visit, h.converted, 3)
    return tuple(
        Estimate.from_log(v, e, count=int(n), source=source)
        for v, e, n in zip(rates.visit.values, rates.visit.errors, counts, strict=True)
    )


def _effects(
    h: History,
    weights: Floats,
    segments: tuple[Segment, ...],
    order: tuple[int, ...],
    delay: Delay,
    rates: Conversion,
    values: Values,
    price: Fit | None,
    notes: list[str],
) -> dict[str, tuple[Estimate, ...]]:
    """Deviations of the periods along every axis; those that show none are noted and read as zero."""
    raw = {
        "volume": volume_by_period(h),
        "conversion": rates.period,
        "value": values.period,
        "delay": delay.period,
        **{f"device:{d}": mix_by_period(h, (h.device == i).astype(np.float64)) for i, d in enumerate(h.devices)},
        **{f"segment:{s.name}": mix_by_period(h, weights[:, k]) for k, s in zip(order, segments, strict=True)},
    }
    if price is not None:
        raw["price"] = price
    found = {}
    for axis, fit in raw.items():
        shrunk = shrink(fit.values, fit.errors, f"{axis} by period") if h.periods > 1 else None
        if shrunk is None:
            notes.append(f"{axis}: no period differs beyond chance")
            shrunk = (
                Estimate(0.0, 0.0, 0.0, "linear", h.periods, f"{axis}: no period differs beyond chance"),
            ) * h.periods
        found[axis] = shrunk
    return found


def _competition(m: ads.Market, h: History, notes: list[str]) -> tuple[Competition, Ints, Fit]:
    """Campaigns, creatives and rivals, the landscape of every period, and the price level of every period."""
    creatives = ads.fit_creatives(m)
    campaigns = ads.our_campaigns(m)
    period = np.minimum(np.arange(h.days) // 7, h.periods - 1)
    price = ads.price_by_period(m, creatives.quality, period, h.periods)
    competitors: dict[str, Competitor] = {}
    landscapes: tuple[Landscape, ...] = ()
    moves = Estimate(0.0, 0.0, 0.0, "linear", 0, "nothing known of rivals")
    landscape = _landscapes(m, creatives.quality, period, h.periods)
    groups, of_day = int(landscape.max()) + 1, landscape[period]
    fits = {r: bids.fit_bidding(m, r, creatives.quality, of_day, groups) for r in range(len(m.rivals))}
    known = {r: fit for r, fit in fits.items() if fit is not None}
    notes += [f"rival {m.rivals[r]}: met too rarely to tell how it bids" for r, f in fits.items() if f is None]
    if not m.rivals:
        notes.append("rivals: no auction-insights table; only the price level of periods is known")
    if known:
        shades = bids.shades(m, known, campaigns)
        ours = np.nan_to_num(m.log_bid - np.nanmean(m.log_bid, axis=0)).mean(axis=1)
        react = bids.reactions(m, known, ours)
        competitors = {m.rivals[r]: bids.competitor(m, b, r, shades[r], react.fits[r]) for r, b in known.items()}
        entered = bids.participation(m, of_day, groups)
        landscapes = tuple(
            bids.landscape(m, known, entered, g, int((landscape == g).sum()), shades, campaigns) for g in range(groups)
        )
        moves = bids.volatility(known, react.rest, of_day)
        notes.append(
            "whether rivals bid their true value: only what they bid is seen, shading in first-price auctions apart"
        )
    busy, error = of_totals(
        lambda t: t[:1] / t[1:], np.stack([m.auctions.sum(axis=1), np.full(m.days, float(m.users))], 1)
    )
    found = Competition(
        campaigns,
        creatives.rate,
        creatives.fatigue,
        creatives.position,
        competitors,
        landscapes,
        moves,
        Estimate.from_error(busy[0], error[0], "log", count=m.days, source="eligible auctions per user and day"),
    )
    return found, landscape, price


def _landscapes(m: ads.Market, quality: Floats, period: Ints, periods: int) -> Ints:
    """Group periods (Q,) by how often each rival enters and how much it offers."""
    if not m.rivals:
        return np.zeros(periods, np.int64)
    entered, _ = bids.participation(m, period, periods)
    offers = np.zeros_like(entered)
    for r in range(len(m.rivals)):
        fit = bids.fit_bidding(m, r, quality, period, periods)
        if fit is not None:
            offers[:, r] = entered[:, r] * np.exp(np.clip(fit.level.mean(axis=1), -5.0, 5.0))
    return clusters(np.hstack([entered, offers]))
