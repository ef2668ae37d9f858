"""What a workload reports when a promise is broken."""

from __future__ import annotations


class Violation(AssertionError):
    """A promise of the product was broken in a simulated run."""


def require(condition: bool, promise: str) -> None:
    """Raise Violation unless the promise was kept."""
    if not condition:
        raise Violation(promise)
