"""Renews a worker's Lease from a thread with an event loop and API connections of its own.

See docs/design.md#failure-detection.

Load on the worker's event loop does not delay renewals; the thread only reads the loop's heartbeats.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import structlog

from tailrace.common import limits
from tailrace.common.errors import NotOwnerError, TailraceError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

    from tailrace.cluster.renewal import Renewer

_logger = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Callbacks:
    """Callbacks that run on the worker's loop."""

    registered: Callable[[TailraceError | None], None]
    left: Callable[[], None]
    superseded: Callable[[], None]


class RenewalThread:
    """Implements `Renewals`. ``connect`` makes the renewer on the thread's own loop, and closes what it needed."""

    def __init__(self, connect: Callable[[], AbstractAsyncContextManager[Renewer]]) -> None:
        self._connect = connect
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._renewer: Renewer | None = None
        self._leaving = False
        self._left = asyncio.Event()
        self._superseded = asyncio.Event()

    async def start(self) -> None:
        """See Renewals.start."""
        loop = asyncio.get_running_loop()
        registered: asyncio.Future[None] = loop.create_future()
        ended = asyncio.Event()
        self._ended = ended

        def set_registered(error: TailraceError | None) -> None:
            if registered.done():
                return
            if error is None:
                registered.set_result(None)
            else:
                registered.set_exception(error)

        def post(callback: Callable[..., None], *args: object) -> None:
            with contextlib.suppress(RuntimeError):  # the worker's loop is closed
                loop.call_soon_threadsafe(callback, *args)

        def run() -> None:
            try:
                calls = (set_registered, self._left.set, self._superseded.set)
                asyncio.run(self._run(_Callbacks(*(partial(post, call) for call in calls))))
            finally:
                post(ended.set)

        self._thread = threading.Thread(target=run, name="tailrace-renewals", daemon=True)
        self._thread.start()
        await registered

    def leave(self) -> None:
        """See Renewals.leave."""
        self._leaving = True
        loop, renewer = self._loop, self._renewer
        if loop is not None and renewer is not None:
            with contextlib.suppress(RuntimeError):  # it has ended already
                loop.call_soon_threadsafe(renewer.leave)

    async def wait_left(self) -> None:
        """See Renewals.wait_left."""
        await self._left.wait()

    async def wait_superseded(self) -> None:
        """See Renewals.wait_superseded."""
        await self._superseded.wait()

    async def stop(self) -> None:
        """See Renewals.stop. A thread that does not end in time ends with the process."""
        if self._thread is None:
            return
        loop, task = self._loop, self._task
        if loop is not None and task is not None:
            with contextlib.suppress(RuntimeError):  # it has ended already
                loop.call_soon_threadsafe(task.cancel)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._ended.wait(), 2 * limits.KUBERNETES_CALL_DEADLINE_S)

    async def _run(self, worker: _Callbacks) -> None:
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        try:
            async with self._connect() as renewer:
                self._renewer = renewer  # before the check: `leave` may be called meanwhile
                if self._leaving:
                    renewer.leave()
                await renewer.register()
                worker.registered(None)
                await _renew(renewer, worker.left)
        except asyncio.CancelledError:
            return  # by `stop`
        except NotOwnerError as error:
            _logger.error("worker_superseded", reason=str(error))
            worker.superseded()
        except TailraceError as error:
            worker.registered(error)
        except BaseException:
            worker.superseded()  # no renewals any more: the worker must end as if superseded
            raise
        finally:
            worker.registered(UnavailableError("the renewals ended"))


async def _renew(renewer: Renewer, left: Callable[[], None]) -> None:
    """Renew until cancelled; call `left` when the Lease says that the worker leaves. Raises as `Renewer.run`."""

    async def report_left() -> None:
        await renewer.left.wait()
        left()

    reporting = asyncio.get_running_loop().create_task(report_left())
    try:
        await renewer.run()
    finally:
        reporting.cancel()
