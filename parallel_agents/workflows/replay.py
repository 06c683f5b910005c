"""Recorded episodes of the reference simulator, replayed turn by turn through our engine.

A recording tells blue's action, red's action, the exploit and whether it was noticed; all else (observation,
reward, both successes, red's access, the service) the engine must reproduce exactly, and its red agent must
admit each action that the recorded one took.

    replay("episodes.jsonl.gz", version="head")
    {"episodes": 124, "steps": 10520, "mismatches": 0, "first_mismatch": None}
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parallel_agents.workflows.network import tables as t
from parallel_agents.workflows.network.engine import ADMITTED, TARGET_REFUSED, drive, show
from parallel_agents.workflows.network.quirks import Quirks, compile_rules, quirks_of
from parallel_agents.workflows.network.state import fill_access, fresh
from parallel_agents.workflows.recordings import Recording, read_recordings

__all__ = ["replay", "replay_episode"]

_SUCCESS = "FTU"  # by FAILED, WORKED, UNTOLD


def replay(path: str | Path, version: str = "head", quirks: Quirks | None = None) -> dict[str, Any]:
    """Replay a whole file. `mismatches` counts the turns that differ; the first of them is told in full."""
    preset = quirks_of(version)
    chosen = preset if quirks is None else quirks
    episodes = steps = mismatches = 0
    first: dict[str, Any] | None = None
    for recording in read_recordings(path):
        differing = list(replay_episode(recording, chosen))
        if differing and first is None:
            first = {"episode": episodes, "seed": recording.seed} | differing[0]
        episodes, steps = episodes + 1, steps + len(recording.actions)
        mismatches += len(differing)
    return {"episodes": episodes, "steps": steps, "mismatches": mismatches, "first_mismatch": first}


def replay_episode(recording: Recording, quirks: Quirks) -> Iterator[dict[str, Any]]:
    """Every turn that differs (0 is the reset), with what was recorded and what came out instead."""
    rules, state = compile_rules(quirks), fresh()
    observation = np.zeros((1, t.OBSERVATION_SIZE), np.uint8)
    show(state, observation)
    if _digits(observation) != recording.first_observation:
        yield {"step": 0, "differs": _pair("observation", recording.first_observation, _digits(observation))}
    for step, action in enumerate(recording.actions):
        kind, target = recording.red_actions[step]
        verdict, cost = drive(
            state, rules, recording.red, action, kind, target, recording.exploits[step],
            recording.detected[step], observation[0],
        )  # fmt: skip
        differs = _compare(recording, step, state, observation, -cost / 10)
        if verdict != ADMITTED:
            what = "target" if verdict == TARGET_REFUSED else "exploit"
            differs |= _pair("red_policy", "taken", f"{what} not admitted")
        if differs:
            yield {"step": step + 1, "action": t.ACTION_NAMES[action], "differs": differs}


def _compare(
    recording: Recording, step: int, state: NDArray[np.void], observation: NDArray[np.uint8], reward: float
) -> dict[str, Any]:
    """The quantities of one turn that are not as recorded."""
    access = np.empty((1, t.N_HOSTS), np.uint8)
    fill_access(state, access)
    s = state[0]
    quantities = (
        ("observation", recording.observations[step], _digits(observation)),
        ("reward", recording.rewards[step], reward),
        ("blue_success", recording.blue_success[step], _SUCCESS[s["blue_success"]]),
        ("red_success", recording.red_success[step], _SUCCESS[s["red_success"]]),
        ("access", recording.access[step], _digits(access)),
        ("ot_running", recording.ot_running[step], str(s["ot_running"])),
    )
    differs: dict[str, Any] = {}
    for name, recorded, replayed in quantities:
        if recorded != replayed:
            differs |= _pair(name, recorded, replayed)
    return differs


def _pair(name: str, recorded: Any, replayed: Any) -> dict[str, Any]:
    return {name: {"recorded": recorded, "replayed": replayed}}


def _digits(row: NDArray[np.uint8]) -> str:
    return (row + ord("0")).tobytes().decode("ascii")
