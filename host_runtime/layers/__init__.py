"""The layers of DeepSeek-V3.2: each takes its own tensors from the checkpoint."""
