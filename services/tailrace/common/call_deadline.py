"""One deadline for all requests that a call makes one after the other (docs/controller.md#a-container-that-is-away).

A request repeats what may pass for a minute. A call that makes several of them would wait for the sum; within
`call_deadline` each of them gets the time that is left. Within `request_deadline` each gets that much at most.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class _Deadline:
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.ends_s = 0.0
        self.restart()

    def restart(self) -> None:
        self.ends_s = asyncio.get_running_loop().time() + self.seconds


_CURRENT: contextvars.ContextVar[_Deadline | None] = contextvars.ContextVar("call deadline", default=None)
_REQUEST_S: contextvars.ContextVar[float] = contextvars.ContextVar("request deadline", default=math.inf)


@contextlib.contextmanager
def call_deadline(seconds: float) -> Iterator[None]:
    """Bound the requests of this block and of the tasks that it starts, unless those call `without_deadline`."""
    before = _CURRENT.set(_Deadline(seconds))
    try:
        yield
    finally:
        _CURRENT.reset(before)


@contextlib.contextmanager
def request_deadline(seconds: float) -> Iterator[None]:
    """Bound each request of this block by itself, beside the deadline of the call.

    Long work whose requests are answered goes on; a request that is repeated in vain ends early.
    """
    before = _REQUEST_S.set(seconds)
    try:
        yield
    finally:
        _REQUEST_S.reset(before)


def without_deadline() -> None:
    """Free the current task of its call's deadlines: it works for longer than the call."""
    _CURRENT.set(None)
    _REQUEST_S.set(math.inf)


def restart_deadline() -> None:
    """Begin the deadline again, after a wait that has its own bound."""
    current = _CURRENT.get()
    if current is not None:
        current.restart()


def deadline_s() -> float:
    """Return the time of the event loop at which a request that begins now ends; infinity without a deadline."""
    current, request_s = _CURRENT.get(), _REQUEST_S.get()
    ends_s = math.inf if current is None else current.ends_s
    return ends_s if math.isinf(request_s) else min(ends_s, asyncio.get_running_loop().time() + request_s)
