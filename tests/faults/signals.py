"""Send Ctrl-C twice, or three times, to runs that do not want to end; each is over within seconds, with 130.

    python -m tests.faults.signals --each 50 --folder runs/signals

As in `campaign.py`, runs are forked from a process that has imported everything and computed nothing. Half of the
signals go to the command alone, as from `kill`, the other half to its whole process group, as from a terminal.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

from parallel_agents.checkpoint.store import Store
from parallel_agents.cli import main, process_watchdog
from parallel_agents.cli import train as _train  # noqa: F401 - imported before the first fork
from tests.faults import stubborn
from tests.faults.stubborn import FROM, KINDS

BACKENDS = ("inline", "thread", "process", "auto")
LIMIT = 3.0
"""Seconds after the second signal within which a run is over."""
AT_ONCE = 1.0
"""Seconds after the third."""
PATIENCE = 120.0


def begun(kind: str, backend: str, out: Path) -> int:
    """Start a run; its pid, which is also that of its process group."""
    words = ["train", stubborn.__file__, "--json", "--quiet", "--out", str(out), "--set", f"world.kind={kind}"]
    words += [] if backend == "auto" else ["--backend", backend]
    child = os.fork()
    if child:
        os.setpgid(child, child)
        return child
    os.setpgid(0, 0)
    for number, target in ((1, out.with_suffix(".json")), (2, out.with_suffix(".err"))):
        os.dup2(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    code = process_watchdog.run_in_child(lambda: main(words), as_json=True)
    sys.stdout.flush()
    os._exit(code)


def ended(pid: int, seconds: float) -> bool:
    """True once the process is over, False if it still runs after so many seconds."""
    until = time.monotonic() + seconds
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        if time.monotonic() > until:
            return False
        time.sleep(0.002)
    return True


def pending(pid: int) -> bool:
    """True while an earlier SIGINT has not reached the process: the kernel would make one of the two."""
    text = Path(f"/proc/{pid}/status").read_text()
    masks = [int(line.split()[1], 16) for line in text.splitlines() if line.startswith(("SigPnd", "ShdPnd"))]
    return any(mask >> (signal.SIGINT - 1) & 1 for mask in masks)


def send(pid: int, group: bool) -> float:
    until = time.monotonic() + PATIENCE
    while pending(pid) and time.monotonic() < until:
        time.sleep(0.001)
    (os.killpg if group else os.kill)(pid, signal.SIGINT)
    return time.monotonic()


def others(group: int) -> list[str]:
    """Processes of a group that live."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, number = path.read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if int(number) == group and state != "Z":
            found.append(f"{path.parent.name} {(path.parent / 'cmdline').read_bytes()} {state}")
    return found


def one_run(kind: str, backend: str, out: Path, draws: np.random.Generator) -> dict[str, float]:
    """Signal one run until it is over; signals sent, and seconds it took after the last of them."""
    early, pause, third = draws.random() < 0.1, 0.8 * float(draws.random()), draws.random() < 0.3
    group = bool(draws.random() < 0.5)
    pid = begun(kind, backend, out)
    try:
        until = time.monotonic() + PATIENCE
        while not Path(f"/proc/{pid}/task/{pid}/children").read_text():  # before, the interpreter's own handlers act
            assert time.monotonic() < until, f"{kind}, {backend}: the command did not start its child"
            time.sleep(0.001)
        if not early:
            while not (out / "checkpoints" / f"epoch-{FROM - 1:06d}.json").exists():
                assert time.monotonic() < until, f"{kind}, {backend}: the run did not get going"
                assert not ended(pid, 0.005), out.with_suffix(".err").read_text()[-3000:]
        ended(pid, 0.6 * float(draws.random()))
        sent, limit, at = 1, PATIENCE, send(pid, group)
        if not ended(pid, pause):
            sent, limit, at = 2, LIMIT, send(pid, group)
            if third and not ended(pid, 0.2 * pause):
                sent, limit, at = 3, AT_ONCE, send(pid, group)
        over = ended(pid, limit)
        seconds = time.monotonic() - at
        where = f"{kind}, {backend}, signal {sent} {'to all' if group else ''}"
        assert over, f"{where}: still there after {limit:g} s\n" + out.with_suffix(".err").read_text()[-3000:]
    finally:
        if not ended(pid, 0.0):
            os.killpg(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
    code, told = os.waitstatus_to_exitcode(status), out.with_suffix(".json").read_text()
    assert code == 130, f"{where}: exit code {code}\n" + out.with_suffix(".err").read_text()[-3000:]
    assert json.loads(told)["error"] == "Interrupted", told
    until = time.monotonic() + 2.0
    while others(pid):
        assert time.monotonic() < until, f"{where}: {others(pid)} were left"
    if not early:
        manifest, troubles = Store(out).newest_good()
        assert not troubles, f"{where}: {troubles}"
        assert manifest.epoch >= FROM - 1
        last = json.loads((out / "log.jsonl").read_text().splitlines()[-1])
        assert last["event"] == "run_stopped", f"{where}: {last}"
    return {"signals": sent, "seconds": seconds}


def conduct(each: int, folder: Path, backends: list[str], kinds: list[str]) -> None:
    folder.mkdir(parents=True)
    total = 0
    for number, backend in enumerate(backends):
        draws = np.random.Generator(np.random.Philox(number))
        runs = [
            one_run(kinds[(number + k) % len(kinds)], backend, folder / f"{backend}-{k}", draws) for k in range(each)
        ]
        sent = int(sum(run["signals"] for run in runs))
        total += sent
        slowest = {n: max((run["seconds"] for run in runs if run["signals"] == n), default=0.0) for n in (1, 2, 3)}
        last = {n: sum(run["signals"] == n for run in runs) for n in (1, 2, 3)}
        line = {"backend": backend, "runs": each, "signals": sent, "ended_by": last, "slowest_seconds": slowest}
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()
    sys.stdout.write(f"{total} signals to {each * len(backends)} runs; each ended in time, its checkpoints whole\n")


if __name__ == "__main__":
    words = argparse.ArgumentParser()
    words.add_argument("--each", type=int, default=50, help="runs on each backend")
    words.add_argument("--folder", type=Path, required=True)
    words.add_argument("--backends", nargs="+", default=list(BACKENDS))
    words.add_argument("--kinds", nargs="+", default=list(KINDS))
    given = words.parse_args()
    conduct(given.each, given.folder, given.backends, given.kinds)
