"""Look up every installed package in the advisory database: `python -m tools.audit [--offline-passes]`.

The audit fails on findings, and if nothing was looked up. With `--offline-passes`, a database that cannot be reached is
no failure: the output says NOT AUDITED and the exit code is 0. To tell an unreachable database from one that knows
nothing, the audit asks for a package that it certainly knows.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

TIMEOUT = 180.0
KNOWN = "pip==24.0"
"""A package with known vulnerabilities."""
_UNREACHABLE = re.compile(r"requests\.exceptions|ConnectionError|ConnectTimeout|ReadTimeout|Could not connect")
"""Matches the output of pip-audit if the network failed, and not pip-audit itself."""

Report = dict[str, Any]


class Unreachable(Exception):
    """The advisory database did not answer."""


class Broken(Exception):
    """pip-audit itself failed."""


def audit(command: Sequence[str], *, offline_passes: bool = False) -> tuple[int, str]:
    """Audit the environment in which pip-audit is installed; return the exit code and a message."""
    try:
        packages = look_up(command)
        if not any("vulns" in package for package in packages) and not reachable(command):
            raise Unreachable(f"what answers in its place does not even know {KNOWN}")
    except Unreachable as reason:
        message = f"NOT AUDITED: the advisory database cannot be reached from here; nothing was looked up ({reason})"
        return 0 if offline_passes else 1, message
    except Broken as reason:
        return 1, f"NOT AUDITED: {reason}"
    return verdict(packages)


def verdict(packages: Sequence[Report]) -> tuple[int, str]:
    """Return the exit code and a message for the reports of a database that answered."""
    audited = [package for package in packages if "vulns" in package]
    vulnerable = [package for package in audited if package["vulns"]]
    if vulnerable:
        lines = [f"{p['name']} {p['version']}: {', '.join(v['id'] for v in p['vulns'])}" for p in vulnerable]
        return 1, "known vulnerabilities:\n" + "\n".join(lines)
    if not audited:
        return 1, f"NOTHING AUDITED: the advisory database answered, but knew none of {len(packages)} packages"
    unknown = f", {len(packages) - len(audited)} unknown to the database" if len(packages) > len(audited) else ""
    return 0, f"{len(audited)} packages audited{unknown}: no known vulnerability"


def reachable(command: Sequence[str]) -> bool:
    """Return whether the database knows the package that it must know."""
    with tempfile.TemporaryDirectory() as folder:
        requirements = Path(folder) / "requirements.txt"
        requirements.write_text(KNOWN + "\n")
        reports = look_up([*command, "-r", str(requirements), "--no-deps", "--disable-pip"])
        return any("vulns" in report for report in reports)


def look_up(command: Sequence[str]) -> list[Report]:
    """Run pip-audit and return its report of each package; reports of packages it looked up have `vulns`."""
    arguments = ["--format", "json", "--progress-spinner", "off", "--timeout", "10"]
    try:
        ended = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=TIMEOUT, check=False)
    except subprocess.TimeoutExpired as error:
        raise Unreachable(f"no answer within {TIMEOUT:g} s") from error
    except OSError as error:
        raise Broken(f"pip-audit cannot be started ({error}): install the extra 'dev'") from error
    try:
        return list(json.loads(ended.stdout)["dependencies"])
    except (ValueError, KeyError, TypeError) as error:
        message = (ended.stderr.strip().splitlines() or ["no message"])[-1]
        if _UNREACHABLE.search(ended.stderr):
            raise Unreachable(message) from error
        raise Broken(f"pip-audit ended with {ended.returncode} and wrote no report: {message}") from error


if __name__ == "__main__":
    program = str(Path(sys.executable).with_name("pip-audit"))
    code, message = audit([program], offline_passes="--offline-passes" in sys.argv[1:])
    sys.stdout.write(message + "\n")
    sys.exit(code)
