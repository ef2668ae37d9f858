"""Threads for checks of object stores, which block. An endpoint takes only a part of them, however slow it is.

A thread may outlast its check: the resolver of names knows no deadline of ours. It counts until it has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from tailrace.common import limits
from tailrace.common.errors import UnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

T = TypeVar("T")


@dataclass(slots=True)
class _Endpoint:
    """``users``: checks that run or wait."""

    slots: asyncio.Semaphore
    users: int = 0


class CheckThreads:
    """Runs checks: `limits.TIER2_CHECK_THREADS` at a time, and `limits.TIER2_ENDPOINT_CHECKS_MAX` of one endpoint."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(limits.TIER2_CHECK_THREADS, thread_name_prefix="tailrace-tier2")
        self._slots = asyncio.Semaphore(limits.TIER2_CHECK_THREADS)
        self._endpoints: dict[str, _Endpoint] = {}

    @property
    def endpoints(self) -> Collection[str]:
        """Return the endpoints that have checks."""
        return self._endpoints.keys()

    def close(self) -> None:
        """Stop the threads; checks in progress go on until they end."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def run(self, endpoint: str, check: Callable[[], T], deadline_s: float) -> T:
        """Return what `check` returns in a thread, or raise what it raises.

        Raises:
            UnavailableError: it did not begin within `limits.TIER2_CHECK_QUEUE_S`, which says nothing of the endpoint.
            TimeoutError: it did not end within `deadline_s` of its beginning.
        """
        held = await self._taken(endpoint)
        running = asyncio.get_running_loop().run_in_executor(self._threads, check)
        running.add_done_callback(functools.partial(_ended, held))
        # Unlike a plain await, this leaves `running` alone when it is over or cancelled: the thread still runs then.
        await asyncio.wait([running], timeout=deadline_s)
        if not running.done():
            raise TimeoutError
        return running.result()

    async def _taken(self, endpoint: str) -> contextlib.ExitStack:
        """Wait for a thread; closing the result gives it back. Raises UnavailableError."""
        own = self._endpoints.get(endpoint)
        if own is None:
            own = self._endpoints[endpoint] = _Endpoint(asyncio.Semaphore(limits.TIER2_ENDPOINT_CHECKS_MAX))
        own.users += 1
        with contextlib.ExitStack() as held:
            held.callback(self._leave, endpoint)
            try:
                async with asyncio.timeout(limits.TIER2_CHECK_QUEUE_S):
                    await own.slots.acquire()
                    held.callback(own.slots.release)
                    await self._slots.acquire()
                    held.callback(self._slots.release)
            except TimeoutError as error:
                raise UnavailableError(f"the check of {endpoint} waits for other checks of object stores") from error
            return held.pop_all()

    def _leave(self, endpoint: str) -> None:
        own = self._endpoints[endpoint]
        own.users -= 1
        if not own.users:
            del self._endpoints[endpoint]


def _ended(held: contextlib.ExitStack, running: asyncio.Future[Any]) -> None:
    held.close()
    if not running.cancelled():
        running.exception()  # its caller has gone on when the check was late
