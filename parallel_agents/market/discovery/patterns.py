"""`Patterns`: everything discovered in an export. Every number is an `Estimate`; words say what the data cannot tell.

Patterns are written to and read from JSON only. A file is checked for size, keys, types and lengths when it is read.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal

from parallel_agents.core.config import build_section
from parallel_agents.core.errors import ConfigError, NonFiniteError
from parallel_agents.core.files import write_atomically
from parallel_agents.market.discovery.estimation import Estimate

Mechanism = Literal["first_price", "second_price", "gsp"]

CRISIS = "crisis_parent"
_FORMAT = 2
_LARGEST = 64 * 2**20
_WRITTEN = "`parallel-agents market discover EXPORT --out FILE` writes such a file"


@dataclass(frozen=True)
class Segment:
    """A class of users. Shares are of users, rates are per click, delays are Weibull, in hours."""

    name: str
    share: Estimate
    value_share: Estimate
    visits: Estimate  # clicks per user
    conversion: Estimate  # over the channels, devices and visits of the segment
    base: Estimate  # at the reference channel, device and visit
    value_log_mean: Estimate
    value_log_spread: Estimate
    delay_hours: Estimate
    delay_shape: Estimate
    interest: Estimate  # share of behavioural-health pages
    interest_spread: Estimate  # between users
    devices: Mapping[str, Estimate]
    campaigns: Mapping[str, Estimate]  # of its paid clicks
    creatives: Mapping[str, Estimate]  # factor of the click rate, compared with all users


@dataclass(frozen=True)
class Factor:
    """One channel or device: its share of clicks, its conversion, and its factor of conversion, all else equal."""

    share: Estimate
    conversion: Estimate
    factor: Estimate


@dataclass(frozen=True)
class Campaign:
    """How a paid campaign sells its clicks, what we bid and spent there, and what changes during a day.

    `hour_price` (log bids of rivals) and `hour_value` (log conversion) are coefficients of sine and cosine.
    """

    channel: str
    mechanism: Mechanism
    slots: int
    reserve: Estimate
    bid: Estimate
    spend: Estimate  # per eligible auction
    value: Estimate  # of a click
    hour_price: tuple[Estimate, ...]
    hour_value: tuple[Estimate, ...]


@dataclass(frozen=True)
class Competitor:
    """How a rival behaves from day to day. Its level and participation depend on the landscape."""

    spread: Estimate  # of log bids
    shade: Estimate  # log, in first-price auctions
    response: Estimate  # of its log bid to ours of the day before
    pacing: tuple[Estimate, ...]  # proportional, integral and derivative gain on its spend error


@dataclass(frozen=True)
class Landscape:
    """A cluster of periods in which rivals behave alike."""

    periods: int
    participation: Mapping[str, Estimate]
    level: Mapping[str, Mapping[str, Estimate]]  # competitor → campaign → mean log bid


@dataclass(frozen=True)
class Competition:
    """What the ads and auction-insights tables show."""

    campaigns: Mapping[str, Campaign]
    creatives: Mapping[str, Estimate]  # click rate at the top position, fresh
    fatigue: Estimate  # loss of log click rate per impression and user
    position: tuple[Estimate, ...]
    competitors: Mapping[str, Competitor]
    landscapes: tuple[Landscape, ...]
    volatility: Estimate  # of the log price level, per square root of a day
    auctions: Estimate  # eligible auctions per user and day
    budget: Estimate  # spend per auction: median of the days; the interval holds 90 % of them
    target: Estimate  # cost per purchase: the same over periods


@dataclass(frozen=True)
class Period:
    """A stretch of days: its landscape, and its deviation along every axis (log, shrunk by the evidence for it)."""

    first_day: str
    days: int
    landscape: int
    effects: Mapping[str, Estimate]


@dataclass(frozen=True)
class Patterns:
    """Everything that worlds are drawn from."""

    source: str
    first_day: str
    days: int
    users: int
    events: int
    segments: tuple[Segment, ...]
    interest_lift: Estimate
    channels: Mapping[str, Factor]
    devices: Mapping[str, Factor]
    visits: tuple[Estimate, ...]
    hours: tuple[Estimate, ...]
    weekdays: tuple[Estimate, ...]  # Monday first
    months: Mapping[str, Estimate]  # only those seen, January is "1"
    competition: Competition | None
    periods: tuple[Period, ...]
    not_identified: tuple[str, ...]

    def segment(self, name: str) -> Segment:
        """Return the segment of a name."""
        for segment in self.segments:
            if segment.name == name:
                return segment
        raise ConfigError(f"no segment {name!r} was found: there are {[s.name for s in self.segments]}")

    def estimates(self) -> dict[str, Estimate]:
        """Return every estimate by its address, such as `segments/crisis_parent/share`."""
        return dict(_walk(self, ""))

    def to_json(self) -> str:
        """Return the patterns as JSON text."""
        return json.dumps({"format": _FORMAT, **asdict(self)}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Patterns:
        """Return the patterns of a JSON text; raise an error that names the place of anything unexpected."""
        if len(text) > _LARGEST:
            raise ConfigError(f"patterns of {len(text)} characters are too large: at most {_LARGEST}")
        try:
            data = json.loads(text)
        except json.JSONDecodeError as error:
            raise ConfigError(f"patterns are not JSON: {error}; {_WRITTEN}") from error
        if not isinstance(data, dict) or data.pop("format", None) != _FORMAT:
            raise ConfigError(f"patterns are not of format {_FORMAT}: {_WRITTEN}")
        try:
            patterns = build_section(cls, data, "patterns")
        except NonFiniteError as error:
            raise ConfigError(f"patterns: {error}") from error
        _check_sizes(patterns)
        return patterns

    def save(self, path: str | Path) -> None:
        """Write the patterns to a JSON file."""
        write_atomically(Path(path), [self.to_json().encode()])

    @classmethod
    def load(cls, path: str | Path) -> Patterns:
        """Return the patterns of a JSON file."""
        file = Path(path)
        if not file.is_file():
            raise ConfigError(f"patterns {file} do not exist: {_WRITTEN}")
        if file.stat().st_size > _LARGEST:
            raise ConfigError(f"patterns {file} are too large: at most {_LARGEST} bytes")
        try:
            return cls.from_json(file.read_text(encoding="utf-8"))
        except UnicodeDecodeError as error:
            raise ConfigError(f"patterns {file} are not text: {error}; {_WRITTEN}") from error
        except ConfigError as error:
            raise ConfigError(f"{file}: {error}") from error


def _walk(value: Any, address: str) -> Iterator[tuple[str, Estimate]]:
    """Yield every estimate within a value, with its address."""
    if isinstance(value, Estimate):
        yield address, value
    elif is_dataclass(value):
        for f in fields(value):
            yield from _walk(getattr(value, f.name), f"{address}/{f.name}" if address else f.name)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _walk(item, f"{address}/{key}")
    elif isinstance(value, tuple):
        for i, item in enumerate(value):
            yield from _walk(item, f"{address}/{getattr(item, 'name', i)}")


def _check_sizes(patterns: Patterns) -> None:
    """Raise if lists have the wrong length, or a name that worlds look up is absent."""
    wrong = [
        f"{name} has {len(entries)} entries, expected {due}"
        for name, entries, due in (("hours", patterns.hours, 24), ("weekdays", patterns.weekdays, 7))
        if len(entries) != due
    ]

    def need(names: Iterable[str], found: Mapping[str, Any], where: str) -> None:
        if absent := [name for name in names if name not in found]:
            wrong.append(f"{where} lacks {', '.join(absent)}")

    if not patterns.segments:
        wrong.append("there is no segment")
    for segment in patterns.segments:
        need(patterns.devices, segment.devices, f"segment {segment.name}")
        need(patterns.segments[0].campaigns, segment.campaigns, f"segment {segment.name}")
    axes = ["volume", "conversion", "value", "delay", *(f"segment:{s.name}" for s in patterns.segments)]
    axes += [f"device:{device}" for device in patterns.devices]
    if (competition := patterns.competition) is not None:
        if competition.landscapes:
            axes.append("price")
        last = max(len(competition.landscapes), 1)
        wrong += [f"a period names landscape {p.landscape} of {last}" for p in patterns.periods if p.landscape >= last]
        wrong += [
            f"campaign {n} has {len(c.hour_price)} and {len(c.hour_value)} coefficients of a day"
            for n, c in competition.campaigns.items()
            if (len(c.hour_price), len(c.hour_value)) != (2, 2)
        ]
        wrong += [f"{n} has {len(c.pacing)} gains" for n, c in competition.competitors.items() if len(c.pacing) != 3]
        for i, landscape in enumerate(competition.landscapes):
            need(competition.competitors, landscape.participation, f"participation in landscape {i}")
            need(competition.competitors, landscape.level, f"level in landscape {i}")
            for name, levels in landscape.level.items():
                need(competition.campaigns, levels, f"level of {name} in landscape {i}")
    for period in patterns.periods:
        need(axes, period.effects, f"the period from {period.first_day}")
    if wrong:
        raise ConfigError("patterns do not fit together: " + "; ".join(wrong))
