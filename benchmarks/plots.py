"""Draw the plots of the documentation from stored rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

Record = dict[str, Any]


def scaling(records: Sequence[Record], target: Path) -> None:
    """Draw costs by agents and worlds, the roofline, and the backends."""
    figure = Figure(figsize=(12, 3.6), layout="constrained")
    turns, roofline, backends = figure.subplots(1, 3)
    for agents, points in _grouped(records, "turn:", "agents").items():
        turns.plot([own["detail"]["worlds"] for own in points], [own["ratio"] for own in points], "o-", label=agents)
    turns.set(xscale="log", yscale="log", xlabel="worlds", ylabel="µs of an agent's turn")
    turns.legend(title="agents")
    for network, points in _grouped(records, "update:", "network").items():
        details = [own["detail"] for own in points]
        roofline.plot(
            [own["flops_per_byte"] for own in details], [own["gflops"] for own in details], "o", label=network
        )
        peak, bandwidth = details[0]["peak_gflops"], details[0]["bandwidth_gb"]
    corners = [0.5, peak / bandwidth, 4 * max(peak / bandwidth, *(own["flops_per_byte"] for own in details))]
    roofline.plot(corners, [min(peak, bandwidth * x) for x in corners], "k-")
    roofline.set(xscale="log", yscale="log", xlabel="FLOP per byte", ylabel="GFLOP/s of updates, one core")
    roofline.legend()
    for network, points in _grouped(records, "backend:", "network").items():
        for backend, style in (("thread", "o-"), ("process", "s--")):
            speeds = [own["detail"]["updates_per_second"] for own in points]
            gains = [own[backend] / own["inline"] for own in speeds]
            backends.plot([own["detail"]["agents"] for own in points], gains, style, label=f"{network}, {backend}")
    backends.axhline(1.0, color="black", linewidth=0.8)
    backends.set(xscale="log", xlabel="agents", ylabel="speed of a whole loop / inline's")
    backends.legend(fontsize="x-small")
    with mpl.rc_context({"svg.hashsalt": "figures"}):  # equal rows give equal files
        target.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(target, metadata={"Date": None})


def _grouped(records: Sequence[Record], kind: str, key: str) -> dict[Any, list[Record]]:
    """Return the measured rows of one kind, by one of their details."""
    groups: dict[Any, list[Record]] = {}
    for own in records:
        if own["name"].startswith(kind) and own["ratio"] is not None:
            groups.setdefault(own["detail"][key], []).append(own)
    return groups
