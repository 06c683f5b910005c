"""Real logs: what a learned policy's impressions say about a uniformly random one, beside what that one earned.

The Open Bandit sample (Saito et al. 2021) is fetched for the test and never stored with the code.
"""

from __future__ import annotations

import csv
import io
import subprocess
import sys
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from parallel_agents.replay.importance_weights import EffectiveSampleSizeWarning, Estimate, weighted_estimate

pytestmark = pytest.mark.slow

ITEMS = {"all": 80, "men": 34, "women": 46}


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("open_bandit")
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "obp==0.4.1",
        "-d",
        str(folder),
    ]
    if subprocess.run(command, capture_output=True, timeout=100).returncode != 0:
        pytest.skip("the Open Bandit sample, in the wheel obp 0.4.1, could not be fetched with pip")
    return next(folder.glob("obp-*.whl"))


def clicks(sample: Path, policy: str, campaign: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Clicks (n,) and logged propensities (n,) of one policy's impressions."""
    with zipfile.ZipFile(sample) as wheel:
        text = wheel.read(f"obp/dataset/obd/{policy}/{campaign}/{campaign}.csv").decode()
    table = [(float(row["click"]), float(row["propensity_score"])) for row in csv.DictReader(io.StringIO(text))]
    columns = np.array(table).T
    return columns[0], columns[1]


def estimate(sample: Path, campaign: str, limit: float | None = None) -> tuple[Estimate, float]:
    """The random policy's click rate from the learned policy's log, and its z against the random policy's own."""
    truth, _ = clicks(sample, "random", campaign)
    clicked, propensity = clicks(sample, "bts", campaign)
    found = weighted_estimate(clicked, 1.0 / ITEMS[campaign] / propensity, limit=limit)
    return found, (found.mean - truth.mean()) / np.hypot(found.error, truth.std(ddof=1) / np.sqrt(truth.size))


@pytest.mark.parametrize(
    ("campaign", "z", "share", "largest"),
    [("all", -1.35, 0.034, 278), ("men", -1.55, 0.066, 178), ("women", 0.68, 0.0002, 21739)],
)
def test_estimates_agree_with_the_truth_and_a_collapse_gives_a_warning(
    sample: Path, campaign: str, z: float, share: float, largest: float
) -> None:
    with pytest.warns(EffectiveSampleSizeWarning, match="10000 samples are worth"):
        found, score = estimate(sample, campaign)
    assert score == pytest.approx(z, abs=0.01)
    assert found.effective_share == pytest.approx(share, rel=0.05)
    assert found.largest_weight == pytest.approx(largest, rel=0.005)


def test_clipping_lowers_the_error_at_a_reported_bias(sample: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EffectiveSampleSizeWarning)
        full, _ = estimate(sample, "women")
    clipped, _ = estimate(sample, "women", limit=20.0)
    assert clipped.effective_share > 100 * full.effective_share
    assert clipped.error < full.error
    assert abs(full.mean - clipped.mean) <= clipped.missing  # clicks are at most 1
    assert clipped.missing > 1.0  # and here the bound is no comfort: most of the weight is gone
