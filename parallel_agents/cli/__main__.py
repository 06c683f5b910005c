"""`python -m parallel_agents.cli`"""

import sys

from parallel_agents.cli import main

if __name__ == "__main__":
    sys.exit(main())
