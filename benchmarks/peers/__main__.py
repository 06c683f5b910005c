"""Install a peer by hand; see the package."""

import sys
from functools import partial

from benchmarks.peers import PACKAGES, cpprb, peer_python, sorrel_python

MAKERS = {"cpprb": cpprb, "sorrel": partial(sorrel_python, any_size=True)}
MAKERS |= {name: partial(peer_python, name) for name in PACKAGES}

if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in MAKERS:
        raise SystemExit(f"python -m benchmarks.peers {{{'|'.join(MAKERS)}}}")
    print(f"ready: {MAKERS[sys.argv[1]](*sys.argv[2:])}")
