"""Read run folders, of finished runs or of ones that are still writing, and describe one or several as panels.

Nothing here talks to the run: everything comes from its files, in memory that does not grow with their length. Metrics
are averaged over bins of epochs while they are read (`metric_bins`); a long file is sampled first, so that its whole
course is known at once. The folder may come from somebody else: links are refused, broken lines counted and skipped.
"""

from __future__ import annotations

import itertools
import math
import os
import re
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np

from parallel_agents.core.errors import ConfigError, ParallelAgentsError
from parallel_agents.core.files import open_folder, read_file, read_json
from parallel_agents.core.folder_lock import is_locked
from parallel_agents.tracking.jsonl import MIB, JsonlTail, jsonl_size, parse_lines, sample_jsonl
from parallel_agents.tracking.metric_bins import RECENT_EPOCHS, Floats, MetricsState
from parallel_agents.tracking.metrics import FILE_NAME
from parallel_agents.tracking.plots import (
    LIVE_PICTURE,
    Panel,
    chart,
    facts,
    intervals,
    line,
    numbers,
    table,
    with_interval,
)
from parallel_agents.tracking.run_folder import flat
from parallel_agents.tracking.statistics import (
    bootstrap_interval,
    mean_interval,
    probability_of_improvement,
)
from parallel_agents.tracking.timeline import Trace, read_trace

Section = dict[str, Any]
_SECTION = re.compile(r"[\w-]{1,60}\.panels\.json", re.ASCII)
"""Files of panels that an application leaves beside the metrics (`plots.write_section`)."""
KINDS = ("tiles", "chart", "intervals", "scatter", "table", "facts", "image", "timeline", "network")
_BASE64 = re.compile(r"[A-Za-z0-9+/]+={0,2}", re.ASCII)
PICTURE = re.compile(r"episode_\d{1,12}\.gif", re.ASCII)
_SAMPLE_ABOVE = 8 * MIB
_MAX_LINES = 10
"""Agents drawn one by one; more of them are drawn as their mean and range."""
_FAULT = re.compile(rb'"level": ?"(warning|error|critical)"')
_TITLES = {
    "loss": "Loss", "gradient_norm": "Gradient norm", "epsilon": "Exploration (ε)", "buffer_fill": "Buffer fill",
    "turns_per_second": "Turns per second", "updates_per_second": "Updates per second", "lag": "Lag, in rounds",
    "entropy": "Entropy", "ep_rew_mean": "Mean episode return", "ep_len_mean": "Mean episode length",
    "episode_returns": "Episode return of each agent", "episode_lengths": "Episode length of each agent",
    "equality": "Equality of returns", "efficiency": "Reward of the group per turn",
}  # fmt: skip
_SOCIAL = ("efficiency", "equality")
_NOT_DRAWN = ("turns", "transitions", "seconds", "version", "updates", "mean_reward", "total_timesteps", "fps",
              "wall_seconds", "episodes")  # fmt: skip


@dataclass(frozen=True)
class Group:
    """Replicas that differ in their seeds only."""

    setting: str
    """The swept values; empty if nothing is swept."""
    over: str
    """What intervals are over: seeds, or agents if there is one seed."""
    curve: Floats
    """(samples, p) binned rewards."""
    scores: Floats
    """(samples,) mean rewards of the last epochs."""
    seeds: list[int]


class RunView:
    """One run folder. `refresh` reads what is new; `sections` describes what is known."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = path.name or str(path)
        if not is_run(path):
            raise ConfigError(f"{path} is not a run folder: give the folder that `train` printed")
        self.version = 0
        """Changes whenever there is something new."""
        self.metrics = MetricsState()
        self._building = self.metrics
        """The state that is being read; `metrics` is a sample of the file until all of it has been read."""
        self._tail = JsonlTail(path / FILE_NAME)
        self._log = JsonlTail(path / "log.jsonl")
        self.faults: deque[dict[str, Any]] = deque(maxlen=50)
        self.fault_count = 0
        self.problems: dict[str, str] = {}
        """File name to what is wrong with it."""
        self._stamps: dict[str, tuple[int, int] | None] = {}
        self._files: dict[str, Any] = {}
        self.running = False
        self._restarts = 0

    def close(self) -> None:
        """Close the files."""
        self._tail.close()
        self._log.close()

    @property
    def complete(self) -> bool:
        """Whether everything that the files held has been read."""
        return self.metrics is self._building

    def refresh(self, seconds: float = math.inf) -> bool:
        """Read what is new, for about this long at most; return whether anything is."""
        until = time.monotonic() + seconds
        before = self.version
        self._attempt(FILE_NAME, lambda: self._read_metrics(until))
        self._attempt("log.jsonl", lambda: self._read_log(until))
        running = is_locked(self.path)
        limits = {"run.json": 1, "config.json": 4, "fingerprint.json": 1, "summary.json": 64, LIVE_PICTURE: 4,
                  **dict.fromkeys(self._names(_SECTION)[:20], 8), "trace.json": 128}  # fmt: skip
        for name, limit in limits.items():
            self._attempt(name, lambda name=name, limit=limit: self._read_file(name, limit * MIB))
        pictures = self.pictures()
        if (running, pictures) != (self.running, self._files.get("pictures", [])):
            self.running, self._files["pictures"] = running, pictures
            self.version += 1
        return self.version != before

    def _attempt(self, name: str, read: Any) -> None:
        try:
            read()
            found = None
        except (OSError, ValueError, ParallelAgentsError) as error:
            found = f"{name}: {getattr(error, 'strerror', None) or error}"
        if self.problems.get(name) != found:
            self.version += 1
            self.problems.pop(name, None)
            if found is not None:
                self.problems[name] = found

    def _read_metrics(self, until: float) -> None:
        if self._restarts == 0 and jsonl_size(self.path / FILE_NAME) > _SAMPLE_ABOVE:
            self.metrics = MetricsState()
            self.metrics.add(b"".join(sample_jsonl(self.path / FILE_NAME, 400)))
            self._restarts, self.version = -1, self.version + 1
            return  # show this first
        while data := self._tail.read(MIB // 4):
            if self._tail.restarts != max(1, self._restarts):
                self.metrics = self._building = MetricsState()
            self._restarts = self._tail.restarts
            self._building.add(data)
            self.version += 1
            if time.monotonic() > until:
                return
        self.metrics = self._building

    def _read_log(self, until: float) -> None:
        while time.monotonic() <= until and (data := self._log.read()):
            lines = [text for text in data.split(b"\n") if _FAULT.search(text)]
            if lines:
                found, _ = parse_lines(b"\n".join(lines))
                self.fault_count += len(found)
                self.faults.extend(found)
                self.version += 1

    def _read_file(self, name: str, limit: int) -> None:
        path = self.path / name
        try:
            status = os.stat(path, follow_symlinks=False)
            stamp = (status.st_mtime_ns, status.st_ino)
        except FileNotFoundError:
            stamp = None
        if self._stamps.get(name) == stamp:
            if name in self.problems:
                raise ValueError(self.problems[name].partition(": ")[2])
            return
        self._stamps[name] = stamp
        self._files.pop(name, None)
        self.version += 1
        if stamp is not None and name != "trace.json":  # which is read when it is shown
            self._files[name] = read_json(path, limit, root=self.path)

    def file(self, name: str) -> dict[str, Any]:
        """Return the content of a JSON file of the folder; empty if it is absent or broken."""
        content = self._files.get(name)
        return content if isinstance(content, dict) else {}

    def trace(self) -> Trace | None:
        """Return the timeline; None if there is none."""
        if "trace.json" not in self._files and self._stamps.get("trace.json"):
            self._files["trace.json"] = None
            self._attempt("trace.json", self._read_trace)
        return self._files.get("trace.json")

    def _read_trace(self) -> None:
        trace = read_trace(self.path / "trace.json")
        self._files["trace.json"] = trace if trace.spans else None

    def pictures(self) -> list[str]:
        """Return the names of the recorded episodes, oldest first."""
        return self._names(PICTURE)

    def _names(self, pattern: re.Pattern[str]) -> list[str]:
        try:
            with open_folder(self.path) as folder:
                return sorted(name for name in os.listdir(folder) if pattern.fullmatch(name))
        except OSError:
            return []

    def picture(self, name: str) -> bytes:
        """Return one recorded episode."""
        if not PICTURE.fullmatch(name):
            raise OSError(f"{name!r} is not the name of a recorded episode")
        return read_file(self.path / name, 32 * MIB, root=self.path)

    # -- what is shown -------------------------------------------------------------------------------------------------

    @property
    def status(self) -> str:
        """running, ended or stopped (ended without a summary)."""
        if self.running:
            return "running"
        return "stopped" if self.metrics.start and not self.file("summary.json") else "ended"

    @property
    def environment(self) -> str:
        return str(self.metrics.start.get("environment") or self.file("run.json").get("environment") or "")

    def agent_names(self) -> list[str]:
        """Return the names of the agents of one replica."""
        state = self.metrics
        return state.agents[: len(state.agents) // state.replicas]

    def notices(self) -> list[str]:
        """Return what a viewer must know: unreadable files, broken lines, a file that is still being read."""
        found = list(self.problems.values())
        if self.metrics.broken:
            found.append(f"{self.metrics.broken} broken lines in {FILE_NAME} are left out")
        if not self.complete:
            found.append("a sample of the metrics is shown while all of them are being read")
        return found

    def overview(self) -> dict[str, Any]:
        """Return one line about the run."""
        last = self.metrics.last_epoch
        reward, speed, epoch = (_number(last.get(key)) for key in ("mean_reward", "turns_per_second", "epoch"))
        return {"name": self.name, "status": self.status, "environment": self.environment, "epoch": epoch,
                "epochs": _number(self.metrics.start.get("epochs")), "reward": reward, "turns_per_second": speed,
                "faults": self.fault_count}  # fmt: skip

    def sections(self, agent: int | None = None) -> list[Section]:
        """Return everything about the run; with `agent`, its lines instead of those of all agents."""
        state = self.metrics
        agents = self.agent_names()
        if agent is not None and not 0 <= agent < len(agents):
            agent = None
        sections = [{"title": "", "panels": [self._tiles()]}]
        if state.bins.names():
            learning = [self.reward_chart(agent), *self._picture()]
            speed = [self._chart(name, agent) for name in ("turns_per_second", "updates_per_second", "lag")]
            social = [self._chart(name, None) for name in _SOCIAL]
            done = {"turns_per_second", "updates_per_second", "lag", "rewards", "round_updates", "round_rejected"}
            done |= {*_SOCIAL, *_NOT_DRAWN}
            rest = [self._chart(name, agent) for name in state.bins.names() if name not in done]
            sections += [
                section("Is it learning?", learning),
                section("Losses, exploration and buffers", rest),
                section("Speed", speed),
                section("The group", social),
            ]
        elif picture := self._picture():
            sections.append(section("Episodes", picture))
        sections += self._application_sections()
        if trace := self.trace():
            sections.append(section("Where the time goes", trace.panels))
        if agents:
            sections.append(section("Agents", [self._agent_table()]))
        sections.append(section("Faults", [self._fault_table()]))
        sections.append(section("What was run", self._run_facts()))
        return [entry for entry in sections if entry["panels"]]

    def _tiles(self) -> Panel:
        last, start, summary = self.metrics.last_epoch, self.metrics.start, self.file("summary.json")
        epochs = _number(start.get("epochs"))
        recent = [row.mean() for row in self.metrics.recent if row.size]
        tiles = [["Status", self.status, self.environment]]
        if last:
            ended = summary.get("epochs") == last.get("epoch")  # rounds that ended after the last epoch count too
            updates = (summary if ended else last).get("updates")
            tiles += [
                ["Epoch", format_number(last.get("epoch")),
                 f"of {format_number(epochs)}{self._remaining()}" if epochs else ""],
                ["Reward", format_number(last.get("mean_reward")),
                 f"mean of {len(recent)}: {format_number(float(np.mean(recent)))}" if recent else "last epoch"],
                ["Turns/s", format_number(last.get("turns_per_second")), "last epoch"],
                ["Updates/s", format_number(self._recent_mean("updates_per_second")),
                 f"{format_number(updates)} in all"],
                ["Lag", format_number(last.get("lag")), f"rounds; weights {format_number(last.get('version'))}"],
            ]  # fmt: skip
        elif isinstance(summary.get("mean_reward"), int | float):
            tiles.append(["Reward", format_number(summary["mean_reward"]), "at the end"])
        rejected = f"{int(self.metrics.bins.total('round_rejected').sum()):,} updates rejected" if last else ""
        tiles.append(["Faults", format_number(self.fault_count), rejected])
        return {"kind": "tiles", "title": "", "tiles": tiles}

    def _remaining(self) -> str:
        epoch, epochs = _number(self.metrics.last_epoch.get("epoch")), _number(self.metrics.start.get("epochs"))
        seconds = self._recent_mean("seconds")
        if not self.running or epoch is None or epochs is None or seconds is None or epoch >= epochs:
            return ""
        return f", about {timedelta(seconds=round((epochs - epoch) * seconds))} to go"

    def _recent_mean(self, name: str) -> float | None:
        """Return the mean of a column with one value over the last 20 bins; None if there is none."""
        bins = self.metrics.bins
        recent = bins.means(name)[-20:, 0] if name in bins.names() else np.empty(0)
        return float(np.nanmean(recent)) if np.isfinite(recent).any() else None

    def settings(self) -> list[str]:
        """Return the combinations of a sweep, in the order of the replicas; a single empty one if nothing is swept."""
        experiment = self.file("config.json").get("experiment")
        sweep = experiment.get("sweep") if isinstance(experiment, dict) else None
        if not isinstance(sweep, dict) or not all(isinstance(values, list) and values for values in sweep.values()):
            return [""]
        if self.metrics.replicas % math.prod(len(values) for values in sweep.values()):
            return [""]
        return [
            ", ".join(f"{name}={value}" for name, value in zip(sweep, values, strict=True))
            for values in itertools.product(*sweep.values())
        ]

    def groups(self) -> list[Group]:
        """Return the replicas of each setting of a sweep, or all of them: what one run is compared by with others."""
        if "rewards" not in self.metrics.bins.names():
            return []
        settings, replicas = self.settings(), self.metrics.replicas
        each = replicas // len(settings)
        recent = np.array([row for row in self.metrics.recent if len(row) == len(self.metrics.agents)])
        means = np.nanmean(recent, axis=0).reshape(replicas, -1) if recent.size else np.empty((replicas, 0))
        values, seeds = self.by_replica("rewards"), self._seeds(each)
        cuts = [slice(k * each, (k + 1) * each) for k in range(len(settings))]
        if each > 1:
            return [Group(setting, "seeds", values[cut].mean(axis=2), means[cut].mean(axis=1), seeds[cut])
                    for setting, cut in zip(settings, cuts, strict=True)]  # fmt: skip
        return [Group(setting, "agents", values[cut][0].T, means[cut][0], seeds[cut])
                for setting, cut in zip(settings, cuts, strict=True)]  # fmt: skip

    def _seeds(self, each: int) -> list[int]:
        """Return the seeds of all replicas; empty if they are not known."""
        replicas = self.file("summary.json").get("replicas")
        if isinstance(replicas, list):
            return [one["seed"] for one in replicas if isinstance(one, dict) and isinstance(one.get("seed"), int)]
        experiment = self.file("config.json").get("experiment")
        first = experiment.get("seed") if isinstance(experiment, dict) else None
        return [first + k % each for k in range(self.metrics.replicas)] if isinstance(first, int) else []

    def by_replica(self, name: str) -> Floats:
        """Return the binned values of a column of agents as (replicas, p, agents)."""
        values = self.metrics.bins.means(name)
        return values.reshape(len(values), self.metrics.replicas, -1).swapaxes(0, 1)

    def reward_chart(self, agent: int | None = None) -> Panel:
        """Return the reward with its interval, over seeds if there are several, else over agents; and single agents."""
        values, epochs, names = self.by_replica("rewards"), self.metrics.bins.epochs(), self.agent_names()
        several = len(values) > 1
        if agent is not None:
            return chart("Reward per epoch", epochs, [with_interval(names[agent], values[:, :, agent])],
                         ylabel="reward", note="95 % interval over seeds" if several else "")  # fmt: skip
        if len(groups := self.groups()) > 1:
            lines = [with_interval(group.setting, group.curve) for group in groups]
            return chart("Reward per epoch", epochs, lines, ylabel="reward", note=f"interval over {groups[0].over}")
        lines = []
        if 1 < len(names) <= _MAX_LINES:
            lines += [line(name, values[:, :, n].mean(axis=0)) for n, name in enumerate(names)]
        lines.append(with_interval("mean", values.mean(axis=2) if several else values[0].T))
        if len(lines) > 1:
            lines[-1]["bold"] = True
        over = "seeds" if several else "agents"
        note = f"95 % interval over {over}" if max(len(values), len(names)) > 1 else ""
        return chart("Reward per epoch", epochs, lines, ylabel="reward", note=note)

    def _chart(self, name: str, agent: int | None) -> Panel:
        """Return a chart of any column: one line, or the mean over agents with their range."""
        bins = self.metrics.bins
        title = _TITLES.get(name, name.replace("_", " "))
        if name not in bins.names():
            return {}
        values, epochs = bins.means(name), bins.epochs()
        known = np.isfinite(values).any(axis=1)
        values, epochs = values[known], epochs[known]
        if not len(values):
            return {}
        if name == "updates_per_second":  # updates are published in rounds: show their mean over several epochs
            window = max(1, min(len(values) // 2, max(8, len(values) // 25)))
            values = np.apply_along_axis(lambda v: np.convolve(v, np.ones(window) / window, "valid"), 0, values)
            epochs = epochs[window - 1 :]
        if values.shape[1] == 1:
            return chart(title, epochs, [line("", values[:, 0])])
        if agent is not None and values.shape[1] == len(self.metrics.agents):
            chosen = values[:, agent :: len(self.agent_names())]
            return chart(title, epochs, [with_interval(self.agent_names()[agent], chosen.T)])
        over = "seeds" if name in _SOCIAL else "agents"
        if name in _SOCIAL:
            return chart(title, epochs, [with_interval("mean", values.T)], note="95 % interval over seeds")
        with np.errstate(invalid="ignore"):
            mean, low, high = (f(values, axis=1) for f in (np.nanmean, np.nanmin, np.nanmax))
        return chart(title, epochs, [line("mean", mean, low, high)], note=f"range over {over}")

    def _picture(self) -> list[Panel]:
        """Return the game as it is now, if the run goes on or nothing else shows it, and the recorded episodes."""
        names, now = self.pictures(), self._live_picture()
        if not names and not now:
            return []
        return [{"kind": "image", "title": "The game", "run": self.name, "names": names[-200:],
                 "now": now if self.running or not names else None,
                 "alt": f"{self.environment}: the first world"}]  # fmt: skip

    def _live_picture(self) -> dict[str, Any] | None:
        match self.file(LIVE_PICTURE):
            case {"epoch": int(epoch), "png": str(text)} if _BASE64.fullmatch(text):
                return {"label": f"epoch {epoch:,}", "data": f"data:image/png;base64,{text}"}
        return None

    def _application_sections(self) -> list[Section]:
        """Return the panels that the run itself left, as far as they are well-formed."""
        found = []
        for name in sorted(name for name in self._files if _SECTION.fullmatch(name)):
            entry = self.file(name)
            panels = content if isinstance(content := entry.get("panels"), list) else []
            known = [panel for panel in panels if isinstance(panel, dict) and panel.get("kind") in KINDS]
            found.append(section(str(entry.get("title", ""))[:200], known))
        return found

    def _agent_table(self) -> Panel:
        """Return one row per agent: its reward in the last epochs and its newest metrics."""
        state = self.metrics
        recent = np.array([row for row in state.recent if len(row) == len(state.agents)])
        metrics = {**_columns(state.last_epoch), **_columns(state.last_round)}
        metrics = {name: values for name, values in metrics.items() if len(values) == len(state.agents)}
        updates, rejected = state.bins.total("round_updates"), state.bins.total("round_rejected")
        each = max(1, len(self.agent_names()))
        columns = ["agent", *(["replica"] if state.replicas > 1 else []), "reward", "95 % interval", "updates",
                   "rejected", *(_TITLES.get(name, name.replace("_", " ")) for name in metrics)]  # fmt: skip
        rows = []
        for n, name in enumerate(state.agents[:500]):
            series = recent[:, n][np.isfinite(recent[:, n])] if recent.size else np.empty(0)
            mean, low, high = mean_interval(series) if series.size else (math.nan,) * 3
            rows.append([
                name, *([n // each] if state.replicas > 1 else []), format_number(mean),
                f"{format_number(low)} to {format_number(high)}" if math.isfinite(low) else "",
                *(format_number(total[n]) if len(total) == len(state.agents) else "" for total in (updates, rejected)),
                *(format_number(values[n]) for values in metrics.values()),
            ])  # fmt: skip
        note = f"reward: mean and interval over the last {len(recent)} epochs; other columns: newest value"
        return table("Last epochs, newest values", columns, rows, note=note)

    def _fault_table(self) -> Panel:
        hidden = ("time", "level", "event", "run", "role", "agent", "version", "thread", "process")
        rows = [
            [str(fault.get("time", ""))[:19].replace("T", " "),
             *(str(fault.get(key, "")) for key in ("level", "event")),
             "; ".join(f"{name}: {value}" for name, value in fault.items() if name not in hidden)[:500]]
            for fault in reversed(self.faults)
        ]  # fmt: skip
        if not rows:
            return facts("", {"Warnings and errors": "none"})
        note = f"the last {len(rows)} of {self.fault_count}" if self.fault_count > len(rows) else ""
        return table("Warnings and errors", ["time", "level", "event", "detail"], rows, note=note)

    def _run_facts(self) -> list[Panel]:
        summary, config = self.file("summary.json"), self.file("config.json")
        fingerprint = self.file("fingerprint.json")
        digest = summary.get("digest") or summary.get("no_digest") or "known at the end of a run"
        result = {"folder": self.path, "digest": digest}
        names = ("epochs", "turns", "transitions", "updates", "wall_seconds", "backend", "reproducible")
        result |= {name.replace("_", " "): format_number(summary[name]) for name in names if name in summary}
        panels = [facts("Result", result)]
        if config:
            panels.append(facts("Configuration", dict(flat(config))))
        if fingerprint:
            panels.append(facts("Versions and fingerprint", dict(flat(fingerprint))))
        return panels


def section(title: str, panels: Sequence[Panel]) -> Section:
    """Return panels under a title, without those that are empty."""
    return {"title": title, "panels": [panel for panel in panels if panel]}


def _columns(record: Mapping[str, Any]) -> dict[str, list[Any]]:
    metrics = record.get("metrics")
    return {name: v for name, v in metrics.items() if isinstance(v, list)} if isinstance(metrics, dict) else {}


def _number(value: Any) -> float | None:
    return numbers([value], 9)[0] if isinstance(value, int | float) else None


def format_number(value: Any) -> str:
    """Return a value as it is shown: whole numbers in full, others with four digits."""
    if type(value) not in (int, float, np.float64):
        return "" if value is None else str(value)
    if not math.isfinite(value):
        return ""
    return f"{value:,.0f}" if float(value).is_integer() or abs(value) >= 10_000 else f"{value:,.4g}"


def is_run(path: Path) -> bool:
    """Return whether a folder holds something that can be shown."""
    if not path.is_dir():
        return False
    if os.path.lexists(path / "run.json") or os.path.lexists(path / FILE_NAME):
        return True
    return any(_SECTION.fullmatch(name) for name in os.listdir(path))


def open_views(paths: Sequence[Path]) -> list[RunView]:
    """Open run folders; a folder that holds run folders stands for all of them, the newest first, at most 50."""
    views: list[RunView] = []
    for path in paths:
        if path.is_dir() and not is_run(path):
            inner = [child for child in path.iterdir() if is_run(child)]
            views += [RunView(child.absolute()) for child in sorted(inner, key=lambda p: -p.stat().st_mtime)[:50]]
        else:
            views.append(RunView(path.absolute()))
    if not views:
        raise ConfigError("no run to show: give a run folder, as `train` printed it, or a folder that holds some")
    return views


# -- several runs ------------------------------------------------------------------------------------------------------


def compare_runs(views: Sequence[RunView]) -> list[Section]:
    """Return curves of runs, and of the settings of a sweep, side by side, and statistics of their last epochs.

    They are compared by mean rewards, as Agarwal et al. (2021) advise for few seeds.
    """
    names = _distinct([view.name for view in views])
    rows = [
        [name, entry["environment"], entry["status"],
         *(format_number(entry[key]) for key in ("epoch", "reward", "turns_per_second", "faults"))]
        for name, entry in zip(names, (view.overview() for view in views), strict=True)
    ]  # fmt: skip
    sections = [
        section("Runs", [table("", ["run", "environment", "status", "epoch", "reward", "turns/s", "faults"], rows)])
    ]
    groups: dict[str, Group] = {}
    lines = []
    for view, name in zip(views, names, strict=True):
        for group in view.groups():
            label = " ".join(part for part in (name if len(views) > 1 else "", group.setting) if part) or name
            groups[label] = group
            lines.append(with_interval(label, group.curve) | {"x": numbers(view.metrics.bins.epochs(), 9)})
    if not groups:
        return sections
    over = " or ".join(sorted({group.over for group in groups.values()}))
    note = f"95 % interval over {over}"
    sections.append(section("Learning", [chart("Reward per epoch", [], lines, ylabel="reward", note=note)]))
    scores = {label: group.scores[np.isfinite(group.scores)] for label, group in groups.items()}
    scores = {label: values for label, values in scores.items() if len(values) > 1}
    if not scores:
        return sections
    note = f"mean reward of the last {RECENT_EPOCHS} epochs, of {over}; 95 % bootstrap interval"
    if over != "seeds":
        note += "; agents of one seed are not independent: train several seeds (--seeds) to compare"
    panels = [intervals("Interquartile mean", {label: bootstrap_interval(values) for label, values in scores.items()},
                        xlabel="reward", note=note)]  # fmt: skip
    first, *others = scores
    if others:
        better = {f"{label} > {first}": probability_of_improvement(scores[label], scores[first]) for label in others}
        panels.append(intervals("Probability of improvement", better, xlabel=f"over {first}", reference=0.5,
                                note="chance that a seed of the one beats a seed of the other")
                      | {"range": [0.0, 1.0]})  # fmt: skip
    paired = [label for label in others if groups[label].seeds == groups[first].seeds != [] and over == "seeds"
              and len(scores[label]) == len(scores[first])]  # fmt: skip
    if paired:
        differences = {f"{label} − {first}": mean_interval(scores[label] - scores[first]) for label in paired}
        panels.append(intervals("Difference on equal seeds", differences, xlabel="reward", reference=0.0,
                                note="mean of paired differences; 95 % t-interval"))  # fmt: skip
    sections.append(section("Comparison", panels))
    return sections


def _distinct(names: Sequence[str]) -> list[str]:
    """Return the names, with a number added where one occurs twice."""
    seen: dict[str, int] = {}
    found = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        found.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return found
