"""Benchmarks of the host side at full size, with random weights and emulated ducks."""
