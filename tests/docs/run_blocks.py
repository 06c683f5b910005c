"""Run Python blocks of the documentation with the package in a folder: `python run_blocks.py FOLDER`, a line for each.

A request names the block's text, the folder to run it in and the modules that it may not import; the answer is the
traceback, or null. A block that trains without a single update shows nothing and is told too.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def main(folder: Path) -> None:
    """Answer requests until the input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a block prints is no answer
    sys.path.insert(0, str(folder))
    import parallel_agents

    assert Path(parallel_agents.__file__).is_relative_to(folder), parallel_agents.__file__
    sys.path[:] = [entry for entry in sys.path if Path(entry) != folder]  # nothing else that lies there
    for line in sys.stdin:
        answers.write(json.dumps(run(json.loads(line))) + "\n")
        answers.flush()


def run(request: dict[str, Any]) -> str | None:
    """Return the traceback of a block; None if it ends well."""
    os.chdir(request["folder"])
    loaded = {name: sys.modules.pop(name, None) for name in request["hidden"]}
    sys.modules.update(dict.fromkeys(loaded))  # type: ignore[arg-type] # importing them fails, as if not installed
    try:
        with count_updates() as updates:
            exec(compile(request["text"], "<documentation>", "exec", dont_inherit=True), {"__name__": "documentation"})
        assert "check_environment" in request["text"] or all(updates), f"runs made {updates} updates"
    except BaseException:  # also SystemExit: whatever ends a block is told
        return traceback.format_exc()
    finally:
        for name, module in loaded.items():
            del sys.modules[name]
            if module is not None:
                sys.modules[name] = module
    return None


@contextmanager
def count_updates() -> Iterator[list[int]]:
    """Give a list to which every run adds its updates when it ends."""
    from parallel_agents.engine.run import Run

    until, updates = Run.until, list[int]()

    def counted(self: Run, *words: Any, **options: Any) -> Any:
        summary = until(self, *words, **options)
        updates.append(summary["updates"])
        return summary

    Run.until = counted  # type: ignore[method-assign]
    try:
        yield updates
    finally:
        Run.until = until  # type: ignore[method-assign]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
