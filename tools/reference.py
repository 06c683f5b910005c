"""Compare the digests of reference runs with the recorded ones: `python -m tools.reference [--write]`.

The runs cover every kind of learner, network, replay, action and agent, all example games, foreign environments, the
market and the network defence. A change that must not change a result (a redesign, an optimisation) passes if every
digest equals the recorded one. Digests are only compared on machines with the recorded fingerprint.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import sys
import tempfile
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from parallel_agents.cli import main as run_command
from parallel_agents.core.config import merge
from parallel_agents.env import Environment
from parallel_agents.nn import numerics
from tests.equivalence import test_modes as modes
from tests.equivalence.worlds import ROOT, run
from tests.faults import mixed_game

__all__ = ["main", "reference_runs"]

RECORDED = Path(__file__).with_name("reference.json")
GAMES = ("cleanup", "coins", "commons_harvest", "iowa", "prisoners_dilemma", "stag_hunt", "tag", "treasure_hunt")
SHORT = ("--set", "experiment.max_turns=24", "--set", "parallel.train_interval=2")


def reference_runs() -> dict[str, Callable[[], str]]:
    """Return a function for each reference run, which runs it and returns its digest."""
    inline: dict[str, Any] = {"parallel": {"backend": "inline"}}
    runs: dict[str, Callable[[], str]] = {}
    for name, (kind, problem) in modes.CASES.items():
        runs[name] = partial(_run, kind, merge(problem, inline))
    runs["everything"] = partial(_run, modes.Everything, inline)
    runs["everything, two seeds"] = partial(_run, modes.Everything, merge(inline, {"experiment": {"seeds": 2}}))
    runs["agents outside of stacks"] = partial(_run, mixed_game.Mixed, inline)
    for game in GAMES:
        target = str(ROOT / "examples" / f"{game}.py")
        runs[f"game {game}"] = partial(_train, target, "--epochs", "9", *SHORT)
    hunt = str(ROOT / "examples" / "treasure_hunt.py")
    for algorithm in ("dqn", "iqn", "ppo"):
        runs[f"treasure hunt, {algorithm}, 4 worlds"] = partial(
            _train, hunt, "--algo", algorithm, "--worlds", "4", "--epochs", "9", *SHORT
        )
    runs["CartPole, ppo"] = partial(_train, "gymnasium:CartPole-v1", "--algo", "ppo", "--epochs", "6", *SHORT)
    runs["Pendulum, ppo"] = partial(_train, "gymnasium:Pendulum-v1", "--algo", "ppo", "--epochs", "6", *SHORT)
    runs["simple spread, dqn"] = partial(_train, "pettingzoo:mpe2.simple_spread_v3", "--epochs", "6", *SHORT)
    runs["market"] = _market
    runs["network defence"] = _defence
    return runs


def _run(kind: type[Environment], config: dict[str, Any]) -> str:
    return str(run(kind, config)["digest"])


def _train(*words: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        return str(_command("train", *words, "--seed", "3", "--out", str(Path(folder) / "run"))["digest"])


def _market() -> str:
    """Return a digest of patterns found in an export, of simulated episodes and of a trained bidder."""
    export, patterns, out = "export", "patterns.json", "bidder"  # relative, since patterns name their source
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        _command("market", "sample", "--out", export, "--users", "1500", "--days", "28")
        _command("market", "discover", export, "--out", patterns)
        simulated = _command("market", "simulate", patterns, "--worlds", "20", "--episodes", "40")
        trained = _command(
            "market", "train", patterns, "--out", out, "--worlds", "10", "--epochs", "3", "--episodes", "0"
        )
        timeless = {name: value for name, value in simulated.items() if "second" not in name}
        texts = json.dumps(timeless, sort_keys=True), str(trained["digest"])
        return _hash(Path(patterns).read_bytes(), *(text.encode() for text in texts))


def _defence() -> str:
    """Return a digest of a defender of any order and of a defender of one order."""
    with tempfile.TemporaryDirectory() as folder:
        words = ("workflow", "train", "--epochs", "2", "--worlds", "5", "--seed", "3")
        any_order = _command(*words, "--order", "all", "--out", str(Path(folder) / "all"))
        plain = _command(*words, "--out", str(Path(folder) / "plain"))
        weights = sorted(Path(folder).joinpath("all").rglob("*.safetensors"))
        digests = [str(result.get("digest")).encode() for result in (any_order, plain)]
        return _hash(*digests, *(path.read_bytes() for path in weights))


def _command(*words: str) -> dict[str, Any]:
    """Run a command and return the JSON object that it prints."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        code = run_command([*words, "--json", *(() if words[1] == "sample" else ("--quiet",))])
    if code:
        raise RuntimeError(f"{' '.join(words)} ended with {code}: {printed.getvalue()}")
    result: dict[str, Any] = json.loads(printed.getvalue())
    return result


def _hash(*parts: bytes) -> str:
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()


def main(arguments: list[str] | None = None) -> int:
    """Run the reference runs; compare their digests with the recorded ones, or record them."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--write", action="store_true", help="record the digests instead of comparing them")
    parser.add_argument("--only", default="", help="only runs whose name contains this text")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    fingerprint = json.loads(json.dumps(numerics.fingerprint("cpu")))
    machines = json.loads(RECORDED.read_text(encoding="utf-8"))["machines"]
    known = next((machine for machine in machines if machine["fingerprint"] == fingerprint), None)
    if known is None and not options.write:
        sys.stdout.write("not compared: no digests were recorded on a machine with this fingerprint\n")
        return 0
    expected = {} if options.write or known is None else known["digests"]
    runs = {name: call for name, call in reference_runs().items() if options.only in name}
    missing = [name for name in expected if options.only in name and name not in runs]
    digests, wrong = {}, [f"{name}: recorded, but no longer run" for name in missing]
    for name, call in runs.items():
        digests[name] = call()
        verdict = "recorded" if options.write else "equal" if digests[name] == expected.get(name) else "DIFFERS"
        wrong += [name] if verdict == "DIFFERS" else []
        sys.stdout.write(f"{verdict:>8}  {name}  {digests[name][:16]}\n")
        sys.stdout.flush()
    if options.write:
        others = [machine for machine in machines if machine is not known]
        text = json.dumps({"machines": [*others, {"fingerprint": fingerprint, "digests": digests}]}, indent=1)
        RECORDED.write_text(text + "\n", encoding="utf-8")
    sys.stdout.write(f"{len(digests)} runs, {len(wrong)} differ{': ' if wrong else ''}{', '.join(wrong)}\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
