"""The demo: the whole chain on this machine, from a checkpoint to two answered prompts."""
