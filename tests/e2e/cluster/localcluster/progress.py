"""What a command tells while it works: lines on standard error, so that results on standard output stay alone."""

from __future__ import annotations

import sys


def say(message: str) -> None:
    """One line of progress."""
    print(f"cluster: {message}", file=sys.stderr, flush=True)
