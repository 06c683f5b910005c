"""Run the command line: `python -m parallel_agents`."""

import sys
from pathlib import Path

from parallel_agents.cli import main
from parallel_agents.core import PACKAGE

if __name__ == "__main__":
    # `python -m` puts the current folder first on the path: its files would replace modules that are imported later.
    # It stays there only if this package runs from its source folder, not installed, so that workers find it.
    if not sys.flags.safe_path and Path(sys.path[0]) != PACKAGE.parent:
        del sys.path[0]
    sys.exit(main())
