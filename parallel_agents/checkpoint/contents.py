"""What a run puts into a checkpoint, and how it continues from one."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from parallel_agents.algorithms.acting import Weights
from parallel_agents.algorithms.base import changed_fields, check_actions, check_events
from parallel_agents.algorithms.learner import LearnerState, RoundResult
from parallel_agents.checkpoint.segments import Segments, read_ring, segment_number
from parallel_agents.checkpoint.store import Manifest, Store
from parallel_agents.core.config import Config
from parallel_agents.core.errors import CheckpointError, ConfigError, CorruptCheckpoint
from parallel_agents.core.files import plain
from parallel_agents.core.serialization import pack, require_like, restored, unpack
from parallel_agents.core.types import Array
from parallel_agents.engine.digest import loop_arrays, stack_arrays
from parallel_agents.engine.run import Run
from parallel_agents.engine.stacks import Stack
from parallel_agents.replay import PRIORITY
from parallel_agents.replay.event_classes import EVENT_TYPE

COUNTERS = {
    "loop": ("turns", "transitions", "timesteps"),
    "group": ("recomputed", "chosen"),
    "rounds": ("submitted", "published", "updates", "rejected"),
}


# -- from a run to a checkpoint ----------------------------------------------------------------------------------------


def checkpoint_obstacle(run: Run) -> str | None:
    """Return why a run cannot be checkpointed; None if it can."""
    if run.config.experiment.autoreset:
        for env in run.environments:
            if not env.has_state:
                return (
                    f"with experiment.autoreset episodes cross epochs, and {type(env).__name__} has no state() and "
                    "load_state(): write them"
                )
    return run.group.missing_state()


def run_values(run: Run, arrays: dict[str, Array]) -> dict[str, Any]:
    """Return all that is not an array of a run at an epoch boundary with no round in flight.

    arrays: what agents keep outside of stacks is added to these.
    """
    return {
        "config": run.config.as_dict(),
        "fingerprint": run.fingerprint,
        "shape": _shape(run),
        "seconds": run.seconds,
        "failures": run.failures + len(run.rounds.skipped),
        "recent": run.recent,
        "recent_episodes": run.recent_episodes,
        "best": run.best.values(),
        "pending": sorted(run.rounds.waiting),
        "settings": [[model.settings() for model in stack.models] for stack in run.group.stacks],
        "own": [
            pack(run.group.state_of(agent_id), arrays, f"own.{number}")
            for number, agent_id in enumerate(run.group.agent_ids)
        ],
        **{owner: {name: getattr(getattr(run, owner), name) for name in names} for owner, names in COUNTERS.items()},
    }


def run_arrays(run: Run) -> dict[str, Array]:
    """Return the arrays of a run at the same moment, without its buffers. The run writes on into some of them."""
    arrays = run.best.arrays()
    for index, stack in enumerate(run.group.stacks):
        arrays |= {f"{index}.{name}": array for name, array in stack_arrays(run, index).items()}
        if PRIORITY in stack.ring.extras:
            arrays[f"{index}.{PRIORITY}"] = stack.ring.extras[PRIORITY]
        for round_, trained in run.rounds.waiting.items():
            arrays |= {f"{index}.metric.{round_}.{name}": column for name, column in trained[index][1].metrics.items()}
    for k in range(len(run.environments)):
        arrays |= {f"loop.{k}.{name}": array for name, array in loop_arrays(run, k).items()}
        arrays[f"running.{k}"] = run.loop.running[k]
    return arrays


def _shape(run: Run) -> list[Any]:
    """Return what must be equal for a checkpoint to fit: agents and specs, as text."""
    return [[len(stack), _description(stack.spec)] for stack in run.group.stacks]


def _description(spec: Any) -> str:
    """Return a spec as text, without the fields at their defaults: a new option then fits older checkpoints."""
    return f"{type(spec).__name__}({', '.join(changed_fields(spec))})"


# -- from a checkpoint to a run ----------------------------------------------------------------------------------------


def restore(run: Run, folder: Path, *, best: bool = False, epoch: int | None = None) -> tuple[Manifest, list[str]]:
    """Put a fresh run where the newest good checkpoint of a folder left it.

    Return the manifest of that checkpoint, and what is wrong with newer ones.

    best: let the agents act with the weights of their best evaluation, each replica with its own.
    epoch: the checkpoint of this epoch instead of the newest one.
    """
    reason = checkpoint_obstacle(run)
    if reason is not None:
        raise CheckpointError(f"{folder} has no checkpoint to start from: {reason}")
    store, troubles = Store(folder), list[str]()
    for manifest in store.good(troubles):
        if epoch is not None and manifest.epoch != epoch:
            continue
        try:
            _restore_from(run, store, manifest, best=best)
        except CorruptCheckpoint as error:  # the checkpoint before overwrites all that has been restored so far
            troubles.append(f"epoch {manifest.epoch}: {error}")
        else:
            return manifest, troubles
    raise store.none_usable(troubles)


def _restore_from(run: Run, store: Store, manifest: Manifest, *, best: bool) -> None:
    """Put a run where a checkpoint left it. Raise `CorruptCheckpoint` if something is missing or of a wrong type.

    The hashes only show that its bytes are those that were written, not who wrote them.
    """
    values = manifest.values
    try:
        if best and not values["best"]["epochs"]:
            raise CheckpointError(f"{store.root} knows no best weights: train with experiment.eval_every set")
        _check_fit(run, manifest)
        _compare_fingerprints(run, manifest)
        arrays = store.read(manifest, f"state-{manifest.epoch:06d}.safetensors")
        _restore_values(run, manifest)
        _restore_buffers(run, store, manifest)
        for agent_id, packed in zip(run.group.agent_ids, values["own"], strict=True):
            run.group.load_state_of(agent_id, unpack(packed, arrays))
        _restore_arrays(run, arrays, values)
    except (KeyError, ValueError, TypeError, IndexError, AttributeError, OverflowError) as error:
        raise CorruptCheckpoint(f"something is missing or of a wrong kind: {type(error).__name__}: {error}") from error
    if best:
        run.best.act()


def _check_fit(run: Run, manifest: Manifest) -> None:
    """Raise if the checkpoint is of another run: other values that results depend on, or other agents."""
    config = manifest.values["config"]
    if not isinstance(config, dict) or not config:
        raise TypeError(f"its configuration is {config!r}")  # a string would be taken for the name of a file
    try:
        stored = plain(Config.build(config).problem())
    except ConfigError as error:
        raise ValueError(f"its configuration cannot be read: {error}") from error
    problem = run.config.problem()
    here = {key: plain(value) for key, value in problem.items() if _is_data(value)}
    different = [key for key in here if key not in stored or stored[key] != here[key]]
    different += [key for key in stored if key not in problem]
    if different:
        listed = "; ".join(f"{key} is {here.get(key)!r}, there {stored.get(key)!r}" for key in different[:5])
        raise CheckpointError(
            f"the checkpoint is of another configuration: {listed}: go on with the values that the run was started with"
        )
    if manifest.values["shape"] != _shape(run):
        raise CheckpointError(
            "the checkpoint is of another configuration: its agents or networks differ from those of this run"
        )


def _is_data(value: Any) -> bool:
    """Return whether a configured value can be compared with a stored one. Objects are stored by name only."""
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True


def _compare_fingerprints(run: Run, manifest: Manifest) -> None:
    """Warn before the first epoch if equal bytes are no longer promised."""
    before, now = manifest.values["fingerprint"], run.fingerprint
    changed = [
        f"{name} was {before.get(name, 'absent')}, is {now.get(name, 'absent')}"
        for name in sorted({*before, *now})
        if before.get(name) != now.get(name)
    ]
    if changed:
        warnings.warn(
            f"the checkpoint of epoch {manifest.epoch} was written by another machine or other libraries, so the run "
            f"may not go on with the same bytes: {'; '.join(changed)}",
            RuntimeWarning,
            stacklevel=4,
        )


def _restore_values(run: Run, manifest: Manifest) -> None:
    """Put back counters, statistics and the settings of models."""
    values, replicas = manifest.values, len(run.environments)
    for owner, names in COUNTERS.items():
        for name in names:
            setattr(getattr(run, owner), name, _count(values[owner][name]))
    published, pending = run.rounds.published, values["pending"]
    if len(pending) != run.rounds.submitted - published or pending != [published + 1 + n for n in range(len(pending))]:
        raise ValueError(f"the rounds {pending} are stored, of {run.rounds.submitted} rounds {published} are published")
    run.epoch, run.seconds = manifest.epoch, float(values["seconds"])
    run.failures = _count(values["failures"])
    run.recent = [np.array(epoch, float).reshape(replicas).tolist() for epoch in values["recent"]]
    run.recent_episodes = [np.array(epoch, float).reshape(replicas, 3).tolist() for epoch in values["recent_episodes"]]
    for index, stack in enumerate(run.group.stacks):
        for model, settings in zip(stack.models, values["settings"][index], strict=True):
            model.load_settings(settings)


def _count(value: Any) -> int:
    """Return a counter of a checkpoint. Raise a ValueError unless it is a whole number that a run can reach."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**63:
        raise ValueError(f"{value!r} cannot be a counter")
    return value


def _restore_buffers(run: Run, store: Store, manifest: Manifest) -> None:
    """Fill the buffers of all stacks from the segments of the checkpoint."""
    written = _count(manifest.values["segments_written"])
    for stack, segments in zip(run.group.stacks, manifest.values["segments"], strict=True):
        Segments(stack.ring).resume(segments, stack.ring)  # refuse wrong ones now, not when the run continues
        names, rows = segments["names"], [store.read(manifest, name) for name in segments["names"]]
        for segment in rows:
            check_actions(stack.spec, segment["row.actions"])
        read_ring(stack.ring, rows)
        for name, segment, first, end in zip(names, rows, segments["firsts"], segments["ends"], strict=True):
            if segment_number(name) > written:
                raise ValueError(f"{name} is there after {written} segments: the next ones would overwrite it")
            if [segment["first"].tolist(), segment["end"].tolist()] != [first, end]:
                raise ValueError(f"{name} does not hold the rows {first} to {end}")
        for row, model in enumerate(stack.models):
            if model.event_types:
                check_events(model, stack.ring.extras[EVENT_TYPE][row])


def _restore_arrays(run: Run, arrays: Mapping[str, Array], values: Mapping[str, Any]) -> None:
    """Put back learner states, acting weights, pending rounds and the episodes of all environments."""
    autoreset = run.config.experiment.autoreset
    run.rounds.waiting = {int(round_): [] for round_ in values["pending"]}
    run.best.restore(values["best"], arrays)
    for index, stack in enumerate(run.group.stacks):
        run.rounds.newest[index] = _state(arrays, f"{index}.newest", stack)
        acting = _array(arrays, f"{index}.acting", stack.acting_rows.cpu().numpy())
        stack.inference.weights = Weights(run.rounds.published, torch.from_numpy(acting).to(stack.device))
        if PRIORITY in stack.ring.extras:
            own = stack.ring.extras[PRIORITY]
            own[...] = _array(arrays, f"{index}.{PRIORITY}", own, least=0.0)
        if autoreset:
            stack.frames.window[:] = _array(arrays, f"{index}.frames", stack.frames.window)
            stack.recurrent.after = _array(arrays, f"{index}.recall", stack.recurrent.after).copy()
        for round_, trained in run.rounds.waiting.items():
            trained.append((_state(arrays, f"{index}.pending.{round_}", stack), _result(arrays, index, round_, stack)))
        stack.copy_state(run.rounds.newest[index])
    for k, env in enumerate(run.environments):
        alive, first = (_array(arrays, f"loop.{k}.{name}", run.loop.alive[k]) for name in ("alive", "first"))
        run.loop.restore(k, alive, first)
        run.loop.running[k][...] = _array(arrays, f"running.{k}", run.loop.running[k])
        if autoreset:
            env.load_state(_with_prefix(arrays, f"loop.{k}.world."))


def _with_prefix(arrays: Mapping[str, Array], prefix: str) -> dict[str, Array]:
    """Return the arrays whose names begin with `prefix`, under the rest of their names."""
    return {name[len(prefix) :]: array for name, array in arrays.items() if name.startswith(prefix)}


def _array(arrays: Mapping[str, Array], name: str, wanted: Array, least: float = -math.inf) -> Array:
    """Return an array of the checkpoint that takes the place of another one; raise if it does not fit there."""
    return restored(name, arrays[name], wanted, least=least)


def _result(arrays: Mapping[str, Array], index: int, round_: int, stack: Stack) -> RoundResult:
    """Return what a round that is not published yet gave for a stack."""
    counts = np.zeros(len(stack), np.int64)
    updates, rejected = (
        _array(arrays, f"{index}.{name}.{round_}", counts, least=0) for name in ("updates", "rejected")
    )
    metrics = _with_prefix(arrays, f"{index}.metric.{round_}.")
    priorities = _with_prefix(arrays, f"{index}.surprise.{round_}.")
    wrong = [name for name, column in [*metrics.items(), *priorities.items()] if column.shape[:1] != counts.shape]
    if wrong:
        raise ValueError(f"{', '.join(wrong)} of round {round_} are not those of {len(stack)} agents")
    if priorities:
        require_like("errors", priorities["errors"], priorities["places"])
    return RoundResult(round_, updates, rejected, metrics, priorities)


def _state(arrays: Mapping[str, Array], prefix: str, stack: Stack) -> LearnerState:
    """Return a learner state of a stack from arrays with a prefix; names, types and shapes must fit."""
    tensors = {name: torch.from_numpy(arrays[f"{prefix}.{name}"].copy()) for name in stack.state.tensors}
    return stack.state.replaced(tensors).to(stack.device)
