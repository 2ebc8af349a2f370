"""Words of a mailbox's flags, for the CPU's side; needs no Triton.

The same numbers stand in ops/gpu/mailbox.py, transport/duckhost_lanes.h, cuda/echo.c and
cuda/card.c; a test compares them.
"""

POSTED, LAYER, ANSWERED, FLAG_WORDS = 0, 1, 16, 32
