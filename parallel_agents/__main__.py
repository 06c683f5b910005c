"""Run the command line with `python -m parallel_agents`."""

import sys

from parallel_agents.cli import main

if __name__ == "__main__":
    sys.exit(main())
