"""Advertising logs of others in one shape (`AdLog`): what another bidder or policy would have got, and their tables.

    log = read_ipinyou("ipinyou/training2nd")          impressions with bid and price, clicks, conversions
    log = read_criteo("criteo_attribution.tsv.gz")     impressions with cost, clicks, conversions with their delay
    log = read_open_bandit("obd/random/all")           impressions with the probability of the item that was shown
    replay_bids(log, bids), replay_choices(log, probability), discover(log.tables())

A replay says what the log can tell and no more. `replay_bids` counts an impression as won where the bid reaches the
logged price; impressions that the logging bidder lost are not in the log, so bids above its own are worth at least what
is counted. `replay_choices` weighs every impression by the other policy's probability over the logging one (inverse
propensity score), and gives the effective share of impressions: where that is small, the estimate means nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from parallel_agents.core.errors import ConfigError, ShapeError
from parallel_agents.core.types import Floats
from parallel_agents.market.database import connect, explained, load_pyarrow, path_list
from parallel_agents.market.discovery.export_reader import known
from parallel_agents.replay.importance_weights import Estimate as WeightedEstimate
from parallel_agents.replay.importance_weights import weighted_estimate

_IPINYOU = (
    "bid_id", "timestamp", "log_type", "ipinyou_id", "user_agent", "ip", "region", "city", "ad_exchange", "domain",
    "url", "anonymous_url_id", "ad_slot_id", "width", "height", "visibility", "format", "floor_price", "creative_id",
    "bidding_price", "paying_price", "key_page_url", "advertiser_id", "user_tags",
)  # fmt: skip
_SECOND = 1_000_000


@dataclass(frozen=True, eq=False)
class AdLog:
    """Impressions (R,) in order of time. What a log does not say is NaN, or an empty name."""

    source: str
    time: NDArray[np.int64]  # microseconds since 1970
    user: NDArray[np.str_]
    campaign: NDArray[np.str_]
    creative: NDArray[np.str_]
    position: NDArray[np.int64]  # from 1
    bid: Floats
    price: Floats  # paid for the impression
    clicked: NDArray[np.bool_]
    converted: NDArray[np.bool_]
    conversion_time: Floats  # microseconds since 1970
    propensity: Floats  # probability with which the logging policy showed this creative

    def __len__(self) -> int:
        return len(self.time)

    def tables(self, medium: str = "display") -> dict[str, Any]:
        """Return the tables `events` and `ads` that `profile_of` and `discover` read.

        A click is a session of that medium, a conversion a purchase of value 1: these logs hold no values. There are no
        pages, no auctions that were lost and no rivals in them, so `discover` names these as not identified.
        """
        pyarrow = load_pyarrow("the tables of a log")
        if (self.user == "").all():
            raise ConfigError(f"{self.source} names no users: its clicks can be replayed, but nobody's journey is seen")
        bought = self.converted & np.isfinite(self.conversion_time)
        rows = [np.flatnonzero(self.clicked), np.flatnonzero(bought)]
        place = np.concatenate(rows)
        purchase = np.arange(len(place)) >= len(rows[0])
        moment = np.where(purchase, np.nan_to_num(self.conversion_time[place]), self.time[place]).astype(np.int64)
        events = {
            "user": self.user[place],
            "time": moment,
            "name": np.where(purchase, "purchase", "session_start"),
            "session": [None if p else str(i) for p, i in zip(purchase, place, strict=True)],
            "source": [None if p else self.source for p in purchase],
            "medium": [None if p else medium for p in purchase],
            "campaign": [None if p else str(c) for p, c in zip(purchase, self.campaign[place], strict=True)],
            "creative": [None if p else str(c) for p, c in zip(purchase, self.creative[place], strict=True)],
            "value": np.where(purchase, 1.0, np.nan),
        }
        day = (self.time // (86_400 * _SECOND)).astype("datetime64[D]")
        keys = np.rec.fromarrays([day.astype(np.int64), self.campaign, self.creative, self.position])
        cells, cell = np.unique(keys, return_inverse=True)
        size = len(cells)
        ads = {
            "date": cells["f0"].astype("datetime64[D]"),
            "campaign": cells["f1"],
            "creative": cells["f2"],
            "position": cells["f3"],
            "impressions": np.bincount(cell, minlength=size),
            "clicks": np.bincount(cell, self.clicked, size).astype(np.int64),
            "cost": np.bincount(cell, np.nan_to_num(self.price), size),
        }
        return {"events": pyarrow.table(events), "ads": pyarrow.table(ads)}


@dataclass(frozen=True)
class Replayed:
    """What a bidder would have won of a log."""

    impressions: int
    clicks: int
    conversions: int
    cost: float


def replay_bids(log: AdLog, bids: ArrayLike, budget: float = np.inf) -> Replayed:
    """Return what bids (R,) or one bid per impression would have won at second price, until the budget is spent."""
    if not np.isfinite(log.price).any():
        raise ConfigError(f"{log.source} holds no prices: bids cannot be replayed")
    offer = np.broadcast_to(np.asarray(bids, np.float64), log.price.shape)
    reached = offer >= log.price  # NaN: not reached
    spent = np.cumsum(np.where(reached, log.price, 0.0))
    won = reached & (spent <= budget)
    cost = float(log.price[won].sum())
    return Replayed(int(won.sum()), int(log.clicked[won].sum()), int(log.converted[won].sum()), cost)


def replay_choices(log: AdLog, probability: ArrayLike, *, clip: float | None = None) -> WeightedEstimate:
    """Estimate the click rate of a policy that would have shown what was shown with some `probability` (R,).

    clip: largest weight of an impression; a finite one trades a bias for less variance.
    """
    other = np.asarray(probability, np.float64)
    if other.shape != log.propensity.shape:
        raise ShapeError(f"probability has shape {other.shape}: one for each of the {len(log)} impressions is needed")
    if not np.isfinite(log.propensity).all() or (log.propensity <= 0.0).any():
        raise ConfigError(f"{log.source} holds impressions without a propensity: choices cannot be replayed")
    if not (np.isfinite(other) & (other >= 0.0) & (other <= 1.0 + 1e-6)).all():
        raise ConfigError("probability has numbers below 0 or above 1: each impression needs one from 0 to 1")
    if len(log) < 2 or not other.any():
        raise ConfigError(
            f"of the {len(log)} impressions of {log.source}, the policy would have shown {np.count_nonzero(other)}: "
            "an estimate needs at least two impressions, and one that it would have shown"
        )
    return weighted_estimate(log.clicked, other / log.propensity, limit=clip, ess_floor=0.0)


def read_open_bandit(folder: str | Path) -> AdLog:
    """Read one campaign of the Open Bandit data: a folder such as obd/random/all, with all.csv in it."""
    path = Path(folder)
    file = path / f"{path.name}.csv"
    columns = _read(
        [file],
        "SELECT epoch_us(CAST(timestamp AS TIMESTAMPTZ)) AS time, CAST(item_id AS VARCHAR) AS creative, "
        "position, click, propensity_score AS propensity FROM read_csv({files}, header = true) ORDER BY time",
    )
    return _log(
        "open_bandit",
        columns,
        campaign=np.full(len(columns["time"]), path.name),
        clicked=columns["click"] > 0,
        propensity=columns["propensity"],
    )


def read_criteo(file: str | Path) -> AdLog:
    """Read the Criteo attribution data: tab-separated with a header, plain or gzipped; times are seconds from 0."""
    columns = _read(
        [Path(file)],
        f"SELECT CAST(timestamp AS BIGINT) * {_SECOND} AS time, CAST(uid AS VARCHAR) AS user, "
        "CAST(campaign AS VARCHAR) AS campaign, cost AS price, click, conversion, "
        f"CASE WHEN conversion_timestamp >= 0 THEN conversion_timestamp * {_SECOND}.0 END AS conversion_time "
        "FROM read_csv({files}, delim = '\t', header = true) ORDER BY time, user",
    )
    return _log(
        "criteo_attribution",
        columns,
        clicked=columns["click"] > 0,
        # every impression of a journey that ends in a conversion says so: it belongs to the clicks of the journey
        converted=(columns["conversion"] > 0) & (columns["click"] > 0),
    )


def read_ipinyou(folder: str | Path) -> AdLog:
    """Read iPinYou logs of one season: imp.*.txt, clk.*.txt and conv.*.txt, plain or gzipped.

    Prices are per thousand impressions in the log; here they are per impression.
    """
    files = {kind: sorted(Path(folder).glob(f"{kind}.*.txt*")) for kind in ("imp", "clk", "conv")}
    if not files["imp"]:
        raise ConfigError(f"{folder} holds no imp.*.txt: give the folder of a season of iPinYou (unpack .bz2 files)")
    types = ", ".join(f"'{name}': 'VARCHAR'" for name in _IPINYOU)

    def scan(kind: str) -> str:
        if not files[kind]:
            return "(SELECT NULL AS bid_id, NULL AS timestamp WHERE false)"
        options = f"delim = '\t', header = false, quote = '', nullstr = 'null', columns = {{{types}}}"
        return f"read_csv({path_list(files[kind])}, {options})"

    moment = "epoch_us(strptime(left({}, 14), '%Y%m%d%H%M%S'))"
    columns = _read(
        [file for some in files.values() for file in some],
        f"SELECT {moment.format('i.timestamp')} AS time, i.ipinyou_id AS user, i.advertiser_id AS campaign, "
        "i.creative_id AS creative, CAST(i.bidding_price AS DOUBLE) / 1000 AS bid, "
        "CAST(i.paying_price AS DOUBLE) / 1000 AS price, "
        "(c.bid_id IS NOT NULL) AS click, v.time AS conversion_time "
        f"FROM {scan('imp')} AS i "
        f"LEFT JOIN (SELECT DISTINCT bid_id FROM {scan('clk')}) AS c USING (bid_id) "
        f"LEFT JOIN (SELECT bid_id, min({moment.format('timestamp')}) AS time FROM {scan('conv')} GROUP BY bid_id) "
        "AS v USING (bid_id) ORDER BY time, i.bid_id",
    )
    converted = np.isfinite(known(columns["conversion_time"]))
    return _log("ipinyou", columns, clicked=columns["click"] | converted, converted=converted)


def _read(files: list[Path], query: str) -> dict[str, Any]:
    """Return the columns of a query over files; `{files}` in it stands for their list."""
    missing = [str(file) for file in files if not file.is_file()]
    if missing:
        raise ConfigError(f"{missing[0]} does not exist: give the data as they were unpacked")
    with connect(files) as connection, explained(f"{files[0]} cannot be read: {{}}; is it of this data set?"):
        columns = dict(connection.execute(query.replace("{files}", path_list(files))).fetchnumpy())
    if not len(columns["time"]):
        raise ConfigError(f"{files[0]} holds no impression")
    return columns


def _log(source: str, columns: Mapping[str, Any], **given: Any) -> AdLog:
    """Return a log of columns; what neither they nor `given` name is unknown."""
    size = len(columns["time"])
    found = {**columns, **given}

    def words(name: str) -> NDArray[np.str_]:
        return np.ma.filled(np.ma.asarray(found[name]), "").astype(np.str_) if name in found else np.full(size, "")

    def numbers(name: str) -> Floats:
        return known(found[name]) if name in found else np.full(size, np.nan)

    return AdLog(
        source=source,
        time=np.asarray(columns["time"], np.int64),
        user=words("user"),
        campaign=words("campaign"),
        creative=words("creative"),
        position=np.asarray(found.get("position", np.ones(size)), np.int64),
        bid=numbers("bid"),
        price=numbers("price"),
        clicked=np.asarray(found["clicked"], np.bool_),
        converted=np.asarray(found.get("converted", np.zeros(size)), np.bool_),
        conversion_time=numbers("conversion_time"),
        propensity=numbers("propensity"),
    )
