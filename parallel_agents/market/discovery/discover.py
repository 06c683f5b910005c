"""`discover`: from an export to `Patterns`. This module is the whole flow; each step is a module of its own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from parallel_agents.core.errors import ConfigError
from parallel_agents.market.discovery.click_history import PERIOD_DAYS, VISITS, History, Vocabulary, read_history
from parallel_agents.market.discovery.competition import read_ad_history
from parallel_agents.market.discovery.conversion import fit_conversion
from parallel_agents.market.discovery.estimation import Estimate, Fit, Ints
from parallel_agents.market.discovery.export_reader import open_export
from parallel_agents.market.discovery.patterns import Patterns, Period
from parallel_agents.market.discovery.rivals import fit_competition
from parallel_agents.market.discovery.seasonality import mix_by_period, seasonality, shrink, volume_by_period
from parallel_agents.market.discovery.user_segments import classify_users, describe_segments, factors, interest_lift

_FEWEST_DAYS = 14


def discover(
    source: str | Path | Mapping[str, Any],
    *,
    vocabulary: Vocabulary | None = None,
    utc_offset_hours: float = 0.0,
    seed: int = 0,
) -> Patterns:
    """Return everything an export shows of its market; the seed only starts the search for classes of users."""
    export = open_export(source)
    history = read_history(export, vocabulary or Vocabulary(), utc_offset_hours=utc_offset_hours)
    if history.days < _FEWEST_DAYS:
        raise ConfigError(f"export {export.source} spans {history.days} days: at least {_FEWEST_DAYS} are needed")
    classes = classify_users(history, seed=seed)
    weights = classes.weights(history.clicks.astype(np.float64))
    conversion = fit_conversion(history, classes.chance, weights)
    delays, rates = conversion.delays, conversion.rates
    segments, order, notes_on_segments = describe_segments(history, classes, conversion)
    notes = list(notes_on_segments)
    if export.absent:
        notes.append(f"columns absent from the export: {', '.join(export.absent)}")
    if not history.by_click.all():
        notes.append(
            f"{int((~history.by_click).sum())} purchases have no click within the export: left out of delays and rates"
        )
    hours, weekdays, months = seasonality(history)
    if len(months) < 12:
        notes.append(f"months other than {', '.join(months)}: the export does not cover them")

    deviations = {
        "volume": volume_by_period(history),
        "conversion": rates.period,
        "value": conversion.values.period,
        "delay": delays.period,
    }
    for i, device in enumerate(history.devices):
        deviations[f"device:{device}"] = mix_by_period(history, (history.device == i).astype(np.float64))
    for k, segment in zip(order, segments, strict=True):
        deviations[f"segment:{segment.name}"] = mix_by_period(history, weights[:, k])
    competition, landscape = None, np.zeros(history.periods, np.int64)
    if "ads" in export.reports:
        fit = fit_competition(read_ad_history(export, history), history.day_period, history.periods)
        competition, landscape, deviations["price"] = fit.competition, fit.landscape, fit.price
        notes += fit.notes
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
        segments=segments,
        interest_lift=interest_lift(history, weights, rates, dict(zip(order, segments, strict=True))),
        channels=factors(history, history.channels, history.channel, rates.channel, weights, delays),
        devices=factors(history, history.devices, history.device[history.user], rates.device, weights, delays),
        visits=tuple(rates.visit.log_estimate(i, count=visit_counts[i], source=visit_source) for i in range(VISITS)),
        hours=hours,
        weekdays=weekdays,
        months=months,
        competition=competition,
        periods=_periods(history, landscape, _effects(history.periods, deviations, notes)),
        not_identified=tuple(notes),
    )


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
    last = history.periods - 1
    return tuple(
        Period(
            str(history.first_day + PERIOD_DAYS * q),
            PERIOD_DAYS if q < last else history.days - PERIOD_DAYS * q,
            int(landscape[q]),
            {axis: estimates[q] for axis, estimates in effects.items()},
        )
        for q in range(history.periods)
    )
