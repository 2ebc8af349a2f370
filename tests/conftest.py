"""For all tests: output must not depend on the terminal that started them."""

from __future__ import annotations

import os

# Test workers get COLUMNS=80, which asks duckctl's tables to wrap; pipes of users have none.
os.environ.pop("COLUMNS", None)
