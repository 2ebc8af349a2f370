"""For all tests: output must not depend on the terminal that started them."""

from __future__ import annotations

import os
import signal

# Test workers get COLUMNS=80, which asks duckctl's tables to wrap; pipes of users have none.
os.environ.pop("COLUMNS", None)

# A shell lets background commands ignore Ctrl-C, and so would every command that tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
