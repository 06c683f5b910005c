"""Environments of other libraries as ours (Gymnasium, PettingZoo, sorrel), and ours as theirs."""
