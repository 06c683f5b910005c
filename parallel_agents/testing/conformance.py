"""The checks of a user's environment and of a user's buffer, each with advice on how to fix what it finds."""

from __future__ import annotations

import contextlib
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from parallel_agents.checkpoint import Checkpointer, checkpoint_obstacle, restore
from parallel_agents.core.config import Config, merge
from parallel_agents.core.errors import ConfigError, ParallelAgentsError
from parallel_agents.env import Environment
from parallel_agents.testing.trace import (
    Trace,
    copied_arrays,
    equal_bytes,
    first_difference,
    no_global_generators,
    record,
)

EPOCHS = 5
MAX_TURNS = 200
"""The maximum number of turns of an epoch in a check; fewer if the environment's own epochs are shorter."""
OTHER_SEED = {"experiment": {"seed": 7919}}
LEARN_EARLY = {"learning_starts": 8, "batch_size": 4, "updates_per_round": 2}
"""Makes rounds learn within a few epochs; left out for models without these keys."""


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    check: str
    passed: bool | None
    """None: it could not be checked, which is not the same as passed."""
    detail: str
    advice: str = ""
    """How to fix it."""

    def __str__(self) -> str:
        mark = {True: "ok         ", False: "FAILED     ", None: "not checked"}[self.passed]
        return f"{mark} {self.check}: {self.detail}" + (f"\n            fix: {self.advice}" if self.advice else "")


class _Failed(Exception):
    """Raised by a check that fails."""

    def __init__(self, detail: str, advice: str) -> None:
        super().__init__(detail)
        self.detail, self.advice = detail, advice


class _NotChecked(Exception):
    """Raised by a check that cannot be made; its text says why."""


def _run(name: str, check: Callable[[], str], advice: str = "the message above says where it comes from") -> Finding:
    """Run one check, which returns what it saw or raises; `advice` is for errors of the user's own code."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return Finding(name, True, check())
    except _Failed as failed:
        return Finding(name, False, failed.detail, failed.advice)
    except _NotChecked as reason:
        return Finding(name, None, str(reason))
    except (Exception, SystemExit) as error:  # the user's code may raise anything
        return Finding(name, False, _describe(error), advice)


def _describe(error: Exception | SystemExit) -> str:
    return str(error) if isinstance(error, ParallelAgentsError) else f"{type(error).__name__}: {error}"


# -- environments --------------------------------------------------------------------------------------------------


class _Suite:
    """Makes one environment class again and again, with a configuration that is small enough for a check."""

    def __init__(self, make: Callable[..., Environment], config: Mapping[str, Any], epochs: int) -> None:
        self._make, self._config, self.epochs = make, config, epochs
        experiment = make(config=dict(config)).config.experiment
        self.autoreset = experiment.autoreset
        turns, worlds = min(experiment.max_turns, MAX_TURNS), min(experiment.worlds, 3)
        self._small: dict[str, Any] = {
            "experiment": {"epochs": epochs, "max_turns": turns, "worlds": worlds, "seeds": 1, "checkpoint_every": 0,
                           "eval_every": 0, "record_period": 0},
            "parallel": {"backend": "inline", "train_interval": 1, "publish": "scheduled"},
        }  # fmt: skip
        try:
            self.make({"model": LEARN_EARLY})
            self._small["model"] = LEARN_EARLY
        except ConfigError:
            self.make()

    def make(self, *layers: Mapping[str, Any]) -> Environment:
        return self._make(config=merge(self._config, self._small, *layers))

    def trace(self, *layers: Mapping[str, Any], raise_errors: bool = True) -> Trace:
        """Run a new environment and return the trace; without raise_errors, up to where the run fails."""
        environment = self.make(*layers)
        trace = record(environment)
        with contextlib.nullcontext() if raise_errors else contextlib.suppress(Exception):
            environment.run_experiment()
        return trace

    @cached_property
    def own_trace(self) -> Trace:
        """The trace of the environment as it is configured."""
        return self.trace()

    def digest(self, **flags: Any) -> str:
        return _digest(self.make({"parallel": flags}).run_experiment())


def check_environment(
    kind: Callable[..., Environment],
    config: Mapping[str, Any] | str | Path | None = None,
    *,
    epochs: int = EPOCHS,
    backends: Sequence[str] = ("inline", "thread"),
) -> list[Finding]:
    """Run every check of an environment; the results of `backends` must be equal.

    kind: an environment class, or a function that returns an environment for `config=`.
    """
    sections = Config.read(config)
    try:
        suite = _Suite(kind, sections, epochs)
        suite.make().prepare()
    except (Exception, SystemExit) as error:
        advice = "make it work with `config=` alone: setup_agents() puts one Agent with a model of its own per agent"
        return [Finding("construction", False, _describe(error), advice)]
    checks: dict[str, Callable[[_Suite], str]] = {
        "shapes": _shapes,
        "dones": _dones,
        "observe changes nothing": _observe_is_pure,
        "actions are only read": _actions_only_read,
        "seeding over whole episodes": _seeding,
        "global generators": _generators,
        "worlds differ": _worlds_differ,
        "buffers": _buffers,
        "equality of modes": partial(_modes, backends=backends),
        "compiled epochs": _compiled,
        "state and load_state": _state,
        "exact resume": _resume,
    }
    first = Finding("construction", True, "it can be made again and again")
    return [first, *(_run(name, partial(check, suite)) for name, check in checks.items())]


def _digest(summary: Mapping[str, Any]) -> str:
    """Return the digest of a run; raise `_NotChecked` if it has none, since then nothing can be compared."""
    if summary["digest"] is None:
        raise _NotChecked(summary["no_digest"])
    return str(summary["digest"])


def _compiled(suite: _Suite) -> str:
    """Say how epochs are played; that both ways give the same bytes is checked by the equality of modes."""
    environment = suite.make()
    reason = environment.prepare().loop.why_not_compiled()
    return "whole epochs are played in compiled code" if reason is None else f"turn by turn: {reason}"


def _shapes(suite: _Suite) -> str:
    """Check that shapes stay the same and are numbers; the engine itself refuses wrong shapes and NaN."""
    trace = suite.own_trace
    shapes = {tuple(array.shape for array in entry.values) for entry in trace.of("observe")}
    if len(shapes) > 1:
        raise _Failed(
            f"observe() gave arrays of different shapes: {sorted(map(str, shapes))}",
            "pad what an agent sees to one shape, the one its model was made for",
        )
    for entry in [*trace.of("apply_actions"), *trace.of("observe")]:
        for array in entry.values:
            if array.dtype == object or (not np.issubdtype(array.dtype, np.number) and array.dtype != np.bool_):
                raise _Failed(f"{entry} gave an array of type {array.dtype}", "give numbers: np.float32")
    return f"observations {next(iter(shapes), ())}, finite, in every turn"


def _dones(suite: _Suite) -> str:
    ends = 0
    for entry in suite.trace(raise_errors=False).of("dones"):  # another check reports errors
        if not entry.values:
            continue
        if len(entry.values) != 2 or any(array.dtype != np.bool_ for array in entry.values):
            raise _Failed(
                f"{entry} gave {len(entry.values)} arrays of types {[str(array.dtype) for array in entry.values]}",
                "give two boolean arrays (agents, worlds): terminated and truncated, or None if nothing ended",
            )
        terminated, truncated = entry.values
        if (terminated & truncated).any():
            raise _Failed(
                f"{entry} says of an agent that its episode both terminated and was truncated",
                "terminated: the episode came to its own end; truncated: it was cut off and would have gone on",
            )
        ends += int(terminated.sum() + truncated.sum())
    return f"{ends} ends of episodes seen" if ends else "no episode ended by itself within the turns of the check"


def _observe_is_pure(suite: _Suite) -> str:
    impure = suite.own_trace.impure
    if impure is not None:
        raise _Failed(
            f"{impure} returned something different when it was called a second time",
            "observe() must change nothing: move things in begin_turn() or apply_actions(), and draw random numbers "
            "there",
        )
    return "called twice, it returns the same"


def _actions_only_read(suite: _Suite) -> str:
    """Check that actions are not overwritten: the engine passes copies, but other callers may not."""
    overwrites = suite.own_trace.overwrites
    if overwrites is not None:
        raise _Failed(
            f"{overwrites} wrote into the actions it was given",
            "copy what you change: actions = actions.copy(); what agents remember is what they have chosen",
        )
    return "the actions it is given stay unchanged"


def _seeding(suite: _Suite) -> str:
    trace = suite.own_trace
    difference = first_difference(trace, suite.trace())
    if difference is not None:
        raise _Failed(
            f"two runs with the same seed differ in {difference}",
            "draw from self.rng, self.streams or parallel_agents.core.seeding; use no global generator, no clock, no "
            "order of a set, no hash of a string; and let nothing outlive an environment (class attributes, modules)",
        )
    turns, seed_matters = len(trace.of("dones")), first_difference(trace, suite.trace(OTHER_SEED)) is not None
    effect = "differs" if seed_matters else "changes nothing (no randomness)"
    return f"{turns} turns repeat exactly; another seed {effect}"


def _generators(suite: _Suite) -> str:
    suite.make()
    try:
        with no_global_generators():
            suite.make().run_experiment()
    except Exception as error:
        if "that everybody shares" not in str(error):
            raise
        raise _Failed(
            _describe(error),
            "draw from self.rng or self.streams[world], which belong to this world alone; a learner from a generator "
            "of its own, seeded in place(seed, agent, worlds)",
        ) from error
    return "none is used"


def _worlds_differ(suite: _Suite) -> str:
    layer = {"experiment": {"worlds": 3}}
    traces = suite.trace(layer), suite.trace(layer, OTHER_SEED)
    starts, other_starts = ([entry for entry in trace.of("observe") if entry.turn <= 1] for trace in traces)
    alike = all(_worlds_equal(array) for entry in starts for array in entry.values)
    random = any(not equal_bytes(a.values, b.values) for a, b in zip(starts, other_starts, strict=False))
    if alike and random:
        raise _Failed(
            "three worlds start alike in every epoch, although the seed matters: they share their random numbers",
            "draw world w from self.streams[w] (or with its number as `world=` in parallel_agents.core.seeding)",
        )
    return "worlds have randomness of their own" if not alike else "worlds are alike (no randomness at their start)"


def _worlds_equal(array: Any) -> bool:
    """Return True if all worlds of (N, W, …), or of one agent's (W, …), hold the same."""
    axis = 1 if array.ndim > 2 else 0
    return bool((np.take(array, [0], axis) == array).all())


def _buffers(suite: _Suite) -> str:
    environment = suite.make()
    environment.run_experiment()
    memories = [getattr(agent.model, "memory", None) for agent in environment.agents]
    sizes = [len(memory) for memory in memories if isinstance(memory, Sized)]
    if sizes and not any(sizes):
        raise _Failed(
            "no agent has kept a single transition",
            "can_act() must be True where agents act; an agent whose episode has ended stores nothing",
        )
    if not sizes:
        return "no agent has a buffer that could be looked into"
    return f"{len(sizes)} agents keep {min(sizes)} to {max(sizes)} transitions, each in its own"


def _modes(suite: _Suite, backends: Sequence[str]) -> str:
    sequential = suite.digest(enabled=False)
    for backend in backends:
        if suite.digest(backend=backend) != sequential:
            raise _Failed(
                f"with { ({'backend': backend}) } the results are not those of parallel.enabled = false",
                "let hooks depend on nothing but the world's own state, epoch and turn: no counters of calls, no "
                "global variables, no models that learn in get_action()",
            )
    return f"sequential and {', '.join(backends)} give one digest"


def _state(suite: _Suite) -> str:
    """Check that state() is complete; it is needed with autoreset, since episodes then cross epochs."""
    environment = suite.make()
    if not suite.autoreset:
        return "not needed: every epoch starts fresh"
    if not environment.has_state:
        raise _Failed(
            "with autoreset a checkpoint needs state() and load_state(), and they are missing",
            "write state() -> dict of arrays and load_state(state), or set experiment.autoreset = false",
        )
    environment.run_experiment(2)
    saved = {name: np.asarray(value) for name, value in environment.state().items()}
    not_numbers = [name for name, value in saved.items() if value.dtype.kind not in "biuf"]
    if not_numbers:
        raise _Failed(f"state() gives {not_numbers[0]!r}, which is no array of numbers", "encode it as numbers")
    fresh = suite.make()
    fresh.prepare()
    fresh.begin_epoch(2)
    fresh.load_state(saved)
    loaded = fresh.state()
    lost = [name for name in saved if name not in loaded or not equal_bytes(copied_arrays(loaded[name]), [saved[name]])]
    if lost:
        raise _Failed(
            f"after load_state(), state() gives another {lost[0]!r}", "load_state() must take over all of state()"
        )
    return f"{len(saved)} arrays come back as they were given"


def _resume(suite: _Suite) -> str:
    whole = suite.make()
    reason = checkpoint_obstacle(whole.prepare())
    if reason is not None:
        raise _NotChecked(reason)
    expected = _digest(whole.run_experiment())
    resumed = ""
    with tempfile.TemporaryDirectory() as folder:
        for epoch in range(1, suite.epochs + 1):  # after every one: what is lost may matter after some of them only
            part = suite.make()
            checkpointer = Checkpointer(part.prepare(), Path(folder), keep_last=1)
            if epoch > 1:
                checkpointer.continue_from(restore(part.prepare(), Path(folder))[0])
            part.prepare().checkpointer = checkpointer
            resumed = _digest(part.run_experiment(epoch))
    if resumed != expected:
        raise _Failed(
            f"{suite.epochs} epochs with a resume after each are not {suite.epochs} epochs",
            "reset() must set everything anew, from self.epoch and the world's own draws; nothing may be carried over "
            "from epoch to epoch, or, with autoreset, it must be in state(); a learner's state_dict() must hold all "
            "that it carries, generators as a whole",
        )
    return f"{suite.epochs} epochs with a resume after each are {suite.epochs} epochs"


# -- buffers -------------------------------------------------------------------------------------------------------


BUFFER_ADVICE = "see parallel_agents.replay.Buffer, which passes this check"


def check_buffer(make: Callable[[], Any], obs_shape: tuple[int, ...], *, capacity: int) -> list[Finding]:
    """Run every check of a buffer of `capacity` transitions.

    make: returns a new, empty buffer with `add(obs, action, reward, done)`, `len` and `get_buffer_snapshot()`.

    >>> from parallel_agents import Buffer
    >>> all(finding.passed for finding in check_buffer(lambda: Buffer(8, (2,)), (2,), capacity=8))
    True
    """
    problems: dict[str, Callable[[Any, tuple[int, ...], int], str | None]] = {
        "empty at first": _not_empty,
        "bounded": _too_large,
        "oldest first, newest kept": _wrong_order,
        "snapshots are frozen": _changing_snapshot,
        "not finite is refused": _accepts_non_finite,
    }

    def check(problem_of: Callable[[Any, tuple[int, ...], int], str | None]) -> str:
        problem = problem_of(make(), obs_shape, capacity)
        if problem is not None:
            raise _Failed(problem, BUFFER_ADVICE)
        return "as it should be"

    return [_run(name, partial(check, problem_of), BUFFER_ADVICE) for name, problem_of in problems.items()]


def _fill(buffer: Any, obs_shape: tuple[int, ...], count: int) -> None:
    for n in range(count):
        buffer.add(np.full(obs_shape, n, np.float32), 0, float(n), False)


def _not_empty(buffer: Any, obs_shape: tuple[int, ...], capacity: int) -> str | None:
    return "a fresh buffer already holds something" if len(buffer) else None


def _too_large(buffer: Any, obs_shape: tuple[int, ...], capacity: int) -> str | None:
    _fill(buffer, obs_shape, 3 * capacity)
    problem = f"after {3 * capacity} transitions it holds {len(buffer)}, more than {capacity}"
    return problem if len(buffer) > capacity else None


def _wrong_order(buffer: Any, obs_shape: tuple[int, ...], capacity: int) -> str | None:
    _fill(buffer, obs_shape, 2 * capacity)
    rewards = np.asarray(buffer.get_buffer_snapshot()["rewards"], float).reshape(-1).tolist()
    newest = [float(n) for n in range(2 * capacity)][-len(rewards) :]
    return None if rewards and rewards == newest else f"after {2 * capacity} transitions it holds {rewards}"


def _changing_snapshot(buffer: Any, obs_shape: tuple[int, ...], capacity: int) -> str | None:
    _fill(buffer, obs_shape, 3)
    snapshot = buffer.get_buffer_snapshot()
    before = np.array(snapshot["rewards"])
    _fill(buffer, obs_shape, 50)
    unchanged = np.array_equal(before, np.array(snapshot["rewards"]))
    return None if unchanged else "a snapshot changed when the buffer was written to"


def _accepts_non_finite(buffer: Any, obs_shape: tuple[int, ...], capacity: int) -> str | None:
    for observation, reward in ((np.nan, 0.0), (0.0, np.inf)):
        try:
            buffer.add(np.full(obs_shape, observation, np.float32), 0, reward, False)
        except Exception:
            continue
        return f"it kept an observation of {observation} with a reward of {reward}"
    return "it kept something of what it refused" if len(buffer) else None
