"""Benchmarks of the ducks' kernels on this machine."""
