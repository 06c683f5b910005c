"""Look every installed package up in the advisory database; fail on findings, and say so where it cannot be reached.

python -m tools.audit
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

PATIENCE = 180.0


def verdict(report: dict[str, Any] | None) -> tuple[int, str]:
    """Exit code and words for what the audit wrote; None where it wrote nothing that can be read."""
    packages = [] if report is None else report.get("dependencies", [])
    audited = [package for package in packages if "vulns" in package]
    bad = [package for package in audited if package["vulns"]]
    if bad:
        lines = [f"{own['name']} {own['version']}: {', '.join(v['id'] for v in own['vulns'])}" for own in bad]
        return 1, "known vulnerabilities:\n" + "\n".join(lines)
    if not audited:
        return 0, "NOT AUDITED: the advisory database could not be reached from here; nothing was looked up"
    left_out = f", {len(packages) - len(audited)} unknown to the database" if len(packages) > len(audited) else ""
    return 0, f"{len(audited)} packages audited{left_out}: no known vulnerability"


def audit() -> dict[str, Any] | None:
    """What pip-audit finds in the environment it is installed in."""
    command = [str(Path(sys.executable).with_name("pip-audit")), "--format", "json", "--progress-spinner", "off"]
    try:
        ended = subprocess.run(
            [*command, "--timeout", "10"], capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        found = json.loads(ended.stdout)
    except (OSError, subprocess.TimeoutExpired, ValueError):
        return None
    return found if isinstance(found, dict) else None


if __name__ == "__main__":
    code, words = verdict(audit())
    sys.stdout.write(words + "\n")
    sys.exit(code)
