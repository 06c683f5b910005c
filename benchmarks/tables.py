"""Write the benchmark figures of the documentation from the stored results, so that none is typed by hand.

python -m benchmarks.tables             rewrite every marked block of README.md and docs, and draw the plots
python -m benchmarks.tables --check     print the pages that differ from the results, and exit with 1 if there is one

A block begins with `<!-- figures: NAME -->` and ends with `<!-- end of figures -->`.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks import plots
from benchmarks.games_table import markdown as games_markdown
from benchmarks.learning_tasks import TASKS
from benchmarks.peers_learning import stored, summary

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
_LOOP = re.compile(r"whole loop, (\S+, batch \d+), (\d+) agents(?:, (\d) cores)?: (.+) / ours")
_MORE_CORES = "†"
_BLOCK = re.compile(r"(<!-- figures: (.+?) -->\n).*?(<!-- end of figures -->)", re.S)

Record = dict[str, Any]


def rewritten(text: str) -> str:
    """Return a page with every marked block rewritten."""

    def block(match: re.Match[str]) -> str:
        name = match[2]
        if name not in WRITERS:
            raise SystemExit(f"no figures are called {name!r}: choose from {', '.join(WRITERS)}")
        return f"{match[1]}{WRITERS[name]()}\n{match[3]}"

    return _BLOCK.sub(block, text)


def pages() -> list[Path]:
    """Return every page that may hold figures."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def main(arguments: Sequence[str]) -> int:
    """Rewrite or check all pages; return the exit code."""
    stale = [page for page in pages() if rewritten(page.read_text()) != page.read_text()]
    for page in stale:
        sys.stdout.write(f"{page.relative_to(ROOT)}\n")
        if "--check" not in arguments:
            page.write_text(rewritten(page.read_text()))
    if "--check" not in arguments and (records := rows_of("scaling")):
        plots.scaling(records, ROOT / "docs" / "images" / "scaling.svg")
    return 1 if stale and "--check" in arguments else 0


def table(header: str, lines: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table; `header` is its first line, with `:` before right-aligned columns."""
    names = [name.strip() for name in header.split("|")]
    rule = ["--:" if name.startswith(":") else "---" for name in names]
    rows = [[name.removeprefix(":") for name in names], rule, *lines]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in rows)


def measured(records: Sequence[Record]) -> str:
    """Return a sentence that says where rows were measured."""
    first = records[0]
    if "commit" not in first:
        return "Measured before results carried their commit."
    commits = {own["commit"][:10] + " with changes" * own["dirty"]: own["date"][:10] for own in records}
    machine, versions = first["machine"], ", ".join(f"{name} {number}" for name, number in first["versions"].items())
    loads = [record[key] for record in records for key in ("load_start", "load_end") if record.get(key) is not None]
    load = f", load {min(loads):g} to {max(loads):g}" if loads else ""
    when = ", ".join(f"{commit} on {date}" for commit, date in commits.items())
    return (
        f"Measured at commit{'s' * (len(commits) > 1)} {when}: {machine['cpu']}, {machine['cores']} cores{load}; "
        f"{versions}."
    )


def rows_of(name: str) -> list[Record]:
    """Return the stored rows of a benchmark, all of one run; none if it has not been measured."""
    path = RESULTS / "rows" / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else []


def rows_aside(name: str) -> list[list[Record]]:
    """Return the stored rows of a benchmark that were measured on other processors than the last ones."""
    return [json.loads(path.read_text()) for path in sorted((RESULTS / "rows").glob(f"{name}@*.json"))]


def rows_table(*benchmarks: str) -> str:
    """Return a table of ratios, goals and counted work for each of some benchmarks."""

    def line(record: Record) -> list[str]:
        ratio = f"skipped: {record['skipped']}" if record["skipped"] else f"failed: {record['failed']}"
        if record["ratio"] is not None:
            ratio = f"{record['ratio']:.3g} {record['unit']}"
        goal = "" if record["goal"] is None else f"{'at most' if record['at_most'] else 'at least'} {record['goal']:g}"
        counts = record["sides"][0]["counts"] if record["sides"] else {}
        work = ", ".join(f"{count:,} {what.replace('_', ' ')}" for what, count in counts.items())
        backends = " / ".join(str(side["backend"]) for side in record["sides"] if side["backend"])
        return [record["name"], ratio, goal + ("" if record["good"] else " (missed)"), work, backends]

    columns = "row | :ratio | goal | work of a call, on each side | backend in use"
    parts = []
    for name in benchmarks:
        command, records = f"`python -m benchmarks.run {name}`", rows_of(name)
        if not records:
            parts.append(f"Not measured yet: {command}.")
        else:
            parts.append(f"{command}. {measured(records)}\n\n{table(columns, map(line, records))}")
    return "\n\n".join(parts)


def start() -> str:
    """Return the table of what importing and installing the package costs, and the packages that weigh most."""
    weights: dict[str, float] = next((own["detail"] for own in rows_of("start") if own["unit"] == "MB"), {})
    listed = ", ".join(f"{name} {size:.1f}" for name, size in weights.items() if size >= 0.05)
    return f"{rows_table('start')}\n\nMegabytes: {listed or 'not measured yet'}."


def all_rows() -> str:
    """Return the tables of all benchmarks but those that have a section of their own."""
    names = {path.stem.removesuffix("_bench") for path in RESULTS.parent.glob("*_bench.py")}
    return rows_table(*sorted(names - {"scaling", "sizes", "start"}))


def loops(records: Iterable[Record]) -> Iterator[tuple[str, int, str, str]]:
    """Yield size, agents, peer and ratio of every row of whole loops; marked where only ours used two cores."""
    for record in records:
        if (found := _LOOP.fullmatch(record["name"])) and record["ratio"] is not None:
            size, agents, cores, peer = found.groups()
            title = peer if cores is None else f"{peer}, {cores} core{'s' * (cores != '1')} for each side"
            more = cores is None and record["sides"][-1]["backend"] != "inline"
            yield size, int(agents), title, f"{record['ratio']:.3g}{_MORE_CORES * more}"


def beside(columns: Sequence[str], ratios: dict[str, dict[str, str]]) -> str:
    """Return a table of ratios by peer and column."""
    lines = [[title, *(own.get(name, "") for name in columns)] for title, own in ratios.items()]
    text = table(" | ".join(["times as fast as", *(f":{name}" for name in columns)]), lines)
    note = f"{_MORE_CORES}: here learning took place in a thread of its own on our side, so ours used two cores."
    return f"{text}\n\n{note}" if _MORE_CORES in text else text


def peers() -> str:
    """Return how many times as fast as its peers the whole loop is, by number of agents."""
    both = ((name, records) for name in ("kernels", "peers") for records in (rows_of(name), *rows_aside(name)))
    runs = [(name, records) for name, records in both if records]
    ratios: dict[str, dict[str, str]] = {}
    found: set[int] = set()
    for name, records in runs:
        cpu = f" ({records[0]['machine']['cpu']})" if rows_aside(name) else ""
        for size, agents, title, ratio in loops(records):
            if size == "8-64-64-4, batch 64":
                ratios.setdefault(title + cpu, {})[f"{agents} agents"] = ratio
                found.add(agents)
    if not ratios:
        return "Not measured yet: `python -m benchmarks.run kernels peers`."
    where = "\n".join(f"- `python -m benchmarks.run {name}`. {measured(records)}" for name, records in runs)
    return f"{beside([f'{agents} agents' for agents in sorted(found)], ratios)}\n\n{where}"


def sizes() -> str:
    """Return how many times as fast as its peers the whole loop is at other sizes."""
    records = rows_of("sizes")
    if not records:
        return "Not measured yet: `python -m benchmarks.run sizes`."
    ratios: dict[str, dict[str, str]] = {}
    for size, agents, title, ratio in loops(records):
        ratios.setdefault(title, {})[f"{agents} agents, {size}"] = ratio
    columns = list(dict.fromkeys(name for own in ratios.values() for name in own))
    return f"`python -m benchmarks.run sizes`. {measured(records)}\n\n{beside(columns, ratios)}"


def scaling() -> str:
    """Return the tables of costs by agents, worlds, network and buffer, and of backends, with their plot."""
    records = rows_of("scaling")
    if not records:
        return "Not measured yet: `python -m benchmarks.run scaling`."

    def kind(name: str) -> list[Record]:
        return [own for own in records if own["name"].startswith(name) and own["ratio"] is not None]

    def cell(own: Record) -> str:
        return f"{own['ratio']:.3g}"

    turns = {(own["detail"]["agents"], own["detail"]["worlds"]): cell(own) for own in kind("turn:")}
    worlds = sorted({world for _, world in turns})
    by_agents = [
        [str(count), *(turns.get((count, world), "") for world in worlds)] for count in sorted({n for n, _ in turns})
    ]
    updates = [
        [
            own["detail"]["network"], str(own["detail"]["agents"]), cell(own), f"{own['detail']['gflops']:.0f}",
            f"{own['detail']['flops_per_byte']:.0f}", f"{own['detail']['share_of_roofline']:.0%}",
        ]
        for own in kind("update:")
    ]  # fmt: skip
    buffers = [
        [f"{own['detail']['rows']:,}", cell(own), f"{own['detail']['bytes_per_row']:.0f}"] for own in kind("buffer:")
    ]
    backends = [
        [
            own["detail"]["network"], str(own["detail"]["agents"]), own["detail"]["fastest"],
            *(f"{own['detail']['updates_per_second'][name]:,.0f}" for name in ("inline", "thread", "process")),
        ]
        for own in kind("backend:")
    ]  # fmt: skip
    roof = next(own["detail"] for own in kind("update:"))
    return "\n\n".join(
        [
            f"`python -m benchmarks.run scaling`. {measured(records)}",
            "![Costs by agents, worlds, network and buffer](images/scaling.svg)",
            "Microseconds of an agent's turn in one world, by agents and worlds:",
            table(" | ".join([":agents", *(f":{count} worlds" for count in worlds)]), by_agents),
            f"An update of 64 samples on one core, which multiplies and adds at most {roof['peak_gflops']:.0f} "
            f"GFLOP/s and moves {roof['bandwidth_gb']:.0f} GB/s; the roofline is the lower of the two limits:",
            table("network | :agents | :µs | :GFLOP/s | :FLOP per byte | :share of the roofline", updates),
            "An update with the sampling before it, by rows of the buffer:",
            table(":rows | :µs | :bytes per row", buffers),
            "Updates per second of whole loops in each backend, and the fastest of them:",
            table("network | :agents | fastest | :inline | :thread | :process", backends),
        ]
    )


def recorded() -> str:
    """Return the table of simulators that are not installed here, by figures measured elsewhere, and of our speeds."""
    lines = [
        [own["simulator"], own["version"], own["work"], own["figure"], own["where"]]
        for own in json.loads((RESULTS / "recorded.json").read_text())
    ]
    for name, rows, counted, unit in (
        ("market", "market: auctions, 1 thread", "auctions", "auctions per second"),
        ("workflows", "network defence, ", "world_steps", "steps per CPU second"),
    ):
        own = [record for record in rows_of(name) if record["name"].startswith(rows) and record["ratio"] is not None]
        if not own:
            lines.append(["ours", "", rows.strip(", "), "not measured yet", f"`python -m benchmarks.run {name}`"])
        for record in own:
            side = record["sides"][-1]
            speed = f"{side['counts'][counted] / side['seconds']:,.0f} {unit}"
            where = f"measured here, {record['machine']['cpu']}, one core"
            lines.append(["ours", f"commit {record['commit'][:10]}", side["work"], speed, where])
    return table("simulator | version | work | :recorded | where and how", lines)


def learning() -> str:
    """Return the tables of levels that ours and its peers reach, by environment."""
    parts = []
    for task in TASKS.values():
        trained = stored(task, RESULTS / "peers_learning")
        if not trained:
            parts.append(f"**{task.name}**. Not measured yet: `python -m benchmarks.peers_learning {task.name}`.")
            continue
        lines = []
        for name in dict.fromkeys(line["side"] for line in trained):
            side = summary(task, (line for line in trained if line["side"] == name))
            if "skipped" in side:
                lines.append([name, "", f"skipped: {side['skipped']}", "", "", "", ""])
                continue
            steps, to_level = (
                [own for own in side[key] if own is not None] for key in ("steps_to_level", "seconds_to_level")
            )
            lines.append(
                [
                    name,
                    str(len(side["seconds"])),
                    ("{:.3g} [{:.3g}, {:.3g}]" if len(side["seconds"]) > 1 else "{:.3g}").format(*side["final"]),
                    "" if task.level is None else f"{len(steps)} of {len(side['seconds'])}",
                    f"{statistics.median(steps):,.0f}" if steps else "",
                    f"{statistics.median(to_level):.3g}" if to_level else "",
                    f"{statistics.median(side['seconds']):.3g}" if side["seconds"][0] else "",
                ]
            )
        level = "" if task.level is None else f", level {task.level:g}"
        header = (
            "side | :seeds | :final return | :seeds that reach the level | :steps to it | :CPU seconds to it | "
            ":CPU seconds in all"
        )
        parts.append(f"**{task.name}**. {task.steps:,} steps{level}. {measured(trained)}\n\n{table(header, lines)}")
    return "\n\n".join(parts)


def market_learning() -> str:
    """Return the table of the studies of learning in many worlds."""
    studies = json.loads((RESULTS / "market_learning.json").read_text())
    if not studies:
        return "Not measured yet: run `python -m benchmarks.market_learning worlds`."

    def lines() -> Iterable[list[str]]:
        for study, result in studies.items():
            for pair in result["comparisons"]:
                names = [key for key in pair if key not in ("figure", "difference", "over_worlds", "seeds")]
                means = [f"{name}: {pair[name]:.2f}" for name in names]
                intervals = ["{:+.2f} [{:+.2f}, {:+.2f}]".format(*pair[key]) for key in ("difference", "over_worlds")]
                yield [study, pair["figure"], *means, *intervals]

    notes = sorted({result["measured"] for result in studies.values()})
    columns = "study | figure | :one way | :other way | difference, over seeds | difference, over worlds"
    return f"{' '.join(notes)}\n\n{table(columns, lines())}"


def market_task() -> str:
    """Return the table of the baselines of the market, and what each is worth beside the best constant."""
    path = RESULTS / "market_task.json"
    if not path.exists():
        return "Not measured yet: run `python -m benchmarks.market_task`."
    study = json.loads(path.read_text())

    def line(name: str, row: Record) -> list[str]:
        score, gain = (
            "{:.2f} [{:.2f}, {:.2f}]".format(*row["score"]),
            [f"{x:+.0%}" for x in row["over_best_constant"]],
        )
        goal = "" if row["goal"] is None else f"at least {row['goal']:+.0%}"
        return [
            name,
            score,
            f"{gain[0]} [{gain[1]}, {gain[2]}]",
            goal,
            f"{row['profit_over_budget']:.2f}",
            f"{row['spent']:.0%}",
        ]

    auctions = f"{study['auctions_per_episode']:,.0f} auctions"
    note = f"{study['worlds']} unseen worlds, {study['episodes']} episodes of {auctions} in each."
    columns = "bidder | :score | :over the best constant | goal | :profit over budget | :spent"
    return f"{measured([study])} {note}\n\n{table(columns, (line(*item) for item in study['results'].items()))}"


def games() -> str:
    """Return the tables of trained, random and scripted players of every game."""
    records = json.loads((RESULTS / "games_table.json").read_text())
    kinds = ("trained", "random", "scripted", "selfish")

    def line(record: Record) -> list[str]:
        values = [record[kind]["sustainability"] if kind in record else None for kind in kinds]
        cells = ("" if interval is None else "{:.1f} [{:.1f}, {:.1f}]".format(*interval) for interval in values)
        return [record["game"], *cells]

    social = table("game | sustainability, trained | random | scripted | scripted, selfish", map(line, records))
    return f"{measured(records)}\n\n{games_markdown(records)}\n\n{social}"


def order_search() -> str:
    """Return the table of simple regrets of searches on trained policies, per training seed."""
    rows = json.loads((RESULTS / "order_search.json").read_text())
    lines = [
        [str(row["seed"]), method, *(f"{mean:.2f} ± {half:.2f}" for mean, half in cells.values())]
        for row in rows
        for method, cells in row["regret"].items()
    ]
    shown = [f":after {trials} orders" for trials in next(iter(rows[0]["regret"].values()))]

    def each(name: str) -> str:
        return ", ".join(f"{row[name]:.2f}" for row in rows)

    where = "\n".join(f"- Seed {row['seed']}: {measured([row])}" for row in rows)
    return (
        f"{where}\n\n{table(' | '.join([':seed', 'simple regret', *shown]), lines)}\n\n"
        f"Searches by each method: {', '.join(str(row['searches']) for row in rows)}. Fine-tuned twice, an order's "
        f"return has a deviation of {each('noise')}; the means of the 120 orders have one of "
        f"{each('spread_of_orders')} and a range of {each('range_of_orders')}. The correlation of the two fine-tunings "
        f"over orders is {each('correlation_of_repeats')}."
    )


def order_compliance() -> str:
    """Return the table of orders learnt by one policy for all orders, per training seed and attacker."""
    results = json.loads((RESULTS / "order_compliance.json").read_text())
    lines = []
    for seed, red in sorted({(row["seed"], row["red"]) for row in results["rows"]}):
        rows = [row for row in results["rows"] if (row["seed"], row["red"]) == (seed, red)]
        values, gains = [row["value"] for row in rows], [row["value"] - row["script"] for row in rows]
        lines.append(
            [
                str(seed), red, f"{sum(row['learnt'] for row in rows)} of {len(rows)}",
                f"{min(row['compliance'] for row in rows):.3f}", f"{min(values):.1f} to {max(values):.1f}",
                f"{min(gains):.1f} to {max(gains):.1f}",
            ]
        )  # fmt: skip
    header = ":seed | attacker | :learnt | :least compliance | return | better than the script by"
    return f"{measured([results])}\n\n{table(header, lines)}"


def defence_score() -> str:
    """Return the table of trained defenders' scores, and of the scores during their training."""
    results = json.loads((RESULTS / "defence_score.json").read_text())
    lines, courses = [], []
    for version, part in results["games"].items():
        for name, row in part["scores"].items():
            cells = (" / ".join(f"{mean:.2f}" for mean in row["means"][red]) for red in ("B_line", "Meander"))
            lines.append([version, name, f"{row['total']:.2f} ± {1.96 * row['total_error']:.2f}", *cells])
        for name, stages in part["stages"].items():
            seconds = sum(stage["cpu_seconds"] for stage in stages)
            course = " → ".join(f"{stage['total']:.1f}" for stage in stages)
            course += f" ± {1.96 * stages[-1]['error']:.1f}"
            millions = sum(stage["transitions"] for stage in stages) / 1e6
            courses.append([version, name, f"{millions:.1f}", f"{seconds:.0f}", course])
    header = "version | defender | :score | B_line 30 / 50 / 100 | Meander 30 / 50 / 100"
    scores = f"{table(header, lines)}\n\n" if lines else ""
    course = table("version | training | :million transitions | :CPU seconds | score after each stage", courses)
    return f"{measured([results])}\n\n{scores}{course}"


def one_or_many() -> str:
    """Return the table of one environment compared with 25, at equal transitions."""
    results = json.loads((RESULTS / "one_or_many.json").read_text())
    one, many = results["1"], results["25"]
    batches = [results["transitions"] // (100 * count) for count in (1, 25)]
    lines = [
        ["updates (4 a batch)", *(str(4 * count) for count in batches)],
        ["variance of a batch's policy gradient", *(f"{side['gradient_variance']:.3g}" for side in (one, many))],
        ["final return, mean over seeds", *(f"{side['final_return_mean']:.0f}" for side in (one, many))],
        ["final return, deviation over seeds", *(f"{side['final_return_deviation']:.0f}" for side in (one, many))],
        ["CPU seconds", *(f"{side['seconds']:.1f}" for side in (one, many))],
    ]
    noise, spread, cost = (one[key] / many[key] for key in ("gradient_variance", "final_return_deviation", "seconds"))
    return (
        f"{measured([results])}\n\n{table(' | :1 environment | :25 environments', lines)}\n\n"
        f"The gradient of 25 is {noise:.0f} times less noisy, final returns spread {spread:.1f} times less far, and a "
        f"transition costs {cost:.0f} times less."
    )


WRITERS: dict[str, Callable[[], str]] = {
    "all rows": all_rows,
    "peers": peers,
    "importance": lambda: rows_table("importance", "sampling"),
    "sizes": sizes,
    "scaling": scaling,
    "start": start,
    "recorded": recorded,
    "learning": learning,
    "market": lambda: rows_table("market"),
    "market learning": market_learning,
    "market task": market_task,
    "games": games,
    "order search": order_search,
    "order compliance": order_compliance,
    "defence score": defence_score,
    "one or many": one_or_many,
    "network": lambda: rows_table("workflows"),
}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
