"""Look every installed package up in the advisory database; fail on findings, and where nothing was looked up.

python -m tools.audit

Only one thing lets an audit that looked nothing up end with 0: the database cannot be reached from here. The output
then says NOT AUDITED. Whether it can be reached is found out by asking it for a package that it certainly knows.
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

PATIENCE = 180.0
KNOWN = "pip==24.0"
"""A package of which the database has something to say."""
_UNREACHABLE = re.compile(r"requests\.exceptions|ConnectionError|ConnectTimeout|ReadTimeout|Could not connect")
"""What pip-audit's last words hold where the network is at fault, and not pip-audit."""

Report = dict[str, Any]


class Unreachable(Exception):
    """The advisory database gave no answer."""


class Broken(Exception):
    """pip-audit itself did not do its work."""


def audit(command: Sequence[str]) -> tuple[int, str]:
    """Exit code and words for the packages of the environment that pip-audit is installed in."""
    try:
        packages = look_up(command)
        if not any("vulns" in package for package in packages) and not reachable(command):
            raise Unreachable(f"what answers in its place does not even know {KNOWN}")
    except Unreachable as reason:
        return 0, f"NOT AUDITED: the advisory database cannot be reached from here; nothing was looked up ({reason})"
    except Broken as reason:
        return 1, f"NOT AUDITED: {reason}"
    return verdict(packages)


def verdict(packages: Sequence[Report]) -> tuple[int, str]:
    """Exit code and words for what a database that can be reached said."""
    audited = [package for package in packages if "vulns" in package]
    bad = [package for package in audited if package["vulns"]]
    if bad:
        lines = [f"{own['name']} {own['version']}: {', '.join(v['id'] for v in own['vulns'])}" for own in bad]
        return 1, "known vulnerabilities:\n" + "\n".join(lines)
    if not audited:
        return 1, f"NOTHING AUDITED: the advisory database answered, but knew none of {len(packages)} packages"
    left_out = f", {len(packages) - len(audited)} unknown to the database" if len(packages) > len(audited) else ""
    return 0, f"{len(audited)} packages audited{left_out}: no known vulnerability"


def reachable(command: Sequence[str]) -> bool:
    """Whether the database knows the package that it certainly knows."""
    with tempfile.TemporaryDirectory() as folder:
        wanted = Path(folder) / "requirements.txt"
        wanted.write_text(KNOWN + "\n")
        return any("vulns" in own for own in look_up([*command, "-r", str(wanted), "--no-deps", "--disable-pip"]))


def look_up(command: Sequence[str]) -> list[Report]:
    """What pip-audit writes about each package: with `vulns` where it was looked up."""
    arguments = ["--format", "json", "--progress-spinner", "off", "--timeout", "10"]
    try:
        ended = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=PATIENCE, check=False)
    except subprocess.TimeoutExpired as error:
        raise Unreachable(f"no answer within {PATIENCE:g} s") from error
    except OSError as error:
        raise Broken(f"pip-audit cannot be started ({error}): install the extra 'dev'") from error
    try:
        return list(json.loads(ended.stdout)["dependencies"])
    except (ValueError, KeyError, TypeError) as error:
        words = (ended.stderr.strip().splitlines() or ["no message"])[-1]
        if _UNREACHABLE.search(ended.stderr):
            raise Unreachable(words) from error
        raise Broken(f"pip-audit ended with {ended.returncode} and wrote no report: {words}") from error


if __name__ == "__main__":
    code, words = audit([str(Path(sys.executable).with_name("pip-audit"))])
    sys.stdout.write(words + "\n")
    sys.exit(code)
