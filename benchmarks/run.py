"""Run every benchmark and write `benchmarks/results/latest.json`.

python -m benchmarks.run              all of them
python -m benchmarks.run engine       those of benchmarks/engine_bench.py
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def main(wanted: list[str]) -> None:
    names = sorted(path.stem for path in HERE.glob("*_bench.py"))
    chosen = [name for name in names if not wanted or name.removesuffix("_bench") in wanted]
    target = HERE / "results" / "latest.json"
    rows: list[dict[str, Any]] = []
    for name in chosen:
        for line in importlib.import_module(f"benchmarks.{name}").rows():
            goal = "" if line["goal"] is None else f"  (goal {line['goal']})"
            print(f"{line['ratio']:>10.2f} {line['unit']:<16} {line['name']}{goal}", flush=True)
            rows.append(line)
    if wanted and target.exists():  # those of other benchmarks stay as they were measured
        fresh = {line["name"] for line in rows}
        rows = [line for line in json.loads(target.read_text()) if line["name"] not in fresh] + rows
    target.parent.mkdir(exist_ok=True)
    target.write_text(json.dumps(rows, indent=1) + "\n")
    print(f"written to {target}")


if __name__ == "__main__":
    main(sys.argv[1:])
