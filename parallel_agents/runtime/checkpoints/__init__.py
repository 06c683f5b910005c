"""Checkpoints: what a run is at an epoch boundary, on disk, checked when it is read.

store    files, manifests, hashes, rotation; knows nothing of agents
packing  nested values of unknown form as JSON and arrays
memory   the rows of rings as append-only segments
contents what a run puts into a checkpoint and takes out of it
writing  a checkpoint is taken at once and written beside the run
"""

from parallel_agents.runtime.checkpoints.contents import restore, why_not
from parallel_agents.runtime.checkpoints.writing import Checkpointer

__all__ = ["Checkpointer", "restore", "why_not"]
