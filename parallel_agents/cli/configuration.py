"""`parallel-agents config`: the resolved configuration, with the origin of each value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from typing import Any

from parallel_agents.cli.commands import ShowConfig
from parallel_agents.cli.output import print_result
from parallel_agents.cli.target import load_algorithm, load_target
from parallel_agents.cli.train import option_layers
from parallel_agents.core.config import merge
from parallel_agents.core.files import plain


def show_config(options: ShowConfig) -> None:
    """Print every value of the configuration and where it comes from."""
    layers = option_layers(options)
    given = merge(*(layer for _, layer in layers))
    load_algorithm(given)
    make = load_target(options.target)
    environment = make(config=given)
    sections = environment.config.as_dict()
    own = getattr(environment.agents[0].model, "options", None)
    if is_dataclass(own) and not isinstance(own, type):
        sections["model"] = {**asdict(own), **sections["model"]}
    layers.insert(0, (make.__name__, dict(environment.defaults(given))))
    rows = [
        {"key": f"{section}.{key}", "value": plain(value), "origin": _origin(layers, section, key)}
        for section, keys in sections.items()
        for key, value in keys.items()
    ]
    width = max(len(row["key"]) for row in rows)
    values = max(min(40, len(str(row["value"]))) for row in rows)
    text = "".join(f"{row['key']:<{width}}  {row['value']!s:<{values}}  {row['origin']}\n" for row in rows)
    print_result({"target": options.target, "config": rows}, text, as_json=options.json)


def _origin(layers: list[tuple[str, dict[str, Any]]], section: str, key: str) -> str:
    """Return the last source that gives a key."""
    found = [name for name, layer in layers if isinstance(layer.get(section), Mapping) and key in layer[section]]
    return found[-1] if found else "default"
