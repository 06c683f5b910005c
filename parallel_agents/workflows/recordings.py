"""Recorded episodes of the reference simulator, read from gzipped JSON lines and checked.

The first line is a header with the names of hosts and actions; each further line is one episode, with one
entry a turn in every list. Sizes are checked before anything is read, nothing but JSON is ever parsed, and a
line that does not fit is refused by its number.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parallel_agents.errors import ConfigError
from parallel_agents.workflows.network import tables as t
from parallel_agents.workflows.network.attack import KIND_NAMES, NO_EXPLOIT, SLEEP, SWEEP
from parallel_agents.workflows.network.red import red_id

__all__ = ["Recording", "read_recordings"]

MAX_FILE_BYTES = 256 * 2**20
MAX_LINE_BYTES = 4 * 2**20
MAX_UNPACKED_BYTES = 4 * 2**30
RED_AGENTS = {"B_lineAgent": "B_line", "RedMeanderAgent": "Meander", "SleepAgent": "Sleep"}


@dataclass(frozen=True)
class Recording:
    """One episode: what drives it (actions, red's choices), and what must come out of it."""

    seed: int
    red: int
    actions: tuple[int, ...]
    red_actions: tuple[tuple[int, int], ...]  # kind and target
    exploits: tuple[int, ...]
    detected: tuple[bool, ...]
    first_observation: str
    observations: tuple[str, ...]
    rewards: tuple[float, ...]
    blue_success: str
    red_success: str
    access: tuple[str, ...]
    ot_running: str


def read_recordings(path: str | Path) -> Iterator[Recording]:
    """The episodes of a file, one at a time."""
    lines = _lines(Path(path))
    number, header = next(lines, (1, None))
    if header is None or header.get("header") is not True:
        raise ConfigError(f"{path}, line {number}: a recording begins with a header line, and this is none")
    for key, names in (("hosts", t.HOST_NAMES), ("actions", t.ACTION_NAMES)):
        if header.get(key) != list(names):
            raise ConfigError(
                f"{path}, line 1: the header's {key} are not those of Scenario 2 in their order "
                f"({names[0]}, {names[1]}, …): record with the scenario's own {key}"
            )
    for number, line in lines:
        try:
            yield _episode(line)
        except (KeyError, TypeError, ValueError) as fault:
            what = f"has no field {fault}" if isinstance(fault, KeyError) else str(fault)
            raise ConfigError(f"{path}, line {number}: this is no recorded episode: {what}") from fault


def _lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
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
    steps = line["steps"]
    if not isinstance(steps, int) or steps < 0:
        raise ValueError(f"steps is {steps!r}, not a number of turns")
    if line["red"] not in RED_AGENTS:
        raise ValueError(f"red agent {line['red']!r} is unknown, known are {', '.join(RED_AGENTS)}")
    return Recording(
        seed=int(line["seed"]),
        red=red_id(RED_AGENTS[line["red"]]),
        actions=tuple(_action(a) for a in _column(line, "a", steps)),
        red_actions=tuple(_red_action(name) for name in _column(line, "red_action", steps)),
        exploits=tuple(_exploit(name) for name in _column(line, "exploit", steps)),
        detected=tuple(mark == "1" for mark in _marks(line, "detected", steps, "01")),
        first_observation=_bits(line["obs0"], t.OBSERVATION_SIZE, "01"),
        observations=tuple(_bits(bits, t.OBSERVATION_SIZE, "01") for bits in _column(line, "obs", steps)),
        rewards=tuple(float(r) for r in _column(line, "r", steps)),
        blue_success=_marks(line, "blue_success", steps, "FTU"),
        red_success=_marks(line, "red_success", steps, "FTU"),
        access=tuple(_bits(digits, t.N_HOSTS, "012") for digits in _column(line, "access", steps)),
        ot_running=_marks(line, "ot_running", steps, "01"),
    )


def _column(line: dict[str, Any], name: str, steps: int) -> Sequence[Any]:
    column = line[name]
    if not isinstance(column, list) or len(column) != steps:
        raise ValueError(f"{name} is not a list of {steps} entries, one a turn")
    return column


def _marks(line: dict[str, Any], name: str, steps: int, alphabet: str) -> str:
    try:
        return _bits(line[name], steps, alphabet)
    except ValueError as fault:
        raise ValueError(f"{name}: {fault}") from fault


def _bits(text: Any, length: int, alphabet: str) -> str:
    if not isinstance(text, str) or len(text) != length or not set(text) <= set(alphabet):
        raise ValueError(f"{str(text)[:60]!r} is not a text of {length} marks out of {alphabet!r}")
    return text


def _action(number: Any) -> int:
    if type(number) is not int or not 0 <= number < t.N_ACTIONS:
        raise ValueError(f"blue action {number!r} is not one of 0 to {t.N_ACTIONS - 1}")
    return number


def _red_action(name: Any) -> tuple[int, int]:
    kind_name, _, target = str(name).partition(":")
    kind = KIND_NAMES.index(kind_name) if kind_name in KIND_NAMES else None
    if kind == SLEEP:
        return SLEEP, 0
    targets = t.SUBNETS if kind == SWEEP else t.HOST_NAMES
    if kind is None or target not in targets:
        raise ValueError(f"red action {name!r} is not a known action on a known host or subnet")
    return kind, targets.index(target)


def _exploit(name: Any) -> int:
    if name is None:
        return NO_EXPLOIT
    if name not in t.EXPLOIT_NAMES:
        raise ValueError(f"exploit {name!r} is unknown, known are {', '.join(t.EXPLOIT_NAMES)}")
    return t.EXPLOIT_NAMES.index(name)
