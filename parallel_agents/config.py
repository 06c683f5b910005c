"""The configuration: frozen dataclasses, validated whole before anything runs.

It is read from a dict, a TOML file or `section.key=value` words, always as data, never as code. An unknown
key, a wrong type, a value out of range or options that contradict each other raise `ConfigError` with the
key, what was found and what is allowed.

>>> Config.build({"experiment": {"epochs": 5}}).experiment.epochs
5
>>> Config.build({}).parallel.enabled, Config.build({"parallel": {}}).parallel.enabled
(False, True)
"""

from __future__ import annotations

import difflib
import itertools
import json
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, TypeVar

from parallel_agents.errors import ConfigError

__all__ = [
    "Config",
    "Experiment",
    "Parallel",
    "build_section",
    "check_keys",
    "merge",
    "nested",
    "parse_setting",
    "parse_sweep",
    "read_toml",
]

Section = TypeVar("Section")
MAX_CONFIG_BYTES = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """How long, how often, from which seed."""

    epochs: int = 100
    """Epochs to run, counted from 1."""
    max_turns: int = 100
    """Turns of an epoch: at most so many without autoreset, exactly so many with it."""
    autoreset: bool = False
    """True: episodes cross epochs and a finished world starts afresh. False: every epoch starts fresh."""
    seed: int = 0
    """The one seed of the run."""
    seeds: int = 1
    """Replicas, with seeds `seed`, `seed + 1`, …, trained in the same stacks."""
    worlds: int = 1
    """Worlds stepped side by side."""
    record_period: int = 50
    """Epochs between two recorded episodes; 0: none."""
    checkpoint_every: int | None = None
    """Epochs between two checkpoints; 0: only the last; None: every two minutes, or less often where they cost more."""
    keep_last: int = 3
    """Checkpoints kept."""
    eval_every: int = 0
    """Epochs between two evaluations; 0: none."""
    eval_episodes: int = 20
    """Episodes of one evaluation."""
    sweep: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    """Values to try, such as {"model.lr": [0.001, 0.0003]}: every combination is a replica, all in the same stacks."""

    def __post_init__(self) -> None:
        for name in ("epochs", "max_turns", "seeds", "worlds", "keep_last", "eval_episodes"):
            _at_least(self, "experiment", name, 1)
        for name in ("seed", "record_period", "checkpoint_every", "eval_every"):
            if getattr(self, name) is not None:
                _at_least(self, "experiment", name, 0)
        for key, values in self.sweep.items():
            if key.partition(".")[0] not in ("model", "world") or not key.partition(".")[2]:
                raise ConfigError(
                    f"experiment.sweep has {key!r}: only keys of model and world may differ between replicas"
                )
            if not values:
                raise ConfigError(f"experiment.sweep has no values for {key}: give at least one")

    @property
    def settings(self) -> list[dict[str, Any]]:
        """Every combination of the swept values; one empty one where nothing is swept.

        >>> Experiment(sweep={"model.lr": (0.1, 0.2)}).settings
        [{'model.lr': 0.1}, {'model.lr': 0.2}]
        """
        return [dict(zip(self.sweep, values, strict=True)) for values in itertools.product(*self.sweep.values())]


@dataclass(frozen=True, kw_only=True)
class Parallel:
    """How the work is run. Only `train_interval`, `policy_lag`, `turn_order` and `publish` belong to the problem."""

    enabled: bool = True
    """False: one agent after the other, inline; the same bytes."""
    parallel_actions: bool = True
    """One batched forward instead of one per agent."""
    parallel_training: bool = True
    """One stacked update instead of one per agent."""
    async_learning: bool = True
    """Learn in the background."""
    train_interval: int = 4
    """A round after epochs 4, 8, 12, …"""
    num_workers: int | None = None
    """Learner workers; None: from agents, cores and measured cost; at most one per agent."""
    use_threads: bool | None = None
    """True: threads; False: processes; None: by measured cost."""
    backend: Literal["inline", "thread", "process", "ray"] | None = None
    """Explicit; wins over the flags."""
    buffer_sync: Literal["snapshot", "lock"] = "snapshot"
    """Who copies what a round reads: the collector at the boundary, or a learner thread under the buffer's lock."""
    turn_order: Literal["simultaneous", "sequential"] = "simultaneous"
    """All observe and then act, or each observes after the earlier ones have acted."""
    policy_lag: int = 1
    """How many rounds old the acting weights are."""
    publish: Literal["scheduled", "asap"] = "scheduled"
    """At the boundary where a round is due, or as soon as it is there (then no digest)."""
    device: Literal["cpu", "cuda", "auto"] = "cpu"
    """Where networks are computed."""
    round_deadline: float = 600.0
    """Seconds a round may take once it is due."""
    world_deadline: float = 60.0
    """Seconds a slow model or a foreign world may take for one turn."""
    max_failures: int = 3
    """Consecutive skipped rounds, or lost processes of worlds, after which the run stops; 0: the first stops it."""
    address: str | None = None
    """Ray cluster."""
    resources_per_worker: dict[str, float] | None = None
    """Ray resources."""

    def __post_init__(self) -> None:
        _at_least(self, "parallel", "train_interval", 1)
        _at_least(self, "parallel", "policy_lag", 0)
        _at_least(self, "parallel", "max_failures", 0)
        if self.num_workers is not None:
            _at_least(self, "parallel", "num_workers", 1)
        for name in ("round_deadline", "world_deadline"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"parallel.{name} is {getattr(self, name)}: give a number of seconds above 0")
        if self.publish == "asap" and self.policy_lag < 1:
            raise ConfigError(
                "parallel.publish is 'asap' with parallel.policy_lag 0: free-running needs a bound of at least 1; "
                "raise policy_lag or use publish = 'scheduled'"
            )
        if self.backend != "ray" and (self.address is not None or self.resources_per_worker is not None):
            raise ConfigError(
                f"parallel.address and parallel.resources_per_worker are for backend 'ray', but backend is "
                f"{self.backend!r}: set parallel.backend = 'ray' or leave them out"
            )

    @classmethod
    def sequential(cls) -> Parallel:
        """What a configuration without a `parallel` section means."""
        return cls(enabled=False, policy_lag=0)


@dataclass(frozen=True, kw_only=True)
class Config:
    """A whole configuration. `world` and `model` hold the environment's and the model's own keys."""

    experiment: Experiment = field(default_factory=Experiment)
    world: Mapping[str, Any] = field(default_factory=dict)
    model: Mapping[str, Any] = field(default_factory=dict)
    parallel: Parallel = field(default_factory=Parallel.sequential)

    @classmethod
    def build(cls, source: Config | Mapping[str, Any] | str | Path | None = None) -> Config:
        """From a dict, a TOML file, or a configuration that is one already."""
        if isinstance(source, Config):
            return source
        raw = cls.read(source)
        check_keys(raw, [f.name for f in fields(cls)], "section")
        for name in raw:
            if not isinstance(raw[name], Mapping):
                raise ConfigError(f"{name} is {raw[name]!r}: a section holds keys and values")
        parallel = build_section(Parallel, raw["parallel"], "parallel") if "parallel" in raw else Parallel.sequential()
        return cls(
            experiment=build_section(Experiment, raw.get("experiment", {}), "experiment"),
            world=dict(raw.get("world", {})),
            model=dict(raw.get("model", {})),
            parallel=parallel,
        )

    @staticmethod
    def read(source: Mapping[str, Any] | str | Path | None) -> dict[str, Any]:
        """Plain sections from a dict or a TOML file, not validated yet."""
        if isinstance(source, str | Path):
            return read_toml(Path(source))
        if source is not None and not isinstance(source, Mapping):
            raise ConfigError(f"a configuration is a dict or the path of a TOML file, not a {type(source).__name__}")
        return dict(source or {})

    def replica(self, seed: int, setting: Mapping[str, Any]) -> Config:
        """The configuration of one replica: its seed, and its values of a sweep."""
        own = merge(self.as_dict(), *(nested(key, value) for key, value in setting.items()))
        return Config.build({**own, "experiment": {**own["experiment"], "seed": seed, "seeds": 1, "sweep": {}}})

    def problem(self) -> dict[str, Any]:
        """Return the values that results depend on, by `section.key`; how the work is run is left out.

        >>> "experiment.seed" in Config().problem(), "parallel.backend" in Config().problem()
        (True, False)
        """
        return {
            f"{section}.{key}": value
            for section, values in self.as_dict().items()
            for key, value in values.items()
            if f"{section}.{key}" not in _HOW_IT_IS_RUN
        }

    def as_dict(self) -> dict[str, Any]:
        """Plain values, as they are written into the run folder."""
        return {
            "experiment": asdict(self.experiment),
            "world": dict(self.world),
            "model": dict(self.model),
            "parallel": asdict(self.parallel),
        }


_PROBLEM = ("train_interval", "policy_lag", "turn_order", "publish")
_HOW_IT_IS_RUN = {f"parallel.{f.name}" for f in fields(Parallel) if f.name not in _PROBLEM} | {
    f"experiment.{name}"
    for name in ("epochs", "record_period", "checkpoint_every", "keep_last", "eval_every", "eval_episodes")
}
"""Keys that may differ when a run is resumed: no result but that of evaluations depends on them."""


def build_section(section: type[Section], values: Mapping[str, Any], name: str) -> Section:
    """A section's dataclass from plain values; every key known, every type right."""
    hints = typing.get_type_hints(section)
    known = [f.name for f in fields(section)]  # type: ignore[arg-type]
    check_keys(values, known, "key", prefix=f"{name}.")
    return section(**{key: _typed(value, hints[key], f"{name}.{key}") for key, value in values.items()})


def merge(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Nested dicts, later layers over earlier ones.

    >>> merge({"a": {"x": 1, "y": 2}}, {"a": {"y": 3}})
    {'a': {'x': 1, 'y': 3}}
    """
    merged: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
            merged[key] = merge(merged[key], value) if both else value
    return merged


def parse_setting(text: str) -> dict[str, Any]:
    """`section.key=value`, the value as JSON where it is JSON, else as text.

    >>> parse_setting("parallel.num_workers=2")
    {'parallel': {'num_workers': 2}}
    """
    path, equals, value = text.partition("=")
    _, dot, key = path.strip().partition(".")
    if not equals or not dot or not key:
        raise ConfigError(f"--set {text!r}: write section.key=value, for example parallel.num_workers=2")
    return nested(path.strip(), _from_text(value.strip()))


def parse_sweep(text: str) -> dict[str, list[Any]]:
    """`section.key=value,value,…`, each value as in `parse_setting`.

    >>> parse_sweep("model.lr=0.001,0.0003")
    {'model.lr': [0.001, 0.0003]}
    """
    path, equals, values = text.partition("=")
    if not equals or not values.strip():
        raise ConfigError(f"--sweep {text!r}: write section.key=value,value, for example model.lr=0.001,0.0003")
    whole = _from_text(values.strip())
    return {path.strip(): whole if isinstance(whole, list) else [_from_text(v.strip()) for v in values.split(",")]}


def nested(path: str, value: Any) -> dict[str, Any]:
    """`section.key` and a value as nested dicts.

    >>> nested("model.lr", 0.1)
    {'model': {'lr': 0.1}}
    """
    section, _, key = path.partition(".")
    return {section: {key: value}}


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML file as plain data."""
    try:
        if path.stat().st_size > MAX_CONFIG_BYTES:
            raise ConfigError(f"{path} is larger than {MAX_CONFIG_BYTES:,} bytes: that is no configuration")
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the configuration {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error


def _from_text(value: str) -> Any:
    lowered = value.lower()
    if lowered in ("none", "null"):
        return None
    if lowered in ("true", "false"):
        return lowered == "true"
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def check_keys(values: Iterable[str], known: list[str], what: str, prefix: str = "") -> None:
    """Refuse keys that nobody would read."""
    for key in values:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, n=1)
            hint = f"; did you mean {prefix}{near[0]}?" if near else "."
            raise ConfigError(f"unknown {what} {prefix}{key}{hint} Allowed: {', '.join(known)}")


def _typed(value: Any, hint: Any, name: str) -> Any:
    """`value` if it is of the type `hint`; an int as a float and a list as a tuple where those are due."""
    union = typing.get_origin(hint) in (types.UnionType, typing.Union)
    options = typing.get_args(hint) if union else (hint,)
    for option in options:
        if option is Any:
            return value
        if typing.get_origin(option) is Literal:
            if value in typing.get_args(option):
                return value
        elif option is float:
            if isinstance(value, int | float) and not isinstance(value, bool):
                with suppress(OverflowError):  # a whole number beyond every float
                    return float(value)
        elif option is Any:
            return value
        elif option is int:
            if isinstance(value, int) and not isinstance(value, bool):
                return value
        elif typing.get_origin(option) is tuple:
            if isinstance(value, list | tuple):
                inner = typing.get_args(option)[0]
                return tuple(_typed(own, inner, f"{name}[{place}]") for place, own in enumerate(value))
        elif typing.get_origin(option) is dict:
            if isinstance(value, Mapping):
                inner = typing.get_args(option)[1]
                return {key: _typed(own, inner, f"{name}.{key}") for key, own in value.items()}
        elif isinstance(value, option):
            return value
    raise ConfigError(f"{name} is {value!r} ({type(value).__name__}): allowed is {_spoken(options)}")


def _spoken(options: Iterable[Any]) -> str:
    words: list[str] = []
    for option in options:
        if typing.get_origin(option) is Literal:
            words += [repr(choice) for choice in typing.get_args(option)]
        else:
            words.append("None" if option is type(None) else getattr(option, "__name__", str(option)))
    return ", ".join(words)


def _at_least(section: Any, name: str, key: str, least: int) -> None:
    if getattr(section, key) < least:
        raise ConfigError(f"{name}.{key} is {getattr(section, key)}: give a whole number of at least {least}")
