"""How many requests an object store got, how long they took, how they failed (docs/operations/observe.md#metrics)."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Final

from obstore.exceptions import PermissionDeniedError, UnauthenticatedError

from tailrace.common.errors import (
    AlreadyExistsError,
    CorruptionError,
    DeadlineError,
    NotFoundError,
    ObjectNotDeletedError,
    UnavailableError,
)

OPERATIONS: Final = ("put", "get", "list", "delete")
ERRORS: Final = ("unavailable", "deadline", "denied", "corrupt", "other")
"""Kinds of errors, as `kind_of` returns them."""


def kind_of(error: BaseException | None) -> str:
    """Return the kind of an error of a request; empty for an answer, also that there is no such object.

    A cancelled request has no error: the one who made it no longer needs it. `ContactStore` reports one that its
    caller's deadline cancelled as a DeadlineError.
    """
    match error:
        case None | NotFoundError() | AlreadyExistsError() | StopAsyncIteration() | asyncio.CancelledError():
            return ""
        case DeadlineError():
            return "deadline"
        case ObjectNotDeletedError():
            return "other"
        case UnavailableError(__cause__=PermissionDeniedError() | UnauthenticatedError()):
            return "denied"
        case UnavailableError():
            return "unavailable"
        case CorruptionError():
            return "corrupt"
    return "other"


class StoreFigures:
    """Figures of the requests to an object store since the process started; pure.

    ``requests`` and ``seconds`` are by operation, ``errors`` by operation and kind. ``seconds`` is how long all
    requests together took; a list counts without the pauses of its reader.
    """

    def __init__(self) -> None:
        self.requests: Counter[str] = Counter()
        self.seconds: dict[str, float] = dict.fromkeys(OPERATIONS, 0.0)
        self.errors: Counter[tuple[str, str]] = Counter()

    def count(self, operation: str) -> None:
        """Count a request that begins."""
        self.requests[operation] += 1

    def ended(self, operation: str, seconds: float, error: BaseException | None) -> None:
        """Add the time of a request, or of a page of a list, and its error if it failed."""
        self.seconds[operation] += seconds
        if kind := kind_of(error):
            self.errors[operation, kind] += 1
