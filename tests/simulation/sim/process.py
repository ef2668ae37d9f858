"""Simulated processes: who owns which task, handle, file and connection."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class ProcessKilledError(BaseException):
    """Raised into code of a process that is dead; nothing that it still does has an effect."""


class SimProcess:
    """One incarnation of a program. Everything spawned in it, directly or not, dies with it."""

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop) -> None:
        self.name = name
        self.alive = True
        self.paused = False
        """Its callbacks are held back (`SimLoop.hold`), as those of a stopped process or a stopped machine are."""
        self.tasks: dict[asyncio.Task[Any], contextvars.Context] = {}
        self._loop = loop
        self._context = contextvars.Context()
        self._context.run(PROCESS.set, self)

    def spawn(self, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run a coroutine inside the process."""
        return self._loop.create_task(coroutine, context=self._context.copy())

    def check(self) -> None:
        """Raise ProcessKilledError when the process is dead."""
        if not self.alive:
            raise ProcessKilledError(self.name)

    def abandon_tasks(self) -> None:
        """Drop the tasks of a dead process: their coroutines end without any effect on the world."""
        for task, context in list(self.tasks.items()):
            abandon(task, context)
        self.tasks.clear()

    def __repr__(self) -> str:
        return f"<{self.name}{'' if self.alive else ' (dead)'}{' (paused)' if self.paused else ''}>"


def abandon(task: asyncio.Task[Any], context: contextvars.Context) -> None:
    """End the coroutine of a task of a dead process."""
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    # A cleanup that awaits ("coroutine ignored GeneratorExit") or fails is no news in a dead process.
    with contextlib.suppress(BaseException):
        context.run(task.get_coro().close)


PROCESS: contextvars.ContextVar[SimProcess | None] = contextvars.ContextVar("process", default=None)
"""The process that the running code belongs to; None: the world itself."""


def current_process() -> SimProcess | None:
    """The process that the running code belongs to."""
    return PROCESS.get()
