"""Install a peer by hand; see the package."""

import sys
from functools import partial

from benchmarks.peers import cpprb, jax_python, sorrel_python

MAKERS = {"cpprb": cpprb, "jax": jax_python, "sorrel": partial(sorrel_python, any_size=True)}

if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in MAKERS:
        raise SystemExit(f"python -m benchmarks.peers {{{'|'.join(MAKERS)}}}")
    print(f"ready: {MAKERS[sys.argv[1]](*sys.argv[2:])}")
