"""What a run puts into a checkpoint, and how it goes on from one."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from parallel_agents.config import Config
from parallel_agents.errors import CheckpointError, ConfigError, CorruptCheckpoint
from parallel_agents.memory import PRIORITY
from parallel_agents.networks.numerics import fingerprint
from parallel_agents.runtime.checkpoints.memory import Segments, read_ring
from parallel_agents.runtime.checkpoints.packing import pack, unpack
from parallel_agents.runtime.checkpoints.store import Manifest, Store
from parallel_agents.tracking.files import plain
from parallel_agents.types import Array, RoundResult, State, Weights

if TYPE_CHECKING:
    from parallel_agents.runtime.run import Run

__all__ = ["arrays_of", "loop_arrays", "restore", "stack_arrays", "values_of", "why_not"]

COUNTERS = {
    "loop": ("turns", "transitions"),
    "crew": ("recomputed", "chosen"),
    "rounds": ("submitted", "published", "updates", "rejected"),
}


def why_not(run: Run) -> str | None:
    """Return why a run cannot be checkpointed; None: it can."""
    if run.config.experiment.autoreset:
        for env in run.environments:
            if not env.gives_state:
                return (
                    f"with experiment.autoreset episodes cross epochs, and {type(env).__name__} has no state() and "
                    "load_state(): write them"
                )
    return run.crew.unknown_state()


def restore(run: Run, folder: Path, *, best: bool = False) -> tuple[Manifest, list[str]]:
    """Put a fresh run where a folder's newest good checkpoint left it; what was wrong with newer ones.

    best: the agents act with the weights of their best evaluation, each replica with its own.
    """
    reason = why_not(run)
    if reason is not None:
        raise CheckpointError(f"{folder} cannot be gone on with: {reason}")
    store, troubles = Store(folder), list[str]()
    for manifest in store.good(troubles):
        try:
            _take_over(run, store, manifest, best=best)
        except CorruptCheckpoint as error:  # whatever has been put into the run so far, the one before replaces
            troubles.append(f"epoch {manifest.epoch}: {error}")
        else:
            return manifest, troubles
    raise store.none_usable(troubles)


def _take_over(run: Run, store: Store, manifest: Manifest, *, best: bool) -> None:
    """Put a run where a checkpoint left it; a `CorruptCheckpoint` where something in it is missing or of a wrong kind.

    Its bytes are those that were written, but whoever wrote them may have been somebody else.
    """
    try:
        _put_into(run, store, manifest, best=best)
    except (KeyError, ValueError, TypeError, IndexError, AttributeError, OverflowError) as error:
        raise CorruptCheckpoint(f"something is missing or of a wrong kind: {type(error).__name__}: {error}") from error


def _put_into(run: Run, store: Store, manifest: Manifest, *, best: bool) -> None:
    folder = store.root
    if best and not manifest.values["best"]["epochs"]:
        raise CheckpointError(f"{folder} knows no best weights: train with experiment.eval_every set")
    _fits(run, manifest)
    _compare_fingerprints(run, manifest)
    arrays = store.read(manifest, f"state-{manifest.epoch:06d}.safetensors")
    _finite_weights(arrays)
    values = manifest.values
    int(values["segments_written"])
    for owner, names in COUNTERS.items():
        for name in names:
            setattr(getattr(run, owner), name, int(values[owner][name]))
    run.epoch, run.seconds = manifest.epoch, float(values["seconds"])
    run.failures = int(values["failures"])
    run.recent = [[float(reward) for reward in rewards] for rewards in values["recent"]]
    for index, stack in enumerate(run.crew.stacks):
        Segments(stack.ring).resume(values["segments"][index], stack.ring)  # refused now, not when the run goes on
        names = values["segments"][index]["names"]
        read_ring(stack.ring, [store.read(manifest, name) for name in names])
        for model, settings in zip(stack.models, values["settings"][index], strict=True):
            model.load_settings(settings)
    for seat, own in zip(run.crew.seats, values["own"], strict=True):
        run.crew.load_own_state(seat, unpack(own, arrays))
    _load(run, arrays, values)
    if best:
        run.best.act()


def values_of(run: Run, arrays: dict[str, Array]) -> dict[str, Any]:
    """Return what a run is at an epoch boundary with nothing in flight, as far as it is no array.

    arrays: what agents keep by themselves is added to these.
    """
    return {
        "config": run.config.as_dict(),
        "fingerprint": fingerprint(run.plan.device),
        "shape": _shape(run),
        "seconds": run.seconds,
        "failures": run.failures + len(run.rounds.skipped),
        "recent": run.recent,
        "best": run.best.values(),
        "pending": sorted(run.rounds.waiting),
        "settings": [[model.settings() for model in stack.models] for stack in run.crew.stacks],
        "own": [pack(run.crew.own_state(seat), arrays, f"own.{number}") for number, seat in enumerate(run.crew.seats)],
        **{owner: {name: getattr(getattr(run, owner), name) for name in names} for owner, names in COUNTERS.items()},
    }


def _shape(run: Run) -> list[Any]:
    """What must be equal for a checkpoint to fit: agents and blueprints, as text."""
    return [[len(stack), repr(stack.blueprint)] for stack in run.crew.stacks]


def _fits(run: Run, manifest: Manifest) -> None:
    """Raise where a checkpoint is of another run: other values that results depend on, or other agents."""
    given = manifest.values["config"]
    if not isinstance(given, dict) or not given:
        raise TypeError(f"its configuration is {given!r}")  # a string would be taken for the name of a file
    try:
        stored = plain(Config.build(given).problem())
    except ConfigError as error:
        raise ValueError(f"its configuration cannot be read: {error}") from error
    own = {key: plain(value) for key, value in run.config.problem().items() if _is_data(value)}
    other = [key for key in own if key not in stored or stored[key] != own[key]]
    other += [key for key in stored if key not in run.config.problem()]
    if other:
        told = "; ".join(f"{key} is {own.get(key)!r}, there {stored.get(key)!r}" for key in other[:5])
        raise CheckpointError(
            f"the checkpoint is of another configuration: {told}: go on with the values that the run was started with"
        )
    if manifest.values["shape"] != _shape(run):
        raise CheckpointError(
            "the checkpoint is of another configuration: its agents or networks differ from those of this run"
        )


def _compare_fingerprints(run: Run, manifest: Manifest) -> None:
    """Warn before the first epoch if equal bytes are not promised any more."""
    before, now = manifest.values["fingerprint"], fingerprint(run.plan.device)
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
            stacklevel=5,
        )


def _is_data(value: Any) -> bool:
    """Return whether a value of a configuration can be compared with a stored one; an object can only be named."""
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True


def _finite_weights(arrays: Mapping[str, Array]) -> None:
    """Raise where weights are not numbers: no update that a run accepts makes such."""
    for name, array in arrays.items():
        learnt = name.partition(".")[2].startswith(("newest.", "acting", "best", "pending."))
        if learnt and array.dtype.kind == "f" and not np.isfinite(array).all():
            raise CorruptCheckpoint(f"NaN or infinity in {name}")


def arrays_of(run: Run) -> dict[str, Array]:
    """Return the arrays of a run at the same moment, memories apart; some are still those that the run writes into."""
    arrays = run.best.arrays()
    for index, stack in enumerate(run.crew.stacks):
        arrays |= {f"{index}.{name}": array for name, array in stack_arrays(run, index).items()}
        if PRIORITY in stack.ring.extras:
            arrays[f"{index}.{PRIORITY}"] = stack.ring.extras[PRIORITY]
        for round_, done in run.rounds.waiting.items():
            arrays |= {f"{index}.metric.{round_}.{name}": column for name, column in done[index][1].metrics.items()}
    for k in range(len(run.environments)):
        arrays |= {f"loop.{k}.{name}": array for name, array in loop_arrays(run, k).items()}
    return arrays


def stack_arrays(run: Run, index: int) -> dict[str, Array]:
    """Return what decides how the agents of a stack go on, memories apart; the first axis is the agent."""
    stack = run.crew.stacks[index]
    arrays: dict[str, Array] = {}
    _put(arrays, "newest", run.rounds.newest[index])
    arrays["acting"] = stack.acting_rows.detach().cpu().numpy()
    if run.config.experiment.autoreset:  # otherwise every episode starts afresh, from no frames and no recurrent state
        arrays["frames"], arrays["recall"] = stack.frames.window, stack.recall.after
    for round_, done in sorted(run.rounds.waiting.items()):
        state, result = done[index]
        _put(arrays, f"pending.{round_}", state)
        arrays[f"updates.{round_}"] = result.updates
        arrays[f"rejected.{round_}"] = result.rejected
        arrays |= {f"surprise.{round_}.{name}": column for name, column in result.priorities.items()}
    return arrays


def loop_arrays(run: Run, k: int) -> dict[str, Array]:
    """Return where the episodes of an environment are; with autoreset, the worlds' own state too."""
    arrays: dict[str, Array] = {"alive": run.loop.alive[k], "first": run.loop.first[k]}
    if run.config.experiment.autoreset and run.environments[k].gives_state:
        arrays |= {f"world.{name}": np.asarray(value) for name, value in run.environments[k].state().items()}
    return arrays


def _load(run: Run, arrays: Mapping[str, Array], values: Mapping[str, Any]) -> None:
    try:
        run.rounds.waiting = {int(round_): [] for round_ in values["pending"]}
        run.best.restore(values["best"], arrays)
        for index, stack in enumerate(run.crew.stacks):
            run.rounds.newest[index] = _state(arrays, f"{index}.newest", stack.state, stack.device)
            rows = torch.from_numpy(arrays[f"{index}.acting"]).to(stack.device)
            stack.inference.publish(Weights(run.rounds.published, rows))
            if PRIORITY in stack.ring.extras:
                stack.ring.extras[PRIORITY][...] = arrays[f"{index}.{PRIORITY}"]
            if run.config.experiment.autoreset:
                stack.frames.window = arrays[f"{index}.frames"].copy()
                stack.recall.after = arrays[f"{index}.recall"].copy()
            for round_, done in run.rounds.waiting.items():
                state = _state(arrays, f"{index}.pending.{round_}", stack.state, stack.device)
                metrics = _under(arrays, f"{index}.metric.{round_}.")
                priorities = _under(arrays, f"{index}.surprise.{round_}.")
                updates, rejected = arrays[f"{index}.updates.{round_}"], arrays[f"{index}.rejected.{round_}"]
                done.append((state, RoundResult(round_, updates, rejected, metrics, priorities)))
            stack.settle(run.rounds.newest[index])
        for k, env in enumerate(run.environments):
            run.loop.restore(k, arrays[f"loop.{k}.alive"], arrays[f"loop.{k}.first"])
            if run.config.experiment.autoreset:
                env.load_state(_under(arrays, f"loop.{k}.world."))
    except (KeyError, ValueError, TypeError) as error:
        raise CorruptCheckpoint(
            f"the checkpoint of epoch {run.epoch} lacks something or does not fit: {error}"
        ) from error


def _under(arrays: Mapping[str, Array], head: str) -> dict[str, Array]:
    """What stands under names that begin with `head`, without it."""
    return {name[len(head) :]: column for name, column in arrays.items() if name.startswith(head)}


def _put(arrays: dict[str, Array], head: str, state: State) -> None:
    arrays |= {f"{head}.{name}": tensor.detach().cpu().numpy() for name, tensor in state.tensors.items()}


def _state(arrays: Mapping[str, Array], head: str, like: State, device: str) -> State:
    """A state with the names, types and shapes of another, from a checkpoint's arrays."""
    found = {name: torch.from_numpy(arrays[f"{head}.{name}"].copy()) for name in like.tensors}
    return like.replaced(found).to(device)
