"""`parallel-agents watch`, `report` and `trace`: show runs in a browser, in one file, and where their time went."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from parallel_agents.cli.output import print_result
from parallel_agents.core.errors import ConfigError
from parallel_agents.tracking.live_page import LivePage
from parallel_agents.tracking.report import write_report
from parallel_agents.tracking.run_folder import RunFolder
from parallel_agents.tracking.run_view import open_views
from parallel_agents.tracking.timeline import read_trace


def watch(run_dirs: Sequence[Path], host: str, port: int | None) -> None:
    """Serve a page of runs until this process is interrupted."""
    os.nice(10)  # runs come first
    with LivePage(open_views(run_dirs), host=host, port=port) as page:
        sys.stderr.write(f"{page.address}  (Ctrl-C ends it)\n")
        sys.stderr.flush()
        threading.Event().wait()


@contextmanager
def watched(run_dir: Path) -> Iterator[None]:
    """Serve a page of a run during the block, from a process of its own, so that the run pays nothing for it."""
    command = [sys.executable, "-m", "parallel_agents.tracking.live_page", str(run_dir)]
    server = subprocess.Popen(  # in a session of its own: Ctrl-C is for the run
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert server.stdin is not None
    assert server.stdout is not None
    try:
        address = server.stdout.readline().strip()
        sys.stderr.write(f"{address or 'the live page could not be served'}\n")
        sys.stderr.flush()
        yield
    finally:
        server.stdin.close()  # which ends it; a killed run ends it too
        server.stdout.close()
        try:
            server.wait(timeout=2.0)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def report(run_dirs: Sequence[Path], out: Path, plots: Path | None, *, as_json: bool) -> None:
    """Write a report of runs."""
    result = write_report(run_dirs, out, plots=plots)
    text = f"report {out} ({result['bytes']:,} bytes)\n" + (
        f"{len(result['plots'])} plots in {plots}\n" if plots else ""
    )
    print_result(result, text, as_json=as_json)


def print_trace(run_dir: Path, *, as_json: bool) -> None:
    """Print what the timeline of a run says."""
    path = RunFolder.open(run_dir).trace
    try:
        trace = read_trace(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error
    print_result(trace.as_dict(), trace.text(), as_json=as_json)
