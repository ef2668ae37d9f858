"""Print progress on standard error, so that standard output holds only results."""

from __future__ import annotations

import sys


def say(message: str) -> None:
    """One line of progress."""
    print(f"cluster: {message}", file=sys.stderr, flush=True)
