"""Routed experts of a checkpoint, cut into one packed weight cache per duck."""
