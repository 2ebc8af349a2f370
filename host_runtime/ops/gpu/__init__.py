"""Triton operations of the CUDA path, each beside its plain-torch reference in host_runtime.ops.

Imported only where Triton is installed. No operation uses atomics for results: every sum has one
order, so equal inputs give equal bits.
"""
