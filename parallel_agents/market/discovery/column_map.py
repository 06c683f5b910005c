"""Tables with other column names: a map from our names to theirs, given as TOML or guessed.

    [events]                      # a flat table of events; GA4's nested schema needs no map
    file = "clickstream.csv"
    user = "visitor_id"
    time = "created_at"

    [ads]
    file = "campaign_report.csv"
    date = "Day"
    campaign = "Campaign"

`file` is the file, or the table of a database, in which a table of ours is found. Columns that are not named are looked
for under their own names and usual synonyms.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from parallel_agents.core.errors import ConfigError

REQUIRED = {
    "events": ("user", "time", "name"),
    "ads": ("date", "campaign", "impressions", "clicks", "cost"),
    "auction_insights": ("date", "campaign", "competitor", "overlap_rate", "position_above_rate"),
    "ads_by_hour": ("date", "hour", "campaign", "impressions", "impression_share", "top_impression_share"),
}
"""Columns that a table must have."""
OPTIONAL = {
    "events": ("session", "page", "engaged", "source", "medium", "campaign", "creative", "system", "category", "value",
               "transaction"),
    "ads": ("channel", "creative", "position", "bid", "impression_share"),
    "auction_insights": ("impression_share",),
    "ads_by_hour": ("clicks", "cost"),
}  # fmt: skip
"""Columns that read as null if they are absent."""
SYNONYMS = {
    "user": (
        "userpseudoid",
        "userid",
        "visitorid",
        "clientid",
        "customerid",
        "householdid",
        "uid",
        "cookie",
        "ipinyouid",
    ),
    "time": ("eventtimestamp", "timestamp", "ts", "createdat", "datetime", "eventtime", "transactiontimestamp"),
    "name": ("eventname", "event", "eventtype", "action", "type"),
    "session": ("sessionid", "gasessionid", "visitid"),
    "page": ("pagelocation", "url", "pageurl", "path"),
    "engaged": ("engagementtimemsec", "timeonpage", "dwell"),
    "source": ("utmsource", "trafficsource"),
    "medium": ("utmmedium",),
    "campaign": ("campaignname", "utmcampaign", "campaignid", "advertiserid", "marketingcampaign"),
    "creative": ("creativeid", "adname", "ad", "utmcontent", "adid", "creativename"),
    "system": ("operatingsystem", "os", "devicesystem"),
    "category": ("devicecategory", "device", "platform"),
    "value": ("revenue", "purchaserevenue", "salesvalue", "amount", "price", "conversionvalue"),
    "transaction": ("transactionid", "orderid", "basketid", "conversionid"),
    "date": ("day", "segmentsdate", "reportdate"),
    "hour": ("hourofday", "segmentshour"),
    "impressions": ("impr", "metricsimpressions", "views", "shown"),
    "clicks": ("metricsclicks", "linkclicks"),
    "cost": ("spend", "amountspent", "metricscostmicros", "costmicros", "costusd"),
    "channel": ("network", "channeltype", "advertisingchanneltype"),
    "position": ("avgposition", "averageposition", "slot"),
    "bid": ("maxcpc", "cpcbid", "cpcbidmicros", "bidprice", "defaultmaxcpc"),
    "impression_share": ("searchimprshare", "imprshare", "searchimpressionshare", "metricssearchimpressionshare"),
    "top_impression_share": ("searchabstopis", "absolutetopimpressionshare", "searchabsolutetopimpressionshare"),
    "competitor": ("domain", "displayurldomain", "advertiser"),
    "overlap_rate": ("overlap",),
    "position_above_rate": ("positionabove", "abovedrate"),
}
FILES = {
    "events": ("events", "clickstream", "hits", "sessions", "web"),
    "ads": ("ads", "campaignreport", "campaigns", "adsreport", "adperformance", "spend"),
    "auction_insights": ("auctioninsights", "insights", "competition"),
    "ads_by_hour": ("adsbyhour", "hourly", "hourofday"),
}
"""Words of a file's or table's name by which a table is found; the first that fits."""


def plain_name(name: str) -> str:
    """Return a name in lower case, letters and digits only.

    >>> plain_name("Search impr. share")
    'searchimprshare'
    """
    return re.sub(r"[^a-z0-9]", "", name.lower())


@dataclass(frozen=True)
class ColumnMap:
    """Our tables and columns, and the names that an export gives them."""

    files: Mapping[str, str] = field(default_factory=dict)
    columns: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def table_for(self, table: str, names: Sequence[str]) -> str | None:
        """Return which of some files or tables holds a table of ours."""
        if table in self.files:
            wanted = self.files[table]
            for name in names:
                if name in (wanted, Path(wanted).stem):
                    return name
            raise ConfigError(f"the column map finds {table} in {wanted!r}: there are {', '.join(names)}")
        plain = {name: plain_name(name) for name in names}
        for word in FILES[table]:
            fitting = [name for name, short in plain.items() if short == word]
            if fitting:
                return fitting[0]
        return None

    def match(self, table: str, there: Sequence[str]) -> dict[str, str | None]:
        """Return the column of theirs for each of ours, None where there is none."""
        given = self.columns.get(table, {})
        unknown = [theirs for theirs in given.values() if theirs not in there]
        if unknown:
            raise ConfigError(
                f"the column map names {', '.join(unknown)} of {table}: its columns are {', '.join(there)}"
            )
        plain = {plain_name(name): name for name in reversed(there)}
        found: dict[str, str | None] = {}
        for ours in (*REQUIRED[table], *OPTIONAL[table]):
            words = (plain_name(ours), *SYNONYMS.get(ours, ()))
            taken = set(given.values())
            guess = next((plain[word] for word in words if word in plain and plain[word] not in taken), None)
            found[ours] = given.get(ours, guess)
        return found


def read_column_map(path: Path) -> ColumnMap:
    """Return the map of a TOML file."""
    try:
        data = tomllib.loads(path.read_text())
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"cannot read the column map {path}: {error}") from error
    files: dict[str, str] = {}
    columns: dict[str, dict[str, str]] = {}
    for table, entries in data.items():
        if table not in REQUIRED or not isinstance(entries, dict):
            raise ConfigError(f"{path}: [{table}] is not a table: give {', '.join(f'[{t}]' for t in REQUIRED)}")
        allowed = (*REQUIRED[table], *OPTIONAL[table])
        for ours, theirs in entries.items():
            if not isinstance(theirs, str) or (ours != "file" and ours not in allowed):
                raise ConfigError(f"{path}: {table}.{ours} = {theirs!r}: give a name for one of {', '.join(allowed)}")
        files |= {table: entries["file"]} if "file" in entries else {}
        columns[table] = {ours: theirs for ours, theirs in entries.items() if ours != "file"}
    return ColumnMap(files, columns)


def column_map_toml(files: Mapping[str, str], columns: Mapping[str, Mapping[str, str | None]]) -> str:
    """Return a map as TOML; a column that was not found is a comment."""
    lines = []
    for table, entries in columns.items():
        lines += [f"[{table}]", f"file = {_quoted(files[table])}"] if table in files else [f"[{table}]"]
        for ours, theirs in entries.items():
            needed = "needed" if ours in REQUIRED[table] else "optional"
            lines.append(
                f"{ours} = {_quoted(theirs)}" if theirs is not None else f"# {ours} = ...  # {needed}, not found"
            )
        lines.append("")
    return "\n".join(lines)


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
