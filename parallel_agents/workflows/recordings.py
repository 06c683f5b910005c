"""Recorded episodes of the reference simulator: read from gzipped JSON lines, and replayed turn by turn.

The first line of a file is a header with the names of hosts and actions; each further line is one episode, with one
entry per turn in every list. Sizes are checked before anything is read, and only JSON is parsed.

A recording gives blue's action, red's action, the exploit and whether it was detected, and green's port scans if it has
a column `green`. Everything else (observation, reward, both successes, red's access, the service) our simulation must
reproduce exactly, and its red agent must allow every recorded action.

    replay("episodes.jsonl.gz", version="head")
    {"episodes": 124, "steps": 10520, "mismatches": 0, "first_mismatch": None}
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parallel_agents.core.errors import ActionError, ConfigError
from parallel_agents.workflows.network import scenario as sc
from parallel_agents.workflows.network.red import RedMove, parse_red_action, red_id
from parallel_agents.workflows.network.scenario import Quirks, compile_rules, version_quirks
from parallel_agents.workflows.network.state import NO_EXPLOIT, NO_HOST, initial_state, write_access
from parallel_agents.workflows.network.step_kernels import replay_step, write_observations

MAX_FILE_BYTES = 256 * 2**20
MAX_LINE_BYTES = 4 * 2**20
MAX_UNPACKED_BYTES = 4 * 2**30
RED_AGENTS = {"B_lineAgent": "B_line", "RedMeanderAgent": "Meander", "SleepAgent": "Sleep"}
_SUCCESS = "FTU"  # by FAILED, SUCCEEDED, UNKNOWN
_VERDICTS = ("taken", "target not allowed", "exploit not allowed")  # of `replay_step`


@dataclass(frozen=True)
class Recording:
    """One episode: both sides' actions, and the results that a replay must reproduce."""

    seed: int
    red: int
    actions: tuple[int, ...]
    red_moves: tuple[RedMove, ...]
    green: tuple[int, ...]
    """The host that green scanned in each turn, or NO_HOST."""
    first_observation: str
    results: dict[str, Sequence[Any]]
    """What a replay must reproduce, by name, with one entry per turn."""


def read_recordings(path: str | Path) -> Iterator[Recording]:
    """Yield the episodes of a file, one at a time."""
    lines = _lines(Path(path))
    number, header = next(lines, (1, None))
    if header is None or header.get("header") is not True:
        raise ConfigError(f"{path}, line {number}: a recording begins with a header line, and this is none")
    for key, names in (("hosts", sc.HOST_NAMES), ("actions", sc.ACTION_NAMES)):
        if header.get(key) != list(names):
            raise ConfigError(
                f"{path}, line 1: the header's {key} are not those of Scenario 2 in their order "
                f"({names[0]}, {names[1]}, …): record with the scenario's own {key}"
            )
    for number, line in lines:
        try:
            yield _episode(line)
        except (ActionError, KeyError, TypeError, ValueError) as fault:
            what = f"has no field {fault}" if isinstance(fault, KeyError) else str(fault)
            raise ConfigError(f"{path}, line {number}: this is no recorded episode: {what}") from fault


def _lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the number and the JSON object of every line; raise ConfigError if the file is too large or not JSON."""
    if not path.is_file():
        raise ConfigError(f"{path}: there is no such file: give a recording, a .jsonl.gz file")
    if path.stat().st_size > MAX_FILE_BYTES:
        raise ConfigError(f"{path} has {path.stat().st_size} bytes, more than {MAX_FILE_BYTES}: split it")
    number = total = 0
    try:
        with gzip.open(path, "rb") as stream:
            while text := stream.readline(MAX_LINE_BYTES + 1):
                number, total = number + 1, total + len(text)
                if len(text) > MAX_LINE_BYTES or total > MAX_UNPACKED_BYTES:
                    raise ConfigError(
                        f"{path}, line {number}: a line may have {MAX_LINE_BYTES} bytes and a file "
                        f"{MAX_UNPACKED_BYTES} unpacked: split it"
                    )
                line = json.loads(text)
                if not isinstance(line, dict):
                    raise ConfigError(f"{path}, line {number}: found {type(line).__name__}, not a JSON object")
                yield number, line
    except (OSError, EOFError, zlib.error) as fault:
        raise ConfigError(f"{path}: this is not a whole gzip file ({fault}): record or copy it again") from fault
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as fault:
        raise ConfigError(f"{path}, line {number}: this is not JSON ({fault}): record it again") from fault


def _episode(line: dict[str, Any]) -> Recording:
    """Return the episode of a line, or raise ActionError, KeyError, TypeError or ValueError if it is not one."""
    steps = line["steps"]
    if not isinstance(steps, int) or steps < 0:
        raise ValueError(f"steps is {steps!r}, not a number of turns")
    if line["red"] not in RED_AGENTS:
        raise ValueError(f"red agent {line['red']!r} is unknown, known are {', '.join(RED_AGENTS)}")
    actions = tuple(_action(number) for number in _column(line, "a", steps))
    moves = zip(
        _column(line, "red_action", steps), _column(line, "exploit", steps), _marks(line, "detected", steps, "01"),
        strict=True,
    )  # fmt: skip
    return Recording(
        seed=int(line["seed"]),
        red=red_id(RED_AGENTS[line["red"]]),
        actions=actions,
        red_moves=tuple(
            RedMove(*parse_red_action(name), _exploit(exploit), mark == "1") for name, exploit, mark in moves
        ),
        green=tuple(_green(name) for name in _column(line, "green", steps)) if "green" in line else (NO_HOST,) * steps,
        first_observation=_text(line["obs0"], sc.OBSERVATION_SIZE, "01"),
        results={
            "observation": [_text(bits, sc.OBSERVATION_SIZE, "01") for bits in _column(line, "obs", steps)],
            "reward": [float(reward) for reward in _column(line, "r", steps)],
            "blue_success": _marks(line, "blue_success", steps, _SUCCESS),
            "red_success": _marks(line, "red_success", steps, _SUCCESS),
            "access": [_text(digits, sc.N_HOSTS, "012") for digits in _column(line, "access", steps)],
            "ot_running": _marks(line, "ot_running", steps, "01"),
        },
    )


def _column(line: dict[str, Any], name: str, steps: int) -> Sequence[Any]:
    """Return a field that is a list with one entry per turn."""
    column = line[name]
    if not isinstance(column, list) or len(column) != steps:
        raise ValueError(f"{name} is not a list of {steps} entries, one per turn")
    return column


def _marks(line: dict[str, Any], name: str, steps: int, alphabet: str) -> str:
    """Return a field that is a text with one character per turn."""
    try:
        return _text(line[name], steps, alphabet)
    except ValueError as fault:
        raise ValueError(f"{name}: {fault}") from fault


def _text(value: Any, length: int, alphabet: str) -> str:
    """Return the value if it is a text of this length, of these characters only."""
    if not isinstance(value, str) or len(value) != length or not set(value) <= set(alphabet):
        raise ValueError(f"{str(value)[:60]!r} is not a text of {length} characters out of {alphabet!r}")
    return value


def _action(number: Any) -> int:
    """Return the value if it is the number of a blue action."""
    if type(number) is not int or not 0 <= number < sc.N_ACTIONS:
        raise ValueError(f"blue action {number!r} is not one of 0 to {sc.N_ACTIONS - 1}")
    return number


def _green(name: Any) -> int:
    """Return the host that green scans, or NO_HOST if it sleeps."""
    kind, _, host = str(name).partition(":")
    if kind == "Sleep":
        return NO_HOST
    if kind != "GreenPortScan" or host not in sc.HOST_NAMES:
        raise ValueError(f"green action {name!r} is neither Sleep nor GreenPortScan of a known host")
    return sc.HOST_NAMES.index(host)


def _exploit(name: Any) -> int:
    """Return the number of an exploit, or NO_EXPLOIT for None."""
    if name is None:
        return NO_EXPLOIT
    if name not in sc.EXPLOIT_NAMES:
        raise ValueError(f"exploit {name!r} is unknown, known are {', '.join(sc.EXPLOIT_NAMES)}")
    return sc.EXPLOIT_NAMES.index(name)


def replay(path: str | Path, version: str = "head", quirks: Quirks | None = None) -> dict[str, Any]:
    """Replay all episodes of a file; count the turns that differ and describe the first of them in full.

    version: which revision of the simulator to follow; `quirks` overrides it.
    """
    preset = version_quirks(version)
    rules = preset if quirks is None else quirks
    episodes = steps = mismatches = 0
    first: dict[str, Any] | None = None
    for recording in read_recordings(path):
        differing = list(replay_episode(recording, rules))
        if differing and first is None:
            first = {"episode": episodes, "seed": recording.seed} | differing[0]
        episodes, steps = episodes + 1, steps + len(recording.actions)
        mismatches += len(differing)
    return {"episodes": episodes, "steps": steps, "mismatches": mismatches, "first_mismatch": first}


def replay_episode(recording: Recording, quirks: Quirks) -> Iterator[dict[str, Any]]:
    """Yield every turn that differs (step 0 is the reset), with the recorded and the replayed values."""
    rules, state = compile_rules(quirks), initial_state(np.array([recording.red], np.int8))
    observation, access = np.zeros((1, sc.OBSERVATION_SIZE), np.uint8), np.empty((1, sc.N_HOSTS), np.uint8)
    write_observations(state, observation)
    if differs := _differences({"observation": recording.first_observation}, {"observation": _digits(observation)}):
        yield {"step": 0, "differs": differs}
    for step, (action, move) in enumerate(zip(recording.actions, recording.red_moves, strict=True)):
        verdict, cost = replay_step(state, rules, action, move, recording.green[step], observation[0])
        write_access(state, access)
        s = state[0]
        replayed = {
            "observation": _digits(observation), "reward": -cost / 10, "blue_success": _SUCCESS[s["blue_success"]],
            "red_success": _SUCCESS[s["red_success"]], "access": _digits(access), "ot_running": str(s["ot_running"]),
            "red_policy": _VERDICTS[verdict],
        }  # fmt: skip
        recorded = {name: column[step] for name, column in recording.results.items()} | {"red_policy": "taken"}
        if differs := _differences(recorded, replayed):
            yield {"step": step + 1, "action": sc.ACTION_NAMES[action], "differs": differs}


def _differences(recorded: Mapping[str, Any], replayed: Mapping[str, Any]) -> dict[str, Any]:
    """Return the quantities that differ, with both values."""
    pairs = {name: {"recorded": value, "replayed": replayed[name]} for name, value in recorded.items()}
    return {name: pair for name, pair in pairs.items() if pair["recorded"] != pair["replayed"]}


def _digits(row: NDArray[np.uint8]) -> str:
    """Return small numbers as one text of digits."""
    return (row + ord("0")).tobytes().decode("ascii")
