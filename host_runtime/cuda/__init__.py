"""The model on a CUDA card: static caches, captured decode steps, expert calls through flags."""
