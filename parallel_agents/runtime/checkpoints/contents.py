"""What a run puts into a checkpoint, and how it goes on from one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from parallel_agents.errors import CheckpointError, CorruptCheckpoint
from parallel_agents.memory import PRIORITY
from parallel_agents.runtime.checkpoints.memory import read_ring
from parallel_agents.runtime.checkpoints.store import Manifest, Store
from parallel_agents.types import Array, RoundResult, State, Weights

if TYPE_CHECKING:
    from parallel_agents.runtime.run import Run

__all__ = ["arrays_of", "can_checkpoint", "restore", "values_of"]

COUNTERS = {
    "loop": ("turns", "transitions"),
    "crew": ("recomputed", "chosen"),
    "rounds": ("submitted", "published", "updates", "rejected"),
}


def can_checkpoint(run: Run) -> bool:
    """False where episodes cross epochs and the worlds cannot give their state."""
    return not run.config.experiment.autoreset or all(env.gives_state for env in run.environments)


def restore(run: Run, folder: Path, *, best: bool = False) -> tuple[Manifest, list[str]]:
    """Put a fresh run where a folder's newest good checkpoint left it; what was wrong with newer ones.

    best: the agents act with the weights of their best evaluation, each replica with its own.
    """
    store = Store(folder)
    manifest, troubles = store.newest_good()
    if best and not manifest.values["best"]["epochs"]:
        raise CheckpointError(f"{folder} knows no best weights: train with experiment.eval_every set")
    _fits(run, manifest)
    arrays = store.read(manifest, f"state-{manifest.epoch:06d}.safetensors")
    values = manifest.values
    for owner, names in COUNTERS.items():
        for name in names:
            setattr(getattr(run, owner), name, int(values[owner][name]))
    run.epoch, run.seconds = manifest.epoch, float(values["seconds"])
    run.failures = int(values["failures"])
    run.recent = [[float(reward) for reward in rewards] for rewards in values["recent"]]
    for index, stack in enumerate(run.crew.stacks):
        names = values["segments"][index]["names"]
        read_ring(stack.ring, [store.read(manifest, name) for name in names])
        for model, exploration in zip(stack.models, values["exploration"][index], strict=True):
            model.restore_exploration(exploration)
    _load(run, arrays, values)
    if best:
        run.best.act()
    return manifest, troubles


def values_of(run: Run) -> dict[str, Any]:
    """What a run is at an epoch boundary with nothing in flight, as far as it is no array."""
    return {
        "config": run.config.as_dict(),
        "shape": _shape(run),
        "seconds": run.seconds,
        "failures": run.failures + len(run.rounds.skipped),
        "recent": run.recent,
        "best": run.best.values(),
        "pending": sorted(run.rounds.waiting),
        "exploration": [[model.fixed_exploration for model in stack.models] for stack in run.crew.stacks],
        **{owner: {name: getattr(getattr(run, owner), name) for name in names} for owner, names in COUNTERS.items()},
    }


def _shape(run: Run) -> list[Any]:
    """What must be equal for a checkpoint to fit: agents and blueprints, as text."""
    return [[len(stack), repr(stack.blueprint)] for stack in run.crew.stacks]


def _fits(run: Run, manifest: Manifest) -> None:
    if manifest.values["shape"] != _shape(run):
        raise CheckpointError(
            "the checkpoint is of another configuration: its agents or networks differ from those of this run"
        )


def arrays_of(run: Run) -> dict[str, Array]:
    """The arrays of a run at the same moment, memories apart; some are still those that the run writes into."""
    arrays = run.best.arrays()
    for index, stack in enumerate(run.crew.stacks):
        _put(arrays, f"{index}.newest", run.rounds.newest[index])
        arrays[f"{index}.acting"] = stack.acting_rows.detach().cpu().numpy()
        arrays[f"{index}.frames"] = stack.frames.window
        if PRIORITY in stack.ring.extras:
            arrays[f"{index}.{PRIORITY}"] = stack.ring.extras[PRIORITY]
        if stack.recall.size:
            arrays[f"{index}.recall"] = stack.recall.after
        for round_, done in run.rounds.waiting.items():
            state, result = done[index]
            _put(arrays, f"{index}.pending.{round_}", state)
            arrays[f"{index}.updates.{round_}"] = result.updates
            arrays[f"{index}.rejected.{round_}"] = result.rejected
            arrays |= {f"{index}.metric.{round_}.{name}": column for name, column in result.metrics.items()}
            arrays |= {f"{index}.surprise.{round_}.{name}": column for name, column in result.priorities.items()}
    for k, env in enumerate(run.environments):
        arrays[f"loop.{k}.alive"], arrays[f"loop.{k}.first"] = run.loop.alive[k], run.loop.first[k]
        if run.config.experiment.autoreset:
            arrays |= {f"world.{k}.{name}": np.asarray(value) for name, value in env.state().items()}
    return arrays


def _load(run: Run, arrays: Mapping[str, Array], values: Mapping[str, Any]) -> None:
    try:
        run.rounds.waiting = {int(round_): [] for round_ in values["pending"]}
        run.best.restore(values["best"], arrays)
        for index, stack in enumerate(run.crew.stacks):
            run.rounds.newest[index] = _state(arrays, f"{index}.newest", stack.state, stack.device)
            rows = torch.from_numpy(arrays[f"{index}.acting"]).to(stack.device)
            stack.inference.publish(Weights(run.rounds.published, rows))
            stack.frames.window = arrays[f"{index}.frames"].copy()
            if PRIORITY in stack.ring.extras:
                stack.ring.extras[PRIORITY][...] = arrays[f"{index}.{PRIORITY}"]
            if stack.recall.size:
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
                env.load_state(_under(arrays, f"world.{k}."))
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
    tensors = {}
    for name, tensor in like.tensors.items():
        found = torch.from_numpy(arrays[f"{head}.{name}"].copy())
        if found.shape != tensor.shape or found.dtype != tensor.dtype:
            raise ValueError(
                f"{name} is {found.dtype} {tuple(found.shape)}, wanted {tensor.dtype} {tuple(tensor.shape)}"
            )
        tensors[name] = found.to(device)
    return State(tensors)
