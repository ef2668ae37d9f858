"""Retry operations with backoff, jitter and a deadline (docs/design.md#bounds)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from tailrace.common import call_deadline, limits
from tailrace.common.errors import DeadlineError, IllegalStateError, TailraceError, UnavailableError

if TYPE_CHECKING:
    from tailrace.common.ports import Entropy

T = TypeVar("T")
E = TypeVar("E", bound=TailraceError)


def without_traceback(error: E) -> E:
    """Return the error without its traceback: an error that is raised many times would collect tracebacks."""
    return error.with_traceback(None)


def as_known(error: Exception, work: str) -> TailraceError:
    """Return the error that ends a background task, for those who wait for its work: no other caller would see it."""
    if isinstance(error, TailraceError):
        return error
    known = IllegalStateError(f"{work} ended with an unexpected error: {type(error).__name__}: {error}")
    known.__cause__ = error
    return known


class Backoff:
    """Delays that double up to a maximum; jitter covers the upper half of each."""

    def __init__(
        self,
        entropy: Entropy,
        *,
        initial_s: float = limits.CLIENT_BACKOFF_INITIAL_S,
        maximum_s: float = limits.CLIENT_BACKOFF_MAX_S,
    ) -> None:
        self._entropy = entropy
        self._initial_s = initial_s
        self._maximum_s = maximum_s
        self._next_s = initial_s

    def next_delay_s(self) -> float:
        """Return the delay before the next attempt."""
        delay_s = self._next_s * (0.5 + self._entropy.uniform() / 2)
        self._next_s = min(self._maximum_s, self._next_s * 2)
        return delay_s

    def reset(self) -> None:
        """Return to the first delay after a success."""
        self._next_s = self._initial_s


class Attempts:
    """State of one operation's attempts.

    ``uncertain``: an earlier attempt ended without a reply, so it may have taken effect.
    """

    def __init__(self, entropy: Entropy, deadline_s: float) -> None:
        self.uncertain = False
        self._entropy = entropy
        self._backoff: Backoff | None = None  # most operations succeed at once
        self.ends_s = min(asyncio.get_running_loop().time() + deadline_s, call_deadline.deadline_s())
        """The operation's deadline, on the loop's clock."""

    @property
    def left_s(self) -> float:
        """Return the time left before the operation's deadline."""
        return self.ends_s - asyncio.get_running_loop().time()

    async def pause(self, error: TailraceError) -> None:
        """Wait before the next attempt. Raises `error` when the deadline is too near."""
        if self._backoff is None:
            self._backoff = Backoff(self._entropy)
        delay_s = self._backoff.next_delay_s()
        if delay_s >= self.left_s:
            raise error
        await asyncio.sleep(delay_s)


async def with_retries(operation: Callable[[Attempts], Awaitable[T]], entropy: Entropy, deadline_s: float) -> T:
    """Run `operation` until it succeeds, fails permanently, or the deadline passes.

    Raises:
        DeadlineError: no reply in time; with the reason why the attempt before failed, if there was one. Otherwise the
        operation's own error, the last one at the deadline.
    """
    attempts = Attempts(entropy, deadline_s)
    allowed_s = attempts.left_s
    before = ""
    while True:
        try:
            async with asyncio.timeout_at(attempts.ends_s):
                return await operation(attempts)
        except TimeoutError as error:
            if allowed_s <= 0:
                raise DeadlineError("the time of the call was over before this request began") from error
            raise DeadlineError(f"no reply within {allowed_s:.3g} s{before}") from error
        except UnavailableError as error:
            before = f"; before: {error}"
            await attempts.pause(error)
