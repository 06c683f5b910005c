"""CONDUCT: the loop, its schedule, and where rounds are computed; it knows only protocols and models."""
