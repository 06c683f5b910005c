"""Render journeys and reports as Arrow tables in the GA4 schema, and write them as an export directory.

A sample directory holds `events_YYYYMMDD.parquet` (or `.jsonl`) by day, `ads` and `auction_insights`. The hidden
truth is not in it; `truth.json` is written only on request.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from parallel_agents.core.errors import ConfigError
from parallel_agents.core.files import plain
from parallel_agents.core.types import Floats, Ints
from parallel_agents.market.database import load_pyarrow
from parallel_agents.market.sample.ad_reports import AdReports, draw_reports
from parallel_agents.market.sample.hidden_market import LANDSCAPES, HiddenMarket
from parallel_agents.market.sample.user_journeys import HOUR, Calendar, Journeys, draw_journeys, worth_of_segments

if TYPE_CHECKING:
    import pyarrow as pa

_SITE = "https://www.example.com"
_PATHS = {"urgent": "help-now/urgent", "research": "guides/compare", "price": "pricing/offers", "general": "home"}
_ROOTS = ("family", "teen-anxiety")  # pages without and with a behavioural-health theme
_SAME_SESSION = HOUR // 2  # a later purchase happens in a direct session of its own
_SYSTEMS = {"ios": ("mobile", "iOS", "Apple"), "android": ("mobile", "Android", "Google")}
_DESKTOP = ("desktop", "Windows", None)
_EVENT_NAMES = ("session_start", "page_view", "purchase")


@dataclass(frozen=True, eq=False)
class Sample:
    """One sample in memory: what is exported (`events`, `ads`, `insights`), and what is hidden."""

    market: HiddenMarket
    journeys: Journeys
    reports: AdReports
    events: pa.Table
    ads: pa.Table
    insights: pa.Table
    hours: pa.Table

    @property
    def tables(self) -> dict[str, pa.Table]:
        """What is exported, under the names of the files; `discover` takes it."""
        return {"events": self.events, "ads": self.ads, "auction_insights": self.insights, "ads_by_hour": self.hours}

    def truth(self) -> dict[str, Any]:
        """Return everything hidden as plain values: parameters, what discovery should find, each day's landscape."""
        calendar = self.journeys.calendar
        months = tuple(int(m) + 1 for m in np.unique(calendar.months))
        return {
            "market": plain(self.market),
            "estimates": self.market.truth(months, *worth_of_segments(self.market, calendar)),
            "landscape_of_day": [LANDSCAPES[i] for i in self.reports.landscape],
        }


def draw_sample(
    market: HiddenMarket | None = None,
    *,
    users: int = 3_000,
    days: int = 70,
    first_day: str = "2024-01-01",
    seed: int = 0,
) -> Sample:
    """Return a sample in memory, from the given hidden market or from one drawn by the seed."""
    market = HiddenMarket.draw(seed) if market is None else market
    journeys = draw_journeys(market, users=users, first_day=first_day, days=days, seed=seed)
    reports = draw_reports(market, journeys, seed=seed)
    events = _render_events(market, journeys)
    return Sample(market, journeys, reports, events, *_render_reports(market, journeys.calendar, reports))


def write_sample(
    directory: str | Path,
    sample: Sample,
    *,
    form: Literal["parquet", "jsonl"] = "parquet",
    ads: bool = True,
    truth: bool = False,
) -> Path:
    """Write a sample as an export directory, one events file a day; the directory must be new or empty."""
    if form not in ("parquet", "jsonl"):
        raise ConfigError(f"form {form!r} is unknown: give 'parquet' or 'jsonl'")
    target = Path(directory)
    if target.exists() and any(target.iterdir()):
        raise ConfigError(f"{target} is not empty: give a new or empty directory for the sample")
    target.mkdir(parents=True, exist_ok=True)
    dates = sample.events.column("event_date").to_numpy(zero_copy_only=False)
    starts = np.flatnonzero(np.append(True, dates[1:] != dates[:-1]))
    tables: dict[str, pa.Table] = {}
    for start, stop in zip(starts, np.append(starts[1:], len(dates)), strict=True):
        tables[f"events_{dates[start]}"] = sample.events.slice(start, stop - start)
    if ads:
        tables |= {name: table for name, table in sample.tables.items() if name != "events"}
    for name, table in tables.items():
        path = target / f"{name}.{form}"
        if form == "parquet":
            _pyarrow().parquet.write_table(table, path, compression="zstd")
        else:
            path.write_text("".join(json.dumps(row, separators=(",", ":")) + "\n" for row in table.to_pylist()))
    if truth:
        (target / "truth.json").write_text(json.dumps(sample.truth(), indent=1))
    return target


def _pyarrow() -> Any:
    return load_pyarrow("a sample export")


def _take(words: Any, index: Ints) -> pa.Array:
    """Return words by index; a negative index gives null."""
    pa = _pyarrow()
    return pa.array(list(words), pa.string()).take(pa.array(index, mask=index < 0))


def _render_reports(market: HiddenMarket, calendar: Calendar, reports: AdReports) -> list[pa.Table]:
    """Return the ads table, the auction insights and the report by hour."""
    pa = _pyarrow()
    words = {
        "day": [str(day) for day in calendar.first_day + np.arange(calendar.days)],
        "campaign": market.campaigns.names,
        "creative": market.campaigns.creatives,
        "competitor": market.rivals.names,
    }

    def table(columns: dict[str, NDArray[Any]]) -> Any:
        arrays = {n: _take(words[n], c) if n in words else pa.array(c) for n, c in columns.items()}
        arrays["channel"] = _take(market.campaigns.channels, columns["campaign"])
        return pa.table(arrays).rename_columns(["date" if n == "day" else n for n in arrays])

    return [table(report) for report in (reports.ads, reports.insights, reports.hours)]


@dataclass(frozen=True, eq=False)
class _Events:
    """Columns of the events table, one entry per event, before they are nested."""

    user: Ints
    time: Ints
    name: Ints  # into _EVENT_NAMES
    session: Ints  # session number of the user, from 1
    session_time: Ints
    campaign: Ints  # -1: direct
    creative: Ints
    page: Ints  # into the site's pages
    seconds: Floats
    value: Floats
    purchase: Ints  # purchase index, or -1


def _flat_events(market: HiddenMarket, j: Journeys) -> _Events:
    """Return session starts, page views and purchases, sorted by time; late purchases are in a direct session."""
    clicks, bought = len(j.user), len(j.bought_click)
    late = j.bought_time - j.time[j.bought_click] > _SAME_SESSION
    session_user = np.concatenate([j.user, j.user[j.bought_click][late]])
    session_time = np.concatenate([j.time, j.bought_time[late]])
    order = np.lexsort((session_time, session_user))
    number = np.empty(len(order), np.int64)
    sorted_user = session_user[order]
    number[order] = np.arange(len(order)) - np.searchsorted(sorted_user, sorted_user) + 1
    purchase_session = j.bought_click.copy()
    purchase_session[late] = clicks + np.arange(int(late.sum()))

    page_number = np.arange(len(j.page_click)) - np.searchsorted(j.page_click, j.page_click)
    session = np.concatenate([np.arange(len(session_user)), j.page_click, purchase_session])
    direct = np.full(int(late.sum()), -1)
    campaign = np.concatenate([j.campaign, direct])[session]
    creative = np.concatenate([j.creative, direct])[session]
    page = j.page_topic * len(_ROOTS) + j.page_health
    sessions, pages = len(session_user), len(page)
    checkout = len(market.topics) * len(_ROOTS)
    landing_page = np.full(sessions, checkout)
    landing_page[:clicks] = page[np.searchsorted(j.page_click, np.arange(clicks))]
    time = np.concatenate([session_time, j.time[j.page_click] + 1_000_000 * (1 + page_number), j.bought_time + 1])
    events = _Events(
        user=session_user[session],
        time=np.minimum(time, j.calendar.end - 1),
        name=np.repeat(np.arange(3), [sessions, pages, bought]),
        session=number[session],
        session_time=session_time[session],
        campaign=campaign,
        creative=np.where((campaign >= 0) & (campaign < len(market.campaigns.paid)), creative, -1),
        page=np.concatenate([landing_page, page, np.full(bought, checkout)]),
        seconds=np.concatenate([np.zeros(sessions), j.page_seconds, np.zeros(bought)]),
        value=np.concatenate([np.zeros(sessions + pages), j.bought_value]),
        purchase=np.concatenate([np.full(sessions + pages, -1), np.arange(bought)]),
    )
    by_time = np.lexsort((events.name, events.time))
    return _Events(**{name: column[by_time] for name, column in vars(events).items()})


def _render_events(market: HiddenMarket, journeys: Journeys) -> pa.Table:
    """Return the events table in the GA4 schema, sorted by time."""
    pa = _pyarrow()
    events = _flat_events(market, journeys)
    count, users, ads = len(events.user), len(journeys.segment), market.campaigns
    device, campaign = journeys.device[events.user], events.campaign
    systems = [_SYSTEMS.get(name, _DESKTOP) for name in market.devices]
    first_touch = np.full(users, np.iinfo(np.int64).max)
    np.minimum.at(first_touch, journeys.user, journeys.time)
    first_campaign = journeys.campaign[np.searchsorted(journeys.user, np.arange(users))][events.user]
    bought = events.purchase >= 0
    revenue = pa.array(np.where(bought, events.value, 0.0), mask=~bought)
    days, day = np.unique(events.time.astype("datetime64[us]").astype("datetime64[D]"), return_inverse=True)
    terms = [f"{_PATHS[t].split('/')[0]} {t}" for t in market.topics]

    def struct(**columns: Any) -> Any:
        return pa.StructArray.from_arrays(list(columns.values()), list(columns))

    def constant(word: str) -> Any:
        return _take([word], np.zeros(count, np.int64))

    columns = {
        "event_date": _take([str(d).replace("-", "") for d in days], day),
        "event_timestamp": pa.array(events.time),
        "event_name": _take(_EVENT_NAMES, events.name),
        "event_params": _render_params(market, events),
        "event_value_in_usd": revenue,
        "user_id": pa.nulls(count, pa.string()),
        "user_pseudo_id": _take([f"{1_000_003 + 7919 * u}.{u}" for u in range(users)], events.user),
        "user_first_touch_timestamp": pa.array(first_touch[events.user]),
        "is_active_user": pa.array(np.ones(count, bool)),
        "device": struct(
            category=_take([s[0] for s in systems], device),
            mobile_brand_name=_take([s[2] for s in systems], device),
            operating_system=_take([s[1] for s in systems], device),
            language=constant("en-us"),
        ),
        "geo": struct(continent=constant("Americas"), country=constant("United States")),
        "traffic_source": struct(
            name=_take(ads.names, first_campaign),
            medium=_take(ads.mediums, first_campaign),
            source=_take(ads.sources, first_campaign),
        ),
        "collected_traffic_source": struct(
            manual_campaign_name=_take(ads.names, campaign),
            manual_source=_take(ads.sources, campaign),
            manual_medium=_take(ads.mediums, campaign),
            manual_term=_take(terms, np.where(campaign >= 0, campaign % len(terms), -1)),
            manual_content=_take(ads.creatives, events.creative),
            gclid=_take([f"click-{i}" for i in range(len(ads.paid))], np.where(campaign < len(ads.paid), campaign, -1)),
        ),
        "stream_id": constant("1"),
        "platform": constant("WEB"),
        "ecommerce": struct(
            purchase_revenue_in_usd=revenue,
            purchase_revenue=revenue,
            transaction_id=_take([f"T{i:07d}" for i in range(len(journeys.bought_click))], events.purchase),
        ),
    }
    return pa.table(columns)


def _render_params(market: HiddenMarket, events: _Events) -> pa.Array:
    """Return `event_params`: a list of {key, value{string, int, float, double}} per event."""
    pa = _pyarrow()
    urls = [f"{_SITE}/{root}/{_PATHS[topic]}" for topic in market.topics for root in _ROOTS]
    urls.append(f"{_SITE}/checkout/thank-you")
    always = np.ones(len(events.name), np.bool_)
    params: tuple[tuple[str, str, NDArray[np.bool_], NDArray[Any]], ...] = (  # key, type, events that have it, values
        ("ga_session_id", "int", always, events.session_time // 1_000_000),
        ("ga_session_number", "int", always, events.session),
        ("page_location", "string", always, events.page),
        ("engagement_time_msec", "int", events.name == 1, events.seconds * 1000.0),
        ("value", "double", events.name == 2, events.value),
    )
    keys, kinds, had, columns = zip(*params, strict=True)
    present = np.stack(had, axis=1)  # (events, params)
    which, kind = (np.broadcast_to(own, present.shape)[present] for own in (np.arange(len(keys)), np.array(kinds)))
    number = np.stack(columns, axis=1)[present]  # as floats: whole ones are far below 2⁵³
    values = {
        "string_value": _take(urls, np.where(kind == "string", number, -1.0).astype(np.int64)),
        "int_value": pa.array(number.astype(np.int64), mask=kind != "int"),
        "float_value": pa.nulls(len(number), pa.float64()),
        "double_value": pa.array(number, mask=kind != "double"),
    }
    offsets = np.concatenate([[0], np.cumsum(present.sum(axis=1))]).astype(np.int32)
    pairs = [_take(keys, which), pa.StructArray.from_arrays(list(values.values()), list(values))]
    return pa.ListArray.from_arrays(pa.array(offsets), pa.StructArray.from_arrays(pairs, ["key", "value"]))
