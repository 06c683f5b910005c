"""Checkpoints: a run at an epoch boundary, on disk, checked when it is read.

contents       what a run puts into a checkpoint, and how it continues from one
segments       the rows of replay buffers as append-only files
store          files, manifests, hashes, rotation; knows nothing of agents
writer         copies a run at once, and writes the copy beside it
"""

from parallel_agents.checkpoint.contents import checkpoint_obstacle, restore
from parallel_agents.checkpoint.writer import Checkpointer

__all__ = ["Checkpointer", "checkpoint_obstacle", "restore"]
