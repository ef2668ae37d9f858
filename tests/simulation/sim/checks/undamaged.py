"""Nothing is reported as damaged or lost where nothing was damaged (docs/design.md#invariants)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from sim.violations import Violation
from tailrace.common.errors import DataError


@contextlib.contextmanager
def undamaged(who: str) -> Iterator[None]:
    """Raise Violation when the code inside reports damage or loss."""
    try:
        yield
    except DataError as error:
        raise Violation(f"{who} reports {type(error).__name__}, and nothing was damaged: {error}") from error
