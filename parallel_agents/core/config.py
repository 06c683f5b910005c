"""Read and check the configuration: frozen dataclasses, validated before anything runs.

A configuration comes from a dict, a TOML file or `section.key=value` texts. It is always read as data, never run as
code. An unknown key, a wrong type, a value out of range or options that contradict each other raise `ConfigError`,
which names the key, its value and what is allowed.

>>> Config.build({"experiment": {"epochs": 5}}).experiment.epochs
5
>>> Config.build({}).parallel.enabled, Config.build({"parallel": {}}).parallel.enabled
(False, True)
"""

from __future__ import annotations

import difflib
import itertools
import json
import math
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from parallel_agents.core.errors import ConfigError

Section = TypeVar("Section")
MAX_CONFIG_BYTES = 1_000_000
BackendName = Literal["inline", "thread", "process", "ray"]
"""Where rounds can be computed."""


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """How long a run takes, from which seed it starts, and how often it is saved and evaluated."""

    epochs: int = 100
    """Number of epochs; they are counted from 1."""
    total_timesteps: int | None = None
    """Steps of single worlds instead of `epochs`: as many epochs of `max_turns` turns of all worlds as they fill."""
    max_turns: int = 100
    """Turns of an epoch: at most this many without `autoreset`, exactly this many with it."""
    autoreset: bool = False
    """True: a finished world is reset at once, and episodes cross epochs. False: every epoch resets every world."""
    seed: int = 0
    """The seed of all random numbers of the run."""
    seeds: int = 1
    """Number of replicas, with seeds `seed`, `seed + 1`, …; they are trained in the same stacks."""
    worlds: int = 1
    """Number of worlds that are stepped side by side."""
    record_period: int = 50
    """Epochs between two recorded episodes; 0: none."""
    checkpoint_every: int | None = None
    """Epochs between two checkpoints; 0: only the last; None: every two minutes, or less often where they cost more."""
    keep_last: int = 3
    """Number of newest checkpoints that are kept."""
    eval_every: int = 0
    """Epochs between two evaluations; 0: none."""
    eval_episodes: int = 20
    """Episodes of one evaluation."""
    sweep: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    """Values to try, such as {"model.lr": [0.001, 0.0003]}. Every combination is a replica, all in the same stacks."""

    def __post_init__(self) -> None:
        for name in ("epochs", "max_turns", "seeds", "worlds", "keep_last", "eval_episodes"):
            at_least(self, "experiment", name, 1)
        for name in ("seed", "record_period", "checkpoint_every", "eval_every", "total_timesteps"):
            if getattr(self, name) is not None:
                at_least(self, "experiment", name, 0)
        if self.total_timesteps is not None:
            epochs = max(1, math.ceil(self.total_timesteps / (self.max_turns * self.worlds)))
            object.__setattr__(self, "epochs", epochs)  # a frozen dataclass sets a value that follows from others so
        for key, values in self.sweep.items():
            if key.partition(".")[0] not in ("model", "world") or not key.partition(".")[2]:
                raise ConfigError(
                    f"experiment.sweep has {key!r}: only keys of model and world may differ between replicas"
                )
            if not values:
                raise ConfigError(f"experiment.sweep has no values for {key}: give at least one")

    @property
    def settings(self) -> list[dict[str, Any]]:
        """Every combination of the swept values; a single empty one if nothing is swept.

        >>> Experiment(sweep={"model.lr": (0.1, 0.2)}).settings
        [{'model.lr': 0.1}, {'model.lr': 0.2}]
        """
        return [dict(zip(self.sweep, values, strict=True)) for values in itertools.product(*self.sweep.values())]


@dataclass(frozen=True, kw_only=True)
class Parallel:
    """How the work is run. Results depend on `train_interval`, `policy_lag`, `turn_order` and `publish` only."""

    enabled: bool = True
    """False: compute one agent after the other, inline, with the same bytes."""
    parallel_actions: bool = True
    """Compute the actions of all agents in one batched forward pass instead of one pass per agent."""
    parallel_training: bool = True
    """Train all agents in one stacked update instead of one update per agent."""
    async_learning: bool = True
    """Train in the background while the worlds go on."""
    train_interval: int = 4
    """Epochs between two rounds of training: 4 means after epochs 4, 8, 12, …"""
    num_workers: int | None = None
    """Number of learner workers, at most one per agent (the loop may be one); None: by agents, cores, measured cost."""
    use_threads: bool | None = None
    """True: learner threads. False: learner processes. None: by measured cost."""
    backend: BackendName | None = None
    """Where rounds are trained; overrides the flags above. None: follow the flags."""
    buffer_sync: Literal["snapshot", "lock"] = "snapshot"
    """Who copies the data of a round: the collector at the epoch's end, or a learner thread under the buffer's lock."""
    turn_order: Literal["simultaneous", "sequential"] = "simultaneous"
    """simultaneous: all agents observe, then all act. sequential: each observes after the earlier ones have acted."""
    policy_lag: int = 1
    """By how many rounds the acting weights are older than the learner's."""
    publish: Literal["scheduled", "asap"] = "scheduled"
    """scheduled: publish a round when it is due. asap: as soon as it is done; then there is no digest."""
    device: Literal["cpu", "cuda", "auto"] = "cpu"
    """Device that networks are computed on."""
    round_deadline: float = 600.0
    """Seconds to wait for a round once it is due."""
    world_deadline: float = 60.0
    """Seconds that a slow model or a foreign world may take for one turn."""
    max_failures: int = 3
    """Skipped rounds in a row, or lost world processes in a row, that stop the run; 0 is the same as 1."""
    address: str | None = None
    """Address of a Ray cluster that this machine belongs to: host:port, or auto; None: start a local Ray."""
    resources_per_worker: dict[str, float] | None = None
    """Ray resources of each worker, such as {"CPU": 1, "GPU": 0.5}; None: one CPU."""
    world_shards: int = 0
    """Actors on Ray, of one CPU each, that play a part of the worlds each; 0: the process of the run plays all."""

    def __post_init__(self) -> None:
        at_least(self, "parallel", "train_interval", 1)
        at_least(self, "parallel", "policy_lag", 0)
        at_least(self, "parallel", "max_failures", 0)
        at_least(self, "parallel", "world_shards", 0)
        if self.num_workers is not None:
            at_least(self, "parallel", "num_workers", 1)
        for name in ("round_deadline", "world_deadline"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"parallel.{name} is {getattr(self, name)}: give a number of seconds above 0")
        if self.publish == "asap" and self.policy_lag < 1:
            raise ConfigError(
                "parallel.publish is 'asap' with parallel.policy_lag 0: free-running needs a bound of at least 1; "
                "raise policy_lag or use publish = 'scheduled'"
            )
        on_ray = self.address is not None or self.resources_per_worker is not None or self.world_shards
        if self.backend != "ray" and on_ray:
            raise ConfigError(
                f"parallel.address, parallel.resources_per_worker and parallel.world_shards are for backend 'ray', but "
                f"backend is {self.backend!r}: set parallel.backend = 'ray' or leave them out"
            )
        port = (self.address or "auto").rpartition(":")[2]
        if self.address is not None and self.address != "auto" and (not port.isdigit() or "/" in self.address):
            raise ConfigError(
                f"parallel.address is {self.address!r}: write host:port of the cluster's head, or auto, and run on a "
                "machine of the cluster (ray job submit does that)"
            )
        if bad := {name: amount for name, amount in (self.resources_per_worker or {}).items() if not amount >= 0}:
            raise ConfigError(f"parallel.resources_per_worker has {bad}: give amounts of at least 0")

    @classmethod
    def sequential(cls) -> Parallel:
        """Return what a configuration without a `parallel` section means."""
        return cls(enabled=False, policy_lag=0)


@dataclass(frozen=True, kw_only=True)
class Config:
    """A whole configuration. The keys of `world` and `model` are defined by the environment and the algorithm."""

    experiment: Experiment = field(default_factory=Experiment)
    world: Mapping[str, Any] = field(default_factory=dict)
    model: Mapping[str, Any] = field(default_factory=dict)
    parallel: Parallel = field(default_factory=Parallel.sequential)

    @classmethod
    def build(cls, source: Config | Mapping[str, Any] | str | Path | None = None) -> Config:
        """Return the validated configuration from a dict or a TOML file; return a `Config` as it is."""
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
        """Return the plain sections of a dict or a TOML file, not validated yet."""
        if isinstance(source, str | Path):
            return read_toml(Path(source))
        if source is not None and not isinstance(source, Mapping):
            raise ConfigError(f"a configuration is a dict or the path of a TOML file, not a {type(source).__name__}")
        return dict(source or {})

    def replica(self, seed: int, setting: Mapping[str, Any]) -> Config:
        """Return the configuration of one replica, with its seed and its values of a sweep."""
        raw = merge(self.as_dict(), *(nested(key, value) for key, value in setting.items()))
        return Config.build({**raw, "experiment": {**raw["experiment"], "seed": seed, "seeds": 1, "sweep": {}}})

    def problem(self) -> dict[str, Any]:
        """Return the values that results depend on, by `section.key`, without those of how the work is run.

        >>> "experiment.seed" in Config().problem(), "parallel.backend" in Config().problem()
        (True, False)
        """
        return {
            f"{section}.{key}": value
            for section, values in self.as_dict().items()
            for key, value in values.items()
            if f"{section}.{key}" not in _EXECUTION_KEYS
        }

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, as they are written into the run folder."""
        return {
            "experiment": asdict(self.experiment),
            "world": dict(self.world),
            "model": dict(self.model),
            "parallel": asdict(self.parallel),
        }


_PROBLEM = ("train_interval", "policy_lag", "turn_order", "publish")
_EXECUTION_KEYS = {f"parallel.{f.name}" for f in fields(Parallel) if f.name not in _PROBLEM} | {
    f"experiment.{f.name}"
    for f in fields(Experiment)
    if f.name not in ("max_turns", "autoreset", "seed", "seeds", "worlds", "sweep")
}
"""Keys that may differ when a run is resumed: no result except that of evaluations depends on them."""


def build_section(section: type[Section], values: Mapping[str, Any], name: str) -> Section:
    """Return a section's dataclass from plain values; raise ConfigError for an unknown key or a wrong type."""
    hints = typing.get_type_hints(section)
    known = [f.name for f in fields(section)]  # type: ignore[arg-type]
    renamed: Mapping[str, str] = getattr(section, "RENAMED", {})
    for key in values:
        if key in renamed:
            raise ConfigError(f"{name}.{key} was renamed: use {name}.{renamed[key]}")
    check_keys(values, known, "key", prefix=f"{name}.")
    required = (f.name for f in fields(section) if f.default is f.default_factory is MISSING)  # type: ignore[arg-type]
    if missing := [key for key in required if key not in values]:
        raise ConfigError(f"{name} lacks {', '.join(missing)}: give each of them")
    return section(**{key: _typed(value, hints[key], f"{name}.{key}") for key, value in values.items()})


def merge(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested dicts merged, with later layers over earlier ones.

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
    """Return nested dicts from `section.key=value`, with the value parsed as JSON if it is JSON, else as text.

    >>> parse_setting("parallel.num_workers=2")
    {'parallel': {'num_workers': 2}}
    """
    path, equals, value = text.partition("=")
    _, dot, key = path.strip().partition(".")
    if not equals or not dot or not key:
        here = ELSEWHERE.get(path.strip())
        raise ConfigError(
            f"--set {text!r}: write section.key=value, for example parallel.num_workers=2"
            + (f"; {path.strip()} is {here} here" if here else "")
        )
    return nested(path.strip(), _from_text(value.strip()))


def parse_sweep(text: str) -> dict[str, list[Any]]:
    """Return the key and its values from `section.key=value,value,…`, with values as in `parse_setting`.

    >>> parse_sweep("model.lr=0.001,0.0003")
    {'model.lr': [0.001, 0.0003]}
    """
    path, equals, values = text.partition("=")
    if not equals or not values.strip():
        raise ConfigError(f"--sweep {text!r}: write section.key=value,value, for example model.lr=0.001,0.0003")
    whole = _from_text(values.strip())
    return {path.strip(): whole if isinstance(whole, list) else [_from_text(v.strip()) for v in values.split(",")]}


def nested(path: str, value: Any) -> dict[str, Any]:
    """Return `section.key` and its value as nested dicts.

    >>> nested("model.lr", 0.1)
    {'model': {'lr': 0.1}}
    """
    section, _, key = path.partition(".")
    return {section: {key: value}}


def read_toml(path: Path) -> dict[str, Any]:
    """Return the contents of a TOML file as plain data."""
    try:
        if path.stat().st_size > MAX_CONFIG_BYTES:
            raise ConfigError(f"{path} is larger than {MAX_CONFIG_BYTES:,} bytes: that is no configuration")
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the configuration {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error


def _from_text(value: str) -> Any:
    """Return None, a bool or JSON where the text is one of those, else the text itself."""
    lowered = value.lower()
    if lowered in ("none", "null"):
        return None
    if lowered in ("true", "false"):
        return lowered == "true"
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


ELSEWHERE = {
    "learning_rate": "model.lr",
    "n_steps": "experiment.max_turns",
    "num_steps": "experiment.max_turns",
    "n_envs": "experiment.worlds",
    "num_envs": "experiment.worlds",
    "total_steps": "experiment.total_timesteps",
    "total_timesteps": "experiment.total_timesteps",
    "ent_coef": "model.ent_coef",
    "vf_coef": "model.vf_coef",
    "gamma": "model.gamma",
    "gae_lambda": "model.gae_lambda",
    "clip_coef": "model.clip_range",
    "clip_range": "model.clip_range",
    "update_epochs": "model.n_epochs",
    "n_epochs": "model.n_epochs",
    "num_minibatches": "model.n_minibatches",
    "batch_size": "model.batch_size",
    "buffer_size": "model.buffer_size",
    "learning_starts": "model.learning_starts",
    "target_network_frequency": "model.target_update_interval",
    "gradient_steps": "model.updates_per_round",
    "train_freq": "parallel.train_interval",
    "train_frequency": "parallel.train_interval",
    "exploration_fraction": "model.epsilon_epochs",
    "exploration_initial_eps": "model.epsilon",
    "exploration_final_eps": "model.epsilon_final",
    "start_e": "model.epsilon",
    "end_e": "model.epsilon_final",
    "net_arch": "model.hidden",
    "policy_kwargs": "model.hidden",
    "anneal_lr": "model.lr_final, with model.lr_updates",
    "stats_window_size": "nothing: ep_rew_mean is over the episodes that ended in an epoch",
    "device": "parallel.device",
    "verbose": "--quiet",
    "env_id": "the target, such as gymnasium:CartPole-v1",
}
"""Names of Stable-Baselines3 and CleanRL, and what they are called here."""


def check_keys(values: Iterable[str], known: list[str], what: str, prefix: str = "") -> None:
    """Raise ConfigError for a key that is not known, with the most similar known key."""
    for key in values:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, n=1)
            hint = f"; did you mean {prefix}{near[0]}?" if near else "."
            if ELSEWHERE.get(key) == f"{prefix}{key}":
                hint = "; it is an option of another algorithm."
            elif key in ELSEWHERE:
                hint = f"; here it is {ELSEWHERE[key]}."
            raise ConfigError(f"unknown {what} {prefix}{key}{hint} Allowed: {', '.join(known)}")


def _typed(value: Any, hint: Any, name: str) -> Any:
    """Return `value` if it has the type `hint`, with an int as a float and a list as a tuple where those are wanted.

    A mapping becomes a dataclass where one is wanted.
    """
    union = typing.get_origin(hint) in (types.UnionType, typing.Union)
    allowed = typing.get_args(hint) if union else (hint,)
    for option in allowed:
        if option is Any:
            return value
        if typing.get_origin(option) is Literal:
            if value in typing.get_args(option):
                return value
        elif option is float:
            if isinstance(value, int | float) and not isinstance(value, bool):
                with suppress(OverflowError):  # an int that is larger than every float
                    return float(value)
        elif option is int:
            if isinstance(value, int) and not isinstance(value, bool):
                return value
        elif typing.get_origin(option) is tuple:
            if isinstance(value, list | tuple):
                inner = typing.get_args(option)[0]
                return tuple(_typed(item, inner, f"{name}[{index}]") for index, item in enumerate(value))
        elif typing.get_origin(option) in (dict, Mapping):
            if isinstance(value, Mapping):
                inner = typing.get_args(option)[1]
                return {key: _typed(item, inner, f"{name}.{key}") for key, item in value.items()}
        elif isinstance(option, type) and is_dataclass(option) and isinstance(value, Mapping):
            return build_section(option, value, name)
        elif isinstance(value, option):
            return value
    raise ConfigError(f"{name} is {value!r} ({type(value).__name__}): allowed is {_type_names(allowed)}")


def _type_names(allowed: Iterable[Any]) -> str:
    """Return types and literal values as text for an error."""
    names: list[str] = []
    for option in allowed:
        if typing.get_origin(option) is Literal:
            names += [repr(choice) for choice in typing.get_args(option)]
        else:
            names.append("None" if option is type(None) else getattr(option, "__name__", str(option)))
    return ", ".join(names)


def at_least(section: Any, name: str, key: str, least: int) -> None:
    """Raise ConfigError if this key of a section is below `least`."""
    if getattr(section, key) < least:
        raise ConfigError(f"{name}.{key} is {getattr(section, key)}: give a whole number of at least {least}")
