"""Draw the advertiser's own reports: an ads table and an auction-insights table.

Every eligible auction is played: rivals enter and bid, ads are ranked, the top ones are shown and clicks are charged by
the campaign's rule. The tables hold only what an advertiser sees: daily sums and rates.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from parallel_agents.core.compiled import njit
from parallel_agents.core.seeding import Purpose, generator
from parallel_agents.core.types import Floats, Ints
from parallel_agents.market.sample.hidden_market import LANDSCAPES, HiddenMarket
from parallel_agents.market.sample.user_journeys import Journeys
from parallel_agents.market.simulation.auction import click_price, next_score, rank
from parallel_agents.market.worlds import MECHANISMS

Columns = dict[str, NDArray[np.generic]]


@dataclass(frozen=True, eq=False)
class AdReports:
    """Columns of the two tables, one entry per row; names are indices into the market's."""

    ads: Columns
    insights: Columns
    hours: Columns
    landscape: Ints  # (days,) the landscape of each day; never exported


@dataclass(eq=False)
class _Pacing:
    """How rivals (M,) shift their log bids from day to day, by our last bid and their own spending."""

    shift: Floats
    mean_spend: Floats
    days: int = 0
    total_error: Floats | float = 0.0
    last_error: Floats | float = 0.0

    def update(self, market: HiddenMarket, our_shock: float, spend: Floats) -> None:
        """Respond to our bid, and pace the spend towards its own running mean by PID control."""
        self.days += 1
        self.mean_spend += (spend - self.mean_spend) / self.days
        error = 1.0 - spend / np.maximum(self.mean_spend, 1e-9)
        self.total_error = self.total_error + error
        gains = market.rivals.pacing
        pid = gains[:, 0] * error + gains[:, 1] * self.total_error + gains[:, 2] * (error - self.last_error)
        self.last_error = error
        self.shift = market.rivals.response * our_shock + pid


def draw_reports(market: HiddenMarket, journeys: Journeys, *, seed: int) -> AdReports:
    """Play every day's auctions, the five landscapes one after the other in equal parts of the window."""
    rng = generator(seed, Purpose.WORLD, agent=1)
    calendar, paid = journeys.calendar, len(market.campaigns.paid)
    landscape = np.minimum(calendar.weeks * len(LANDSCAPES) // len(calendar.mix), len(LANDSCAPES) - 1)
    auctions = _auctions_per_day(market, journeys, paid)
    users, creatives, rivals = len(journeys.segment), len(market.campaigns.creatives), len(market.rivals.names)
    launch = np.arange(creatives) * calendar.days // (2 * creatives)  # one after the other in the first half
    shown, pacing, drift = np.zeros(creatives), _Pacing(np.zeros(rivals), np.zeros(rivals)), 0.0
    tables: dict[str, list[Columns]] = {"ads": [], "insights": [], "hours": []}
    for day in range(calendar.days):
        shock = market.campaigns.bid_spread * rng.standard_normal(paid)
        counts = rng.poisson(auctions * calendar.volume[day].mean())
        live = np.flatnonzero(launch <= day)
        drift = market.rivals.memory * drift + market.rivals.drift * float(rng.standard_normal())
        auction_day = _AuctionDay(
            market,
            int(landscape[day]),
            pacing.shift + drift,
            shock,
            counts,
            calendar.volume[day],
            live,
            shown / users,
            rng,
        )
        reports = auction_day.ads_rows(), auction_day.insights_rows(), auction_day.hour_rows()
        for days, rows in zip(tables.values(), reports, strict=True):
            days.append({"day": np.full(len(rows["campaign"]), day), **rows})
        shown = market.campaigns.remembered * shown + auction_day.shown_by_creative()
        pacing.update(market, float(shock.mean()), auction_day.rival_spend())
    whole = {
        name: {column: np.concatenate([rows[column] for rows in days]) for column in days[0]}
        for name, days in tables.items()
    }
    return AdReports(**whole, landscape=landscape)


def _auctions_per_day(market: HiddenMarket, journeys: Journeys, paid: int) -> Floats:
    """Return eligible auctions per day and campaign such that ad clicks come near the paid sessions of the export."""
    clicks = np.bincount(journeys.campaign, minlength=paid)[:paid]
    slots = np.array(market.campaigns.slots[:paid])
    visibility = np.array([market.campaigns.position[:s].mean() for s in slots]) * np.where(slots > 1, 0.6, 0.25)
    return np.asarray(clicks / journeys.calendar.days / (market.campaigns.click_rate.mean() * visibility))


@njit(cache=True)  # type: ignore[untyped-decorator]
def _play(scores: Floats, quality: Floats, bid: Floats, mechanism: Ints, log_reserve: float) -> tuple[Ints, Floats]:
    """Rank the scores (A, 1 + M) of every auction; return places (A, 1 + M), −1 below the reserve, and our prices (A,).

    The ranking and the price are those of the simulation.
    """
    places = np.full(scores.shape, -1)
    prices = np.zeros(len(scores))
    order = np.empty(scores.shape[1], np.int64)
    for a in range(len(scores)):
        entrants = rank(scores[a], order, log_reserve)
        for place in range(entrants):
            places[a, order[place]] = place
            if order[place] == 0:
                to_beat = next_score(scores[a], order[:entrants], place, log_reserve)
                prices[a] = click_price(mechanism[a], bid[a], quality[a], to_beat)
    return places, prices


class _AuctionDay:
    """One day's auctions A: who entered, how they ranked, what was shown, clicked and paid."""

    def __init__(
        self,
        market: HiddenMarket,
        landscape: int,
        rival_shift: Floats,
        our_shock: Floats,
        counts: Ints,
        volume: Floats,
        live_creatives: Ints,
        frequency: Floats,
        rng: np.random.Generator,
    ) -> None:
        self.market, ads, rivals = market, market.campaigns, market.rivals
        self.counts, self.bid = counts, ads.bid * np.exp(our_shock)
        self.campaign = campaign = np.repeat(np.arange(len(counts)), counts)
        size = len(campaign)
        self.hour = np.searchsorted(np.cumsum(volume) / volume.sum(), rng.random(size))
        self.creative = live_creatives[rng.integers(0, len(live_creatives), size)]
        click_rate = ads.click_rate * np.exp(-ads.fatigue * frequency)
        quality = np.log(click_rate / ads.click_rate.mean())[self.creative]
        mechanism = np.array([MECHANISMS.index(m) for m in ads.mechanisms if m is not None])[campaign]

        angle = (self.hour + 0.5) * np.pi / 12.0
        waves = np.stack([np.sin(angle), np.cos(angle)], axis=1)
        enters = rng.random((size, len(rivals.names))) < rivals.participation[landscape]
        level = rivals.level[landscape] + rival_shift + rivals.target[:, campaign].T
        level = level + rivals.focus[landscape, campaign][:, None]
        level = level + (mechanism == MECHANISMS.index("first_price"))[:, None] * rivals.shade
        level = level + (waves * ads.hour_price[campaign]).sum(axis=1)[:, None]
        bids = np.where(enters, level + rivals.spread * rng.standard_normal(level.shape), -np.inf)
        our_bid = self.bid[campaign]
        self.scores = np.column_stack([np.log(our_bid) + quality, bids])  # (A, 1 + M), ours first
        self.rank, price = _play(self.scores, quality, our_bid, mechanism, float(np.log(ads.reserve)))
        self.entered = self.rank >= 0
        self.shown = self.entered & (self.rank < np.array(ads.slots)[campaign][:, None])
        position = np.clip(self.rank[:, 0], 0, len(ads.position) - 1)
        self.clicked = self.shown[:, 0] & (rng.random(size) < click_rate[self.creative] * ads.position[position])
        self.cost = np.where(self.clicked, price, 0.0)

    def shown_by_creative(self) -> Floats:
        """Return our impressions (creatives,)."""
        creatives = len(self.market.campaigns.creatives)
        return np.asarray(np.bincount(self.creative, self.shown[:, 0], creatives), np.float64)

    def rival_spend(self) -> Floats:
        """Return the sum of each rival's (M,) bids where it is shown."""
        spend = np.where(self.shown[:, 1:], np.exp(self.scores[:, 1:]), 0.0)
        return np.asarray(spend.sum(axis=0))

    def ads_rows(self) -> Columns:
        """Return one row per campaign, creative and position in which we were shown."""
        creatives, places = len(self.market.campaigns.creatives), max(self.market.campaigns.slots)
        place = np.clip(self.rank[:, 0], 0, places - 1)
        cell = (self.campaign * creatives + self.creative) * places + place
        size = len(self.counts) * creatives * places
        shown = self.shown[:, 0]
        impressions = np.bincount(cell[shown], minlength=size)
        rows = np.flatnonzero(impressions)
        campaign = rows // (creatives * places)
        won = np.bincount(self.campaign, shown, len(self.counts))
        return {
            "campaign": campaign,
            "creative": rows // places % creatives,
            "position": rows % places + 1,
            "impressions": impressions[rows],
            "clicks": np.bincount(cell, self.clicked, size)[rows].astype(np.int64),
            "cost": np.bincount(cell, self.cost, size)[rows],
            "bid": self.bid[campaign],
            "impression_share": (won / np.maximum(self.counts, 1))[campaign],
        }

    def hour_rows(self) -> Columns:
        """Return one row per hour and campaign with an auction: impressions, clicks, cost and shares of auctions."""
        paid, shown = len(self.counts), self.shown[:, 0]
        cell, size = self.hour * paid + self.campaign, 24 * paid
        held = np.bincount(cell, minlength=size)
        rows = np.flatnonzero(held)
        sums = {"impressions": shown, "clicks": self.clicked, "cost": self.cost, "top": shown & (self.rank[:, 0] == 0)}
        totals = {name: np.bincount(cell, column, size)[rows] for name, column in sums.items()}
        return {
            "hour": rows // paid,
            "campaign": rows % paid,
            "impressions": totals["impressions"].astype(np.int64),
            "clicks": totals["clicks"].astype(np.int64),
            "cost": totals["cost"],
            "impression_share": totals["impressions"] / held[rows],
            "top_impression_share": totals["top"] / held[rows],
        }

    def insights_rows(self) -> Columns:
        """Return one row per campaign and rival that competed with us: the rates of an auction-insights report."""
        paid, rivals = len(self.counts), len(self.market.rivals.names)
        both = self.entered[:, :1] & self.entered[:, 1:]
        above = both & (self.rank[:, 1:] < self.rank[:, :1])
        outranked = self.shown[:, :1] & ~above

        def per_campaign(auctions: NDArray[np.bool_]) -> Floats:
            return np.stack([np.bincount(self.campaign, auctions[:, m], paid) for m in range(rivals)], axis=1)

        met, auctions = per_campaign(both), np.maximum(self.counts[:, None], 1)
        campaign, rival = np.nonzero(met > 0)
        rates = {
            "impression_share": per_campaign(self.shown[:, 1:]) / auctions,
            "overlap_rate": met / auctions,
            "position_above_rate": per_campaign(above) / np.maximum(met, 1),
            "outranking_share": per_campaign(outranked) / auctions,
        }
        return {
            "campaign": campaign,
            "competitor": rival,
            **{name: rate[campaign, rival] for name, rate in rates.items()},
        }
