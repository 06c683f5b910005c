"""The checks of an environment: each runs the real engine on it, and says how to mend what it finds."""

from __future__ import annotations

import contextlib
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from parallel_agents.config import Config, merge
from parallel_agents.environment import Environment
from parallel_agents.errors import ConfigError, ParallelAgentsError
from parallel_agents.runtime.checkpoints import Checkpointer, restore, why_not
from parallel_agents.testing.generators import no_global_generators
from parallel_agents.testing.trace import Entry, Trace, arrays_of, first_difference, record, same

__all__ = ["Finding", "check_environment"]

EPOCHS = 5
LONGEST = 200
"""Turns of an epoch in a check, at most; shorter where the environment's own epochs are."""
LEARN_EARLY = {"learning_starts": 8, "batch_size": 4, "updates_per_round": 2}
"""So that rounds learn within a few epochs; left out for models that know no such keys."""


@dataclass(frozen=True)
class Finding:
    """What one check found."""

    check: str
    passed: bool | None
    """None: it could not be checked, which is not the same as passed."""
    detail: str
    advice: str = ""
    """How to mend it."""

    def __str__(self) -> str:
        mark = {True: "ok         ", False: "FAILED     ", None: "not checked"}[self.passed]
        return f"{mark} {self.check}: {self.detail}" + (f"\n            mend: {self.advice}" if self.advice else "")


class _Failed(Exception):
    """A check found something."""

    def __init__(self, detail: str, advice: str) -> None:
        super().__init__(detail)
        self.detail, self.advice = detail, advice


class _NotChecked(Exception):
    """A check could not be made; its text says why."""


class _Suite:
    """One environment class with a small configuration, made afresh for every check."""

    def __init__(self, kind: Callable[..., Environment], config: Mapping[str, Any], epochs: int) -> None:
        self.kind, self.given, self.epochs = kind, config, epochs
        own = kind(config=dict(config)).config.experiment
        self.autoreset = own.autoreset
        self.small: dict[str, Any] = {
            "experiment": {"epochs": epochs, "max_turns": min(own.max_turns, LONGEST), "worlds": min(own.worlds, 3),
                           "seeds": 1, "checkpoint_every": 0, "eval_every": 0, "record_period": 0},
            "parallel": {"backend": "inline", "train_interval": 1, "publish": "scheduled"},
        }  # fmt: skip
        try:
            self.make({"model": LEARN_EARLY})
            self.small["model"] = LEARN_EARLY
        except ConfigError:
            self.make()

    def make(self, *layers: Mapping[str, Any]) -> Environment:
        return self.kind(config=merge(self.given, self.small, *layers))

    def traced(self, *layers: Mapping[str, Any]) -> Trace:
        environment = self.make(*layers)
        trace = record(environment)
        environment.run_experiment()
        return trace

    def as_far_as_it_goes(self) -> Trace:
        """A trace up to whatever the engine could not accept."""
        environment = self.make()
        trace = record(environment)
        with contextlib.suppress(Exception):  # another check tells of it
            environment.run_experiment()
        return trace

    def digest(self, **flags: Any) -> str:
        return _digest(self.make({"parallel": flags}).run_experiment())


def check_environment(
    kind: Callable[..., Environment],
    config: Mapping[str, Any] | str | Path | None = None,
    *,
    epochs: int = EPOCHS,
    backends: Sequence[str] = ("inline", "thread"),
) -> list[Finding]:
    """Everything an environment must keep to; `backends` are compared for equality of results.

    kind: an environment class, or anything that makes one from `config=`.
    """
    given = Config.read(config)
    suite, first = _made(kind, given, epochs)
    if suite is None:
        return [first]
    checks: list[tuple[str, Callable[[_Suite], str]]] = [
        ("shapes", _shapes),
        ("dones", _dones),
        ("observe changes nothing", _pure),
        ("actions are only read", _actions_only_read),
        ("seeding over whole episodes", _seeding),
        ("global generators", _generators),
        ("worlds differ", _worlds_differ),
        ("buffers", _buffers),
        ("equality of modes", lambda own: _modes(own, backends)),
        ("state and load_state", _state),
        ("exact resume", _resume),
    ]
    return [first, *(_run(name, check, suite) for name, check in checks)]


def _made(kind: Callable[..., Environment], config: Mapping[str, Any], epochs: int) -> tuple[_Suite | None, Finding]:
    try:
        suite = _Suite(kind, config, epochs)
        suite.make().prepare()
    except (Exception, SystemExit) as error:
        advice = "make it work with `config=` alone: setup_agents() puts one Agent with a model of its own per agent"
        return None, Finding("construction", False, _said(error), advice)
    return suite, Finding("construction", True, "it can be made again and again")


def _digest(summary: Mapping[str, Any]) -> str:
    """Return the digest of a run; where it has none, nothing can be compared."""
    if summary["digest"] is None:
        raise _NotChecked(summary["no_digest"])
    return str(summary["digest"])


def _run(name: str, check: Callable[[_Suite], str], suite: _Suite) -> Finding:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return Finding(name, True, check(suite))
    except _Failed as failed:
        return Finding(name, False, failed.detail, failed.advice)
    except _NotChecked as reason:
        return Finding(name, None, str(reason))
    except (Exception, SystemExit) as error:  # whatever a user's environment raises is a finding
        return Finding(name, False, _said(error), "the message above says where it comes from")


def _said(error: Exception | SystemExit) -> str:
    own = isinstance(error, ParallelAgentsError)
    return str(error) if own else f"{type(error).__name__}: {error}"


# -- the checks, each says what it saw or raises _Failed -----------------------------------------------------------


def _shapes(suite: _Suite) -> str:
    """The engine itself refuses wrong shapes and NaN at once; what it accepts must also stay the same."""
    trace = suite.traced()
    seen = {tuple(array.shape for array in entry.values) for entry in trace.of("observe")}
    if len(seen) > 1:
        raise _Failed(
            f"observe() gave arrays of different shapes: {sorted(map(str, seen))}",
            "pad what an agent sees to one shape, the one its model was made for",
        )
    for entry in [*trace.of("apply_actions"), *trace.of("observe")]:
        for array in entry.values:
            if array.dtype == object or (not np.issubdtype(array.dtype, np.number) and array.dtype != np.bool_):
                raise _Failed(f"{_at(entry)} gave an array of type {array.dtype}", "give numbers: np.float32")
    return f"observations {next(iter(seen), ())}, finite, in every turn"


def _dones(suite: _Suite) -> str:
    ends = 0
    for entry in suite.as_far_as_it_goes().of("dones"):
        if not entry.values:
            continue
        if len(entry.values) != 2 or any(array.dtype != np.bool_ for array in entry.values):
            raise _Failed(
                f"{_at(entry)} gave {len(entry.values)} arrays of types {[str(a.dtype) for a in entry.values]}",
                "give two boolean arrays (agents, worlds): terminated and truncated, or None if nothing ended",
            )
        terminated, truncated = entry.values
        if (terminated & truncated).any():
            raise _Failed(
                f"{_at(entry)} says of an agent that its episode both terminated and was truncated",
                "terminated: the episode came to its own end; truncated: it was cut off and would have gone on",
            )
        ends += int(terminated.sum() + truncated.sum())
    return f"{ends} ends of episodes seen" if ends else "no episode ended by itself within the turns of the check"


def _pure(suite: _Suite) -> str:
    impure = suite.traced().impure
    if impure is not None:
        raise _Failed(
            f"{_at(impure)} gave something else when it was asked a second time",
            "observe() only looks: move things in begin_turn() or apply_actions(), and draw random numbers there",
        )
    return "asked twice, it answers alike"


def _actions_only_read(suite: _Suite) -> str:
    """The engine hands out copies, so that nothing is spoilt here; a caller without them would remember other acts."""
    entry = suite.traced().overwrites
    if entry is not None:
        raise _Failed(
            f"{_at(entry)} wrote into the actions it was given",
            "copy what you change: actions = actions.copy(); what agents remember is what they have chosen",
        )
    return "what agents have chosen is left as it was"


def _seeding(suite: _Suite) -> str:
    one, other = suite.traced(), suite.traced()
    difference = first_difference(one, other)
    if difference is not None:
        raise _Failed(
            f"two runs with the same seed part in {difference}",
            "draw from self.rng, self.streams or parallel_agents.seeding; use no global generator, no clock, no "
            "order of a set, no hash of a string; and let nothing outlive an environment (class attributes, modules)",
        )
    moved = first_difference(one, suite.traced({"experiment": {"seed": 7919}}))
    turns = len(one.of("dones"))
    return f"{turns} turns repeat exactly; another seed " + ("differs" if moved else "changes nothing (no randomness)")


def _generators(suite: _Suite) -> str:
    environment = suite.make()
    try:
        with no_global_generators():
            environment = suite.make()
            environment.run_experiment()
    except Exception as error:
        if "that everybody shares" not in str(error):
            raise
        raise _Failed(
            _said(error), "draw from self.rng or self.streams[world], which belong to this world alone"
        ) from error
    return "none is used"


def _worlds_differ(suite: _Suite) -> str:
    layer = {"experiment": {"worlds": 3}}
    trace, moved = suite.traced(layer), suite.traced(layer, {"experiment": {"seed": 7919}})
    shown, others = ([entry for entry in own.of("observe") if entry.turn <= 1] for own in (trace, moved))
    alike = all(_columns_alike(array) for entry in shown for array in entry.values)
    random = any(not same(a.values, b.values) for a, b in zip(shown, others, strict=False))
    if alike and random:
        raise _Failed(
            "three worlds start alike in every epoch, although the seed matters: they share their random numbers",
            "draw world w from self.streams[w] (or with its number as `world=` in parallel_agents.seeding)",
        )
    return "worlds have randomness of their own" if not alike else "worlds are alike (no randomness at their start)"


def _columns_alike(array: Any) -> bool:
    """True if all worlds of (N, W, …), or of one agent's (W, …), hold the same."""
    axis = 1 if array.ndim > 2 else 0
    return bool((np.take(array, [0], axis) == array).all())


def _buffers(suite: _Suite) -> str:
    environment = suite.make()
    environment.run_experiment()
    kept = [len(agent.model.memory) for agent in environment.agents if hasattr(agent.model, "memory")]
    if kept and not any(kept):
        raise _Failed(
            "no agent has kept a single transition",
            "can_act() must be True where agents act; an agent whose episode has ended stores nothing",
        )
    return f"{len(kept)} agents keep {min(kept, default=0)} to {max(kept, default=0)} transitions, each in its own"


def _modes(suite: _Suite, backends: Sequence[str]) -> str:
    plain = suite.digest(enabled=False)
    for flags in [{"backend": backend} for backend in backends]:
        if suite.digest(**flags) != plain:
            raise _Failed(
                f"with {flags} the results are not those of parallel.enabled = false",
                "let hooks depend on nothing but the world's own state, epoch and turn: no counters of calls, no "
                "global variables, no models that learn in get_action()",
            )
    return f"sequential and {', '.join(backends)} give one digest"


def _state(suite: _Suite) -> str:
    """With autoreset, episodes cross epochs: what state() gives must be all there is."""
    environment = suite.make()
    if not suite.autoreset:
        return "not needed: every epoch starts fresh"
    if not environment.gives_state:
        raise _Failed(
            "with autoreset a checkpoint needs state() and load_state(), and they are missing",
            "write state() -> dict of arrays and load_state(state), or set experiment.autoreset = false",
        )
    environment.run_experiment(2)
    given = {name: np.asarray(value) for name, value in environment.state().items()}
    odd = [name for name, value in given.items() if value.dtype.kind not in "biuf"]
    if odd:
        raise _Failed(f"state() gives {odd[0]!r}, which is no array of numbers", "encode it as numbers")
    fresh = suite.make()
    fresh.prepare()
    fresh.begin_epoch(2)
    fresh.load_state(given)
    back = fresh.state()
    lost = [name for name in given if name not in back or not same(arrays_of(back[name]), [given[name]])]
    if lost:
        raise _Failed(
            f"after load_state(), state() gives another {lost[0]!r}", "load_state() must take over all of state()"
        )
    return f"{len(given)} arrays come back as they were given"


def _resume(suite: _Suite) -> str:
    whole = suite.make()
    reason = why_not(whole.prepare())
    if reason is not None:
        raise _NotChecked(reason)
    expected = _digest(whole.run_experiment())
    half = max(1, suite.epochs // 2)
    with tempfile.TemporaryDirectory() as folder:
        first = suite.make()
        first.prepare().checkpointer = Checkpointer(first.prepare(), Path(folder), keep_last=1)
        first.run_experiment(half)
        second = suite.make()
        restore(second.prepare(), Path(folder))
        found = _digest(second.run_experiment(suite.epochs))
    if found != expected:
        raise _Failed(
            f"{half} epochs and a resume to {suite.epochs} are not {suite.epochs} epochs",
            "reset() must set everything anew, from self.epoch and the world's own draws; nothing may be carried over "
            "from epoch to epoch, or, with autoreset, it must be in state()",
        )
    return f"{half} epochs and a resume to {suite.epochs} are {suite.epochs}"


def _at(entry: Entry) -> str:
    return f"{entry.hook}() in epoch {entry.epoch}, turn {entry.turn}"
