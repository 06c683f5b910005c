"""Foreign environments as ours: Gymnasium."""
