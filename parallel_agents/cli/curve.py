"""`parallel-agents curve`: learning curves of runs, with intervals over their seeds."""

from __future__ import annotations

import json

from parallel_agents.cli.answers import answer
from parallel_agents.cli.commands import Curve
from parallel_agents.errors import ConfigError
from parallel_agents.tracking.metrics import read_metrics
from parallel_agents.tracking.plots import learning_curve
from parallel_agents.tracking.runfolder import RunFolder

__all__ = ["draw_curve"]


def draw_curve(options: Curve) -> None:
    """Run the command and say where the picture is."""
    if not options.run_dirs:
        raise ConfigError("no run to draw: give at least one run folder, as `train` printed it")
    curves = {}
    over = set()
    for path in options.run_dirs:
        metrics = read_metrics(RunFolder.open(path).path)
        if not metrics.epochs:
            raise ConfigError(f"{path} has no finished epoch yet: wait for the first one")
        several = metrics.start.get("replicas", 1) > 1
        over.add("seeds" if several else "agents")
        curves[path.name] = metrics.seeds() if several else metrics.rewards()
    try:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        learning_curve(curves, options.out, over=" or ".join(sorted(over)))
    except OSError as error:
        raise ConfigError(f"cannot write {options.out}: {error.strerror}; give another --out") from error
    told = {"file": str(options.out), "runs": list(curves), "interval_over": sorted(over)}
    answer(json.dumps(told) + "\n" if options.json else f"learning curve {options.out}\n")
