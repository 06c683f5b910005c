"""From journeys to a GA4-shaped events table: flat columns first, then nested as the export has them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from parallel_agents.errors import ConfigError
from parallel_agents.market.sample.hidden import HiddenMarket
from parallel_agents.market.sample.journeys import HOUR, Journeys

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["arrow", "render_events", "take"]

_SITE = "https://www.example.com"
_PATHS = {
    "urgent": "help-now/urgent",
    "research": "guides/compare",
    "price": "pricing/offers",
    "general": "home",
}
_ROOTS = ("family", "teen-anxiety")  # pages without and with a behavioural-health theme
_SAME_SESSION = HOUR // 2
_SYSTEMS = {"ios": ("mobile", "iOS", "Apple"), "android": ("mobile", "Android", "Google")}
_DESKTOP = ("desktop", "Windows", None)
_VALUE_KINDS = ("string_value", "int_value", "float_value", "double_value")


@dataclass(frozen=True, eq=False)
class _Events:
    """Columns of the events table, one entry per event, before they are nested."""

    user: NDArray[np.int64]
    time: NDArray[np.int64]
    name: NDArray[np.int64]  # into _NAMES
    session: NDArray[np.int64]  # session number of the user, from 1
    session_time: NDArray[np.int64]
    lane: NDArray[np.int64]  # campaign, or -1: direct
    creative: NDArray[np.int64]
    page: NDArray[np.int64]  # into the site's pages
    seconds: NDArray[np.float64]
    value: NDArray[np.float64]
    purchase: NDArray[np.int64]  # purchase index, or -1


_NAMES = ("session_start", "page_view", "purchase")


def arrow() -> Any:
    """The pyarrow module, or a clear error without it."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ConfigError("a sample export needs pyarrow: install parallel-agents[data]") from error
    return pyarrow


def render_events(market: HiddenMarket, journeys: Journeys) -> pa.Table:
    """The GA4-shaped events table of some journeys, sorted by time."""
    pa = arrow()
    rows = _flat_events(market, journeys)
    users = len(journeys.segment)
    device = journeys.device[rows.user]
    systems = [_SYSTEMS.get(name, _DESKTOP) for name in market.devices]
    first = np.full(users, np.iinfo(np.int64).max)
    np.minimum.at(first, journeys.user, journeys.time)
    first_click = np.searchsorted(journeys.user, np.arange(users))
    origin = journeys.campaign[first_click][rows.user]
    ads = market.campaigns
    bought = rows.purchase >= 0
    none = np.full(len(rows.user), -1)
    revenue = pa.array(np.where(bought, rows.value, 0.0), mask=~bought)
    dates = rows.time.astype("datetime64[us]").astype("datetime64[D]")
    days, day = np.unique(dates, return_inverse=True)
    term = [f"{_PATHS[t].split('/')[0]} {t}" for t in market.topics]
    lane = rows.lane

    def struct(**columns: Any) -> Any:
        return pa.StructArray.from_arrays(list(columns.values()), list(columns))

    columns = {
        "event_date": take([str(d).replace("-", "") for d in days], day),
        "event_timestamp": pa.array(rows.time),
        "event_name": take(_NAMES, rows.name),
        "event_params": _params(market, rows),
        "event_value_in_usd": revenue,
        "user_id": pa.nulls(len(lane), pa.string()),
        "user_pseudo_id": take([f"{1_000_003 + 7919 * u}.{u}" for u in range(users)], rows.user),
        "user_first_touch_timestamp": pa.array(first[rows.user]),
        "is_active_user": pa.array(np.ones(len(lane), bool)),
        "device": struct(
            category=take([s[0] for s in systems], device),
            mobile_brand_name=take([s[2] for s in systems], device),
            operating_system=take([s[1] for s in systems], device),
            language=take(["en-us"], none + 1),
        ),
        "geo": struct(continent=take(["Americas"], none + 1), country=take(["United States"], none + 1)),
        "traffic_source": struct(
            name=take(ads.names, origin),
            medium=take(ads.mediums, origin),
            source=take(ads.sources, origin),
        ),
        "collected_traffic_source": struct(
            manual_campaign_name=take(ads.names, lane),
            manual_source=take(ads.sources, lane),
            manual_medium=take(ads.mediums, lane),
            manual_term=take(term, np.where(lane >= 0, lane % len(term), -1)),
            manual_content=take(ads.creatives, rows.creative),
            gclid=take([f"click-{i}" for i in range(len(ads.paid))], np.where(lane < len(ads.paid), lane, -1)),
        ),
        "stream_id": take(["1"], none + 1),
        "platform": take(["WEB"], none + 1),
        "ecommerce": struct(
            purchase_revenue_in_usd=revenue,
            purchase_revenue=revenue,
            transaction_id=take([f"T{i:07d}" for i in range(len(journeys.bought_click))], rows.purchase),
        ),
    }
    return pa.table(columns)


def _flat_events(market: HiddenMarket, j: Journeys) -> _Events:
    """Sessions start, pages are viewed, purchases happen: at once, or in a later direct session."""
    clicks, bought = len(j.user), len(j.bought_click)
    wait = j.bought_time - j.time[j.bought_click]
    late = wait > _SAME_SESSION
    session_user = np.concatenate([j.user, j.user[j.bought_click][late]])
    session_time = np.concatenate([j.time, j.bought_time[late]])
    order = np.lexsort((session_time, session_user))
    number = np.empty(len(order), np.int64)
    ranked = session_user[order]
    number[order] = np.arange(len(order)) - np.searchsorted(ranked, ranked) + 1
    owner = j.bought_click.copy()  # the session in which a purchase happens
    owner[late] = clicks + np.arange(int(late.sum()))

    within = np.arange(len(j.page_click)) - np.searchsorted(j.page_click, j.page_click)
    session = np.concatenate([np.arange(len(session_user)), j.page_click, owner])
    paid = len(market.campaigns.paid)
    lane = np.concatenate([j.campaign, np.full(int(late.sum()), -1)])[session]
    creative = np.concatenate([j.creative, np.full(int(late.sum()), -1)])[session]
    page = j.page_topic * len(_ROOTS) + j.page_health
    sessions, pages = len(session_user), len(page)
    checkout = len(market.topics) * len(_ROOTS)
    opening = np.full(sessions, checkout)
    opening[:clicks] = page[np.searchsorted(j.page_click, np.arange(clicks))]
    time = np.concatenate([session_time, j.time[j.page_click] + 1_000_000 * (1 + within), j.bought_time + 1])
    rows = _Events(
        user=session_user[session],
        time=np.minimum(time, j.calendar.start + j.calendar.days * 24 * HOUR - 1),
        name=np.repeat(np.arange(3), [sessions, pages, bought]),
        session=number[session],
        session_time=session_time[session],
        lane=lane,
        creative=np.where((lane >= 0) & (lane < paid), creative, -1),
        page=np.concatenate([opening, page, np.full(bought, checkout)]),
        seconds=np.concatenate([np.zeros(sessions), j.page_seconds, np.zeros(bought)]),
        value=np.concatenate([np.zeros(sessions + pages), j.bought_value]),
        purchase=np.concatenate([np.full(sessions + pages, -1), np.arange(bought)]),
    )
    by_time = np.lexsort((rows.name, rows.time))
    return _Events(**{name: column[by_time] for name, column in vars(rows).items()})


def _params(market: HiddenMarket, rows: _Events) -> pa.Array:
    """`event_params`: a list of {key, value{string, int, float, double}} per event."""
    pa = arrow()
    urls = [f"{_SITE}/{root}/{_PATHS[topic]}" for topic in market.topics for root in _ROOTS]
    urls.append(f"{_SITE}/checkout/thank-you")
    view, sale = rows.name == 1, rows.name == 2
    always = np.ones(len(view), bool)
    session_id = rows.session_time // 1_000_000
    parts: list[tuple[str, NDArray[np.bool_], str, Any]] = [
        ("ga_session_id", always, "int_value", session_id),
        ("ga_session_number", always, "int_value", rows.session),
        ("page_location", always, "string_value", rows.page),
        ("engagement_time_msec", view, "int_value", (rows.seconds * 1000.0).astype(np.int64)),
        ("value", sale, "double_value", rows.value),
    ]
    present = np.stack([part[1] for part in parts], axis=1)  # (events, params)
    flat = np.flatnonzero(present.ravel())
    event, which = flat // len(parts), flat % len(parts)
    offsets = np.concatenate([[0], np.cumsum(present.sum(axis=1))]).astype(np.int32)

    def values(kind: str, empty: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        missing = np.ones(len(flat), bool)
        for i, (_, _, own, column) in enumerate(parts):
            if own == kind:
                mine = which == i
                empty[mine] = column[event[mine]]
                missing[mine] = False
        return empty, missing

    whole, no_whole = values("int_value", np.zeros(len(flat), np.int64))
    real, no_real = values("double_value", np.zeros(len(flat)))
    text, no_text = values("string_value", np.zeros(len(flat), np.int64))
    kinds = [
        take(urls, np.where(no_text, -1, text)),
        pa.array(whole, mask=no_whole),
        pa.nulls(len(flat), pa.float64()),
        pa.array(real, mask=no_real),
    ]
    value = pa.StructArray.from_arrays(kinds, list(_VALUE_KINDS))
    keys = take([part[0] for part in parts], which)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.StructArray.from_arrays([keys, value], ["key", "value"]))


def take(words: Any, index: NDArray[np.int64]) -> pa.Array:
    """Words by index; a negative index gives null."""
    pa = arrow()
    return pa.array(list(words), pa.string()).take(pa.array(index, mask=index < 0))
