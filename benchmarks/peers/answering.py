"""How the side of a peer talks: one line of JSON asks, one answers; it ends with its input."""

import json
import sys
from collections.abc import Callable, Mapping
from typing import Any

Answer = Callable[..., dict[str, Any]]
"""Does the work that its arguments ask for; returns its `counts` and `seconds`."""


def serve(answers: Mapping[str, Answer], version: str) -> None:
    """Answer every question of the input; `what` names the kind of work, the rest are its arguments."""
    for line in sys.stdin:
        asked = json.loads(line)
        print(json.dumps({**answers[asked.pop("what")](**asked), "version": version}), flush=True)
