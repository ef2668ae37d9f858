"""Run coroutines of other threads on an event loop in its own thread."""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import os
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar

from tailrace.common import limits
from tailrace.common.errors import IllegalStateError

T = TypeVar("T")


class Portal:
    """Run coroutines on an event loop in its own thread.

    It belongs to the process that created it: a forked child has the object, but not the thread.
    """

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._process = os.getpid()
        self._closed = False
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=_serve, args=(self._loop,), name="tailrace client", daemon=True)
        self._thread.start()
        self._at_exit = _close_at_exit(self)

    @property
    def usable(self) -> bool:
        """Return whether this process can make calls."""
        return not self._closed and os.getpid() == self._process

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine and return its result; an interrupt of the caller cancels it.

        Raises:
            IllegalStateError: the client is closed, or was closed during the call; or the caller is the client's own
                thread, or a forked child.
        """
        try:
            self._check_caller()
            with self._lock:
                if self._closed:
                    raise IllegalStateError("the client is closed")
                future = asyncio.run_coroutine_threadsafe(work, self._loop)
        except IllegalStateError:
            work.close()
            raise
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise IllegalStateError("the client was closed during the call") from None
        except BaseException:
            future.cancel()
            raise

    def _check_caller(self) -> None:
        if os.getpid() != self._process:
            raise IllegalStateError("a client cannot be used after a fork: create a new one in the child")
        if threading.current_thread() is self._thread:
            raise IllegalStateError("the client's own thread cannot make blocking calls: use the asyncio client there")

    def call(self, function: Callable[[], T]) -> T:
        """Call a function on the loop."""

        async def work() -> T:
            return function()

        return self.run(work())

    def close(self) -> None:
        """Cancel all calls, and stop the loop and the thread. Does nothing in a second call or in a forked child."""
        if os.getpid() != self._process:
            return  # the parent shares the loop's descriptors: do not close them
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._loop.call_soon_threadsafe(self._loop.stop)
        atexit.unregister(self._at_exit)
        self._thread.join(limits.BLOCKING_CLOSE_DEADLINE_S)


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    """Run the loop until it is stopped, then cancel remaining tasks, so that no caller waits for ever."""
    try:
        loop.run_forever()
    finally:
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        if tasks:
            loop.run_until_complete(asyncio.wait(tasks, timeout=limits.BLOCKING_CLOSE_DEADLINE_S / 2))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


def _close_at_exit(portal: Portal) -> Callable[[], None]:
    """Close the portal at the program's exit if it is open, without keeping it alive until then."""
    reference = weakref.ref(portal)

    def close() -> None:
        left = reference()
        if left is not None:
            left.close()

    atexit.register(close)
    return close


async def next_of(source: AsyncIterator[T]) -> T | None:
    """Return the next item; None at the end."""
    return await anext(source, None)
