"""Bound the workflow steps that run at a time, so that steps which wait long do not stop the others."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from tailrace.common import limits

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class StepSlots:
    """Slots for steps.

    A step that lasts longer than `limits.WORKFLOW_STEP_SLOW_S` gives its slot to another one and goes on. Most likely
    it waits for a container that is away and needs no processor. At most `limits.WORKFLOW_SLOW_STEPS_MAX` steps go on
    without a slot; the others keep theirs.
    """

    def __init__(self, count: int | None = None) -> None:
        self._free = asyncio.Semaphore(limits.WORKFLOW_STEPS_CONCURRENT_MAX if count is None else count)
        self._slow = 0

    @property
    def slow(self) -> int:
        """Return how many steps go on without a slot."""
        return self._slow

    @contextlib.asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Wait for a slot, and hold it for the block or until the step is slow."""
        await self._free.acquire()
        held = True

        def give_up() -> None:
            nonlocal held
            if self._slow < limits.WORKFLOW_SLOW_STEPS_MAX:
                held = False
                self._slow += 1
                self._free.release()

        timer = asyncio.get_running_loop().call_later(limits.WORKFLOW_STEP_SLOW_S, give_up)
        try:
            yield
        finally:
            timer.cancel()
            if held:
                self._free.release()
            else:
                self._slow -= 1
