"""Switching ducks on and off: one interface, and a backend for each way to do it."""
