"""Turn the hits of an export into arrays: users, the clicks that brought them, and their purchases.

A click is a session with a known origin (not direct). A purchase belongs to the user's last click before it.
A click is monitored until the user's next click or the export's end, whichever is first: a purchase that it would
lead to later is not seen.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parallel_agents.core.errors import ConfigError
from parallel_agents.core.types import Floats, Ints
from parallel_agents.market.database import literal
from parallel_agents.market.discovery.export_reader import DIRECT, Export, known

PERIOD_DAYS = 7
VISITS = 3  # first, second, third or later
_HOUR = 3_600_000_000.0  # microseconds
_LARGEST_OFFSET = 14.0  # hours from UTC


@dataclass(frozen=True)
class Vocabulary:
    """Words by which pages are classified: the topics that users may differ in, and behavioural health."""

    topics: tuple[tuple[str, tuple[str, ...]], ...] = (
        ("urgent", ("crisis", "urgent", "emergency", "help-now", "hotline")),
        ("research", ("guide", "compare", "review", "research", "how-to", "symptom")),
        ("price", ("pricing", "price", "offer", "discount", "coupon", "sale")),
    )
    rest: str = "general"
    health: tuple[str, ...] = ("anxiety", "depress", "adhd", "mental", "behavio", "therap", "self-harm", "mood")
    funnel: tuple[str, ...] = ("checkout", "cart", "thank-you", "basket")  # pages that follow a decision

    @property
    def names(self) -> tuple[str, ...]:
        """The topics, with the rest last."""
        return (*(name for name, _ in self.topics), self.rest)

    @classmethod
    def read(cls, path: Path) -> Vocabulary:
        """Return the vocabulary of a TOML file; what it does not name stays as it is.

        health = ["sleep"]
        [topics]
        urgent = ["now", "today"]
        """
        try:
            data = tomllib.loads(path.read_text())
        except (OSError, tomllib.TOMLDecodeError) as error:
            raise ConfigError(f"cannot read the vocabulary {path}: {error}") from error
        lists = {**data.pop("topics", {}), **data}
        for name, words in lists.items():
            if not isinstance(words, list) or not words or not all(isinstance(w, str) and w for w in words):
                raise ConfigError(f"{path}: {name} = {words!r}: give a list of words")
        plain = cls()
        return replace(
            plain,
            health=tuple(lists.pop("health", plain.health)),
            funnel=tuple(lists.pop("funnel", plain.funnel)),
            topics=tuple((name, tuple(words)) for name, words in lists.items()) or plain.topics,
        )


_DIRECT = "direct"
_CHANNELS = (  # patterns of a session's medium; the first that matches counts
    ("paid_search", r"cpc|ppc|paid_?search|sem"),
    ("paid_social", r"paid_?social|social_paid"),
    ("display", r"display|banner|cpm|programmatic"),
    ("video", r"video"),
    ("email", r"e-?mail|newsletter"),
    ("affiliate", r"affiliate"),
    ("organic_search", r"organic"),
    ("social", r"social"),
    ("referral", r"referral"),
)
_PAID = ("paid_search", "paid_social", "display", "video")


@dataclass(frozen=True, eq=False)
class History:
    """Users U, clicks C (sorted by user and time), purchases B. Integer columns index the tuples of names."""

    first_day: np.datetime64
    days: int
    events: int
    topics: tuple[str, ...]
    devices: tuple[str, ...]
    channels: tuple[str, ...]
    campaigns: tuple[str, ...]  # of paid clicks
    creatives: tuple[str, ...]  # of paid clicks
    periods: int
    # users
    clicks: Floats  # (U,)
    topic_pages: Floats  # (U, T)
    health_pages: Floats  # (U,)
    engagement: Floats  # (U, 3): number, sum and sum of squares of log seconds on a page
    device: Ints  # (U,)
    # clicks
    user: Ints  # (C,)
    time: Floats  # (C,) hours since the first midnight
    channel: Ints
    campaign: Ints  # -1: not paid, or without a name
    creative: Ints  # -1: not paid, or without a name
    worth: Floats  # (C,) value of the purchases that belong to the click
    visit: Ints  # 0, 1, 2: first, second, third or later click of the user
    monitored: Floats  # (C,) hours
    delay: Floats  # (C,) hours to the first purchase, NaN: none seen
    # purchases
    buyer: Ints  # (B,)
    value: Floats
    bought_period: Ints  # of the click, or of the purchase where no click was seen
    by_click: NDArray[np.bool_]

    @property
    def period(self) -> Ints:
        """Shape (C,): the period of every click; the days after the last whole period belong to that one."""
        return _period_of(self.time, self.periods)

    @property
    def day_period(self) -> Ints:
        """Shape (days,): the period of every day."""
        return np.minimum(np.arange(self.days) // PERIOD_DAYS, self.periods - 1)

    @property
    def converted(self) -> Floats:
        """Shape (C,): 1 where a purchase was seen."""
        return np.isfinite(self.delay).astype(np.float64)

    def per_user(self, clicks: Floats | NDArray[np.bool_]) -> Floats:
        """Return the sums (U,) of a click column (C,) by user."""
        return np.asarray(np.bincount(self.user, clicks, len(self.clicks)), np.float64)


def read_history(export: Export, vocabulary: Vocabulary, *, utc_offset_hours: float = 0.0) -> History:
    """Return the history of an export; hours, weekdays and months are those of the given offset from UTC."""
    if not -_LARGEST_OFFSET <= utc_offset_hours <= _LARGEST_OFFSET:
        raise ConfigError(
            f"utc_offset_hours {utc_offset_hours} is not a time zone: give {-_LARGEST_OFFSET} to {_LARGEST_OFFSET}"
        )
    offset = int(utc_offset_hours * _HOUR)
    _make_tables(export, vocabulary, offset)
    span = export.rows("SELECT min(ts) AS low, max(ts) AS high, count(*) AS events FROM local_hits")
    day = 24 * int(_HOUR)
    first, last = int(span["low"][0]) // day, int(span["high"][0]) // day
    start, days = first * day, last - first + 1
    users = export.rows("SELECT * FROM users ORDER BY id")
    if not len(users["id"]):
        raise ConfigError(f"export {export.source} holds no session with a known origin: no click to learn from")
    clicks = export.rows(f"""
        SELECT c.*, p.ts - c.ts AS delay, coalesce(c.next_ts, {start + days * day}) - c.ts AS monitored,
            coalesce(p.worth, 0) AS worth
        FROM clicks c LEFT JOIN (
            SELECT click, min(ts) AS ts, sum(value) AS worth FROM bought GROUP BY click
        ) p ON p.click = c.id
        ORDER BY c.id""")
    bought = export.rows("""
        SELECT b.value, u.id AS buyer, b.click IS NOT NULL AS by_click, coalesce(c.ts, b.ts) AS ts
        FROM bought b JOIN users u USING ("user") LEFT JOIN clicks c ON b.click = c.id
        WHERE b.value > 0 ORDER BY b.ts, u.id""")
    channels, channel = np.unique(clicks["channel"].astype(str), return_inverse=True)
    devices, device = np.unique(users["device"].astype(str), return_inverse=True)
    (campaigns, campaign), (creatives, creative) = (_paid_names(clicks, name) for name in ("campaign", "creative"))
    periods = max(1, days // PERIOD_DAYS)
    return History(
        first_day=np.datetime64(first, "D"),
        days=days,
        events=int(span["events"][0]),
        topics=vocabulary.names,
        devices=tuple(map(str, devices)),
        channels=tuple(map(str, channels)),
        campaigns=campaigns,
        creatives=creatives,
        periods=periods,
        clicks=users["clicks"].astype(np.float64),
        topic_pages=np.stack([users[f"topic_{i}"] for i in range(len(vocabulary.names))], 1).astype(np.float64),
        health_pages=users["health"].astype(np.float64),
        engagement=np.stack([users[f"engaged_{i}"] for i in range(3)], axis=1).astype(np.float64),
        device=device,
        user=clicks["user_id"].astype(np.int64),
        time=(clicks["ts"] - start) / _HOUR,
        channel=channel,
        campaign=campaign,
        creative=creative,
        worth=known(clicks["worth"]),
        visit=np.minimum(clicks["visit"].astype(np.int64), VISITS) - 1,
        monitored=known(clicks["monitored"]) / _HOUR,
        delay=known(clicks["delay"]) / _HOUR,
        buyer=bought["buyer"].astype(np.int64),
        value=bought["value"].astype(np.float64),
        bought_period=_period_of((bought["ts"] - start) / _HOUR, periods),
        by_click=bought["by_click"].astype(bool),
    )


def _period_of(hours: Floats, periods: int) -> Ints:
    """Return the periods of moments given in hours since the first midnight."""
    return np.minimum((hours / (24.0 * PERIOD_DAYS)).astype(np.int64), periods - 1)


def _paid_names(clicks: dict[str, Any], column: str) -> tuple[tuple[str, ...], Ints]:
    """Return the names in a column of the paid clicks, and the place of every click's name among them, -1 if none."""
    paid = np.isin(clicks["channel"].astype(str), _PAID) & ~np.ma.getmaskarray(clicks[column])
    names, index = np.unique(np.ma.filled(clicks[column], "")[paid].astype(str), return_inverse=True)
    places = np.full(len(paid), -1)
    places[paid] = index
    return tuple(map(str, names)), places


def _matches(words: tuple[str, ...]) -> str:
    """Return the SQL condition that a page's address contains one of the words."""
    pattern = "|".join(re.escape(word.lower()) for word in words)
    return f"regexp_matches(lower(page), {literal(pattern)})"


def _make_tables(export: Export, vocabulary: Vocabulary, offset: int) -> None:
    """Create the tables of sessions, clicks, purchases (`bought`) and users in DuckDB."""
    channel = " ".join(f"WHEN regexp_matches(lower(medium), '{p}') THEN '{name}'" for name, p in _CHANNELS)
    run = export.connection.execute
    run(f'CREATE TABLE local_hits AS SELECT * REPLACE (ts + {offset} AS ts) FROM hits ORDER BY "user", ts')
    run(f"""
        CREATE TABLE sessions AS
        WITH s AS (
            SELECT "user", session, min(ts) AS ts, first(source ORDER BY ts) FILTER (source IS NOT NULL) AS source,
                first(medium ORDER BY ts) FILTER (medium IS NOT NULL) AS medium,
                first(campaign ORDER BY ts) FILTER (campaign IS NOT NULL) AS campaign,
                first(creative ORDER BY ts) FILTER (creative IS NOT NULL) AS creative
            FROM local_hits GROUP BY ALL)
        SELECT *, CASE
            WHEN {DIRECT} THEN '{_DIRECT}'
            {channel} ELSE 'other' END AS channel
        FROM s""")
    run(f"""
        CREATE TABLE clicks AS
        WITH known AS (SELECT "user", row_number() OVER (ORDER BY "user") - 1 AS user_id
                       FROM (SELECT DISTINCT "user" FROM sessions WHERE channel <> '{_DIRECT}'))
        SELECT row_number() OVER (ORDER BY user_id, ts) - 1 AS id, user_id, "user", session, ts, channel,
            campaign, creative,
            row_number() OVER (PARTITION BY user_id ORDER BY ts) AS visit,
            lead(ts) OVER (PARTITION BY user_id ORDER BY ts) AS next_ts
        FROM sessions JOIN known USING ("user") WHERE channel <> '{_DIRECT}'""")
    run("""
        CREATE TABLE bought AS
        WITH p AS (SELECT "user", min(ts) AS ts, max(value) AS value FROM local_hits WHERE name = 'purchase'
                   GROUP BY "user", coalesce(transaction, CAST(ts AS VARCHAR)))
        SELECT p.*, c.id AS click FROM p ASOF LEFT JOIN clicks c ON p."user" = c."user" AND p.ts >= c.ts""")
    topic = "CASE " + " ".join(f"WHEN {_matches(w)} THEN {i}" for i, (_, w) in enumerate(vocabulary.topics))
    topic += f" ELSE {len(vocabulary.topics)} END"
    counts = ", ".join(f"count(*) FILTER (topic = {i}) AS topic_{i}" for i in range(len(vocabulary.names)))
    run(f"""
        CREATE TABLE users AS
        WITH views AS (
            SELECT h."user", {topic} AS topic, {_matches(vocabulary.health)} AS health,
                CASE WHEN engaged > 0 THEN ln(engaged / 1000.0) END AS engaged
            FROM local_hits h JOIN clicks USING ("user", session)
            WHERE name = 'page_view' AND page IS NOT NULL AND NOT {_matches(vocabulary.funnel)}),
        read AS (
            SELECT "user", {counts}, count(*) FILTER (health) AS health, count(engaged) AS engaged_0,
                sum(engaged) AS engaged_1, sum(engaged * engaged) AS engaged_2
            FROM views GROUP BY "user"),
        owned AS (
            SELECT "user", first(CASE WHEN system LIKE '%ios%' OR system LIKE '%iphone%' THEN 'ios'
                WHEN system LIKE '%android%' THEN 'android'
                ELSE coalesce(category, 'unknown') END ORDER BY ts) AS device
            FROM local_hits GROUP BY "user"),
        came AS (SELECT "user", min(user_id) AS id, count(*) AS clicks FROM clicks GROUP BY "user")
        SELECT came.*, device, coalesce(COLUMNS('^(topic_|health|engaged_)'), 0)
        FROM came JOIN owned USING ("user") LEFT JOIN read USING ("user")""")
