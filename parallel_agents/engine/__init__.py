"""The engine: agents of a run, the loop over turns, epochs and rounds, and the run around it."""
