"""Predicts what a fleet would give: memory, speed, load time, and what limits it."""
