"""The games and templates of the package: `from parallel_agents.examples.treasure_hunt import TreasureHunt`.

An installed package has the files here; a checkout has them in its `examples/` folder.
"""

from pathlib import Path

_checkout = Path(__file__).parents[2]
if (_checkout / "pyproject.toml").is_file() and (_checkout / "examples").is_dir():
    __path__.append(str(_checkout / "examples"))
