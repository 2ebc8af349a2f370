"""Plain-torch operations on tensors: the reference arithmetic, on any device."""
