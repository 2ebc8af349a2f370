"""One kernel, one input, one verdict: one-shot runs on any duck."""
