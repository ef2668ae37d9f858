"""The renewals of a real worker: a thread with an event loop and API connections of its own (design §9).

What happens on the worker's loop, or does not, has no part in it but the beats of its heart.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING

import structlog

from tailrace.common import limits
from tailrace.common.errors import NotOwnerError, TailraceError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

    from tailrace.cluster.renewal import Renewer

_logger = structlog.get_logger()


class RenewalThread:
    """Implements `Renewals`. ``connect`` makes the renewer on the thread's own loop, and closes what it needed."""

    def __init__(self, connect: Callable[[], AbstractAsyncContextManager[Renewer]]) -> None:
        self._connect = connect
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._renewer: Renewer | None = None
        self._leaving = False
        self._superseded = asyncio.Event()

    async def start(self) -> None:
        """See Renewals.start."""
        loop = asyncio.get_running_loop()
        registered: asyncio.Future[None] = loop.create_future()
        ended = asyncio.Event()
        self._ended = ended

        def tell(error: TailraceError | None) -> None:
            if registered.done():
                return
            if error is None:
                registered.set_result(None)
            else:
                registered.set_exception(error)

        def post(callback: Callable[..., None], *args: object) -> None:
            with contextlib.suppress(RuntimeError):  # the worker's loop is closed: nobody listens
                loop.call_soon_threadsafe(callback, *args)

        def run() -> None:
            try:
                asyncio.run(self._run(lambda error: post(tell, error), lambda: post(self._superseded.set)))
            finally:
                post(ended.set)

        self._thread = threading.Thread(target=run, name="tailrace-renewals", daemon=True)
        self._thread.start()
        await registered

    def leave(self) -> None:
        """See Renewals.leave."""
        self._leaving = True
        if self._renewer is not None:
            self._renewer.leaving = True

    async def wait_superseded(self) -> None:
        """See Renewals.wait_superseded."""
        await self._superseded.wait()

    async def stop(self) -> None:
        """See Renewals.stop. A thread that does not end in time is left behind; the process's end ends it."""
        if self._thread is None:
            return
        loop, task = self._loop, self._task
        if loop is not None and task is not None:
            with contextlib.suppress(RuntimeError):  # it has ended already
                loop.call_soon_threadsafe(task.cancel)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._ended.wait(), 2 * limits.KUBERNETES_CALL_DEADLINE_S)

    async def _run(self, tell: Callable[[TailraceError | None], None], superseded: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        try:
            async with self._connect() as renewer:
                renewer.leaving = self._leaving
                self._renewer = renewer
                await renewer.register()
                tell(None)
                await renewer.run()
        except asyncio.CancelledError:
            return  # by `stop`
        except NotOwnerError as error:
            _logger.error("worker_superseded", reason=str(error))
            superseded()
        except TailraceError as error:
            tell(error)
        except BaseException:
            superseded()  # nobody renews any more: as good as superseded
            raise
        finally:
            tell(UnavailableError("the renewals ended"))
