"""`parallel-agents watch`, `report` and `trace`: show runs in a browser, in one file, and where their time went."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from parallel_agents.cli.commands import Report, Trace, Watch
from parallel_agents.cli.output import print_result
from parallel_agents.core.errors import ConfigError
from parallel_agents.tracking.live_page import LivePage
from parallel_agents.tracking.report import write_report
from parallel_agents.tracking.run_folder import RunFolder
from parallel_agents.tracking.run_view import open_views
from parallel_agents.tracking.timeline import read_trace


def watch(options: Watch) -> None:
    """Serve a page of runs until this process is interrupted."""
    views = open_views(options.run_dirs)
    os.nice(10)  # runs come first
    with LivePage(views, host=options.host, port=options.port) as page:
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


def report(options: Report) -> None:
    """Write a report of runs."""
    result = write_report(options.run_dirs, options.out, plots=options.plots)
    plots = f"{len(result['plots'])} plots in {options.plots}\n" if options.plots else ""
    print_result(result, f"report {options.out} ({result['bytes']:,} bytes)\n{plots}", as_json=options.json)


def trace(options: Trace) -> None:
    """Print what the timeline of a run says."""
    path = RunFolder.open(options.run_dir).trace
    try:
        found = read_trace(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error
    print_result(found.as_dict(), found.text(), as_json=options.json)
