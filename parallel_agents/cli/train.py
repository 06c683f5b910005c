"""`parallel-agents train`: from options to a run folder with a result in it."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

from parallel_agents.cli.commands import Train
from parallel_agents.cli.target import load_target
from parallel_agents.config import Config, merge, parse_setting
from parallel_agents.errors import ConfigError
from parallel_agents.tracking.logs import EventLog, configure_logs
from parallel_agents.tracking.metrics import MetricsWriter
from parallel_agents.tracking.progress import show_progress
from parallel_agents.tracking.runfolder import RunFolder

__all__ = ["layers", "train"]


def train(options: Train) -> None:
    """Run the command and print what came of it."""
    environment = load_target(options.target)(config=layers(options))
    folder = RunFolder.create(type(environment).__name__, options.out)
    folder.write_config(environment.config.as_dict())
    environment.timeline.enabled = True
    with configure_logs(folder.log, run=folder.run_id, console=not options.quiet):
        listeners = [
            EventLog(),
            MetricsWriter(folder.metrics),
            show_progress(quiet=options.quiet),
            *environment.recorders(folder.path),
        ]
        try:
            summary = environment.run_experiment(listeners=listeners)
        finally:
            environment.timeline.write(folder.trace)
    summary = {**summary, "run_dir": str(folder.path)}
    folder.write_fingerprint(summary["fingerprint"])
    folder.write_summary(summary)
    sys.stdout.write(json.dumps(summary) + "\n" if options.json else _told(summary))


def layers(options: Train) -> dict[str, Any]:
    """The options as sections, later ones over earlier ones: file, short options, --set."""
    short: dict[str, dict[str, Any]] = {
        "world": {"agents": options.agents},
        "model": {"algorithm": options.algo},
        "experiment": {
            "worlds": options.worlds,
            "epochs": options.epochs,
            "seed": options.seed,
            "seeds": options.seeds,
        },
        "parallel": {"backend": options.backend},
    }
    given = {name: {key: value for key, value in keys.items() if value is not None} for name, keys in short.items()}
    settings = [parse_setting(text) for text in options.set]
    for setting in settings:
        for section, keys in setting.items():
            for key in keys:
                if key in given.get(section, {}):
                    raise ConfigError(f"{section}.{key} is given twice: by its own option and by --set; leave one out")
    filed = Config.read(options.config)
    return merge(filed, {name: keys for name, keys in given.items() if keys}, *settings)


def _told(summary: Mapping[str, Any]) -> str:
    digest = summary["digest"] or "none (publish = asap, or a round was skipped)"
    return (
        f"{summary['epochs']} epochs, {summary['turns']:,} turns at {summary['turns_per_second']:,.0f}/s, "
        f"{summary['updates']:,} updates at {summary['updates_per_second']:,.0f}/s in {summary['wall_seconds']:.1f} s\n"
        f"mean reward per agent and epoch {summary['mean_reward']:.2f} (last 100 epochs)\n"
        f"digest {digest}\n"
        f"run folder {summary['run_dir']}\n"
    )
