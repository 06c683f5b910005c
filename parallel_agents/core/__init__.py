"""Values, configuration, seeding, errors and files: what every other part is built on."""

from pathlib import Path

__all__ = ["PACKAGE", "__version__"]

__version__ = "0.1.0"
PACKAGE = Path(__file__).parents[1]
"""The folder of this package."""
