"""Deadlines of requests to an object store: the store's own, and shorter ones of callers.

A caller's deadline cancels the request. `deadline_passed` distinguishes it from a caller that no longer needs the
answer.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

from tailrace.common import limits
from tailrace.common.errors import DeadlineError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

_current: Final[ContextVar[tuple[asyncio.Timeout, ...]]] = ContextVar("request_deadline", default=())
"""Of all blocks around the running code: any of them may be the one that cancels it."""


def call_deadline_s(length_bytes: int) -> float:
    """Return how long a store may take for one call that moves so many bytes; the same for all that is short."""
    by_length_s = length_bytes / limits.STORAGE_CALL_BYTES_PER_S
    return min(max(limits.STORAGE_CALL_DEADLINE_S, by_length_s), limits.STORAGE_CALL_DEADLINE_MAX_S)


@asynccontextmanager
async def request_deadline(what: str, seconds: float) -> AsyncIterator[None]:
    """Cancel the requests of the block when it takes longer. Raises DeadlineError then, which names `what`."""
    try:
        async with asyncio.timeout(seconds) as timeout:
            token = _current.set((*_current.get(), timeout))
            try:
                yield
            finally:
                _current.reset(token)
    except TimeoutError as error:
        raise DeadlineError(f"{what}: no answer in {seconds:g} s") from error


def deadline_passed() -> bool:
    """Return whether the running code is cancelled because the deadline of a `request_deadline` around it passed."""
    return any(timeout.expired() for timeout in _current.get())
