"""`parallel-agents check`: the conformance suite on somebody's environment."""

from __future__ import annotations

import json
from dataclasses import asdict

from parallel_agents.cli.answers import answer
from parallel_agents.cli.commands import Check
from parallel_agents.cli.target import load_target
from parallel_agents.config import Config, merge, parse_setting
from parallel_agents.testing import check_environment

__all__ = ["check"]


def check(options: Check) -> int:
    """Run every check and print what was found; the exit code, 1 if one of them failed or could not be made."""
    config = merge(Config.read(options.config), *(parse_setting(text) for text in options.set))
    backends = ("inline", "thread", "process") if options.processes else ("inline", "thread")
    findings = check_environment(load_target(options.target), config, epochs=options.epochs, backends=backends)
    passed = sum(finding.passed is True for finding in findings)
    if options.json:
        whole = passed == len(findings)
        found = {"target": options.target, "passed": whole, "findings": [asdict(own) for own in findings]}
        answer(json.dumps(found) + "\n")
    else:
        answer("".join(f"{finding}\n" for finding in findings))
        unmade = sum(finding.passed is None for finding in findings)
        rest = f", {unmade} could not be made" if unmade else ""
        answer(f"{passed} of {len(findings)} checks passed{rest}\n")
    return 0 if passed == len(findings) else 1
