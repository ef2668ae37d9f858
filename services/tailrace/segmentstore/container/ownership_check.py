"""What a container answers is never more than a bound behind another owner of its log (design §9).

Whoever takes an object log over does so without asking its owner, which may not notice for as long as it has nothing to
write. So it answers only when it was surely the owner a moment ago. While a container is used, the moment is kept
fresh in the background; what is asked after a longer silence, or after the process stood still, waits for a look.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tailrace.common import limits
from tailrace.common.errors import FencedError, UnavailableError, WrongHostError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tailrace.log.port import DurableLog


class OwnershipCheck:
    """Looks for later owners of one container's log; ``lost`` is called with the error when there is one."""

    def __init__(self, container_id: int, log: DurableLog, lost: Callable[[Exception], None]) -> None:
        self._container_id = container_id
        self._log = log
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self._used_at_s = self._loop.time()
        self._looking: asyncio.Task[None] | None = None
        self._ended = False
        self.waiting_reads = 0
        """Reads that wait at a tail: they must hear of a later owner, too."""

    def may_answer(self) -> bool:
        """Whether this was surely the owner within the last ``limits.OWNER_SEEN_MAX_S``."""
        owned_at_s = self._log.owned_at_s
        if owned_at_s == float("inf"):
            return True
        self._used_at_s = now_s = self._loop.time()
        return now_s - owned_at_s <= limits.OWNER_SEEN_MAX_S

    async def wait(self) -> None:
        """Wait until `may_answer`, or until the container stops.

        Raises:
            WrongHostError: nobody tells for ``limits.OWNER_ANSWER_DEADLINE_S``; whoever asked may ask again.
        """
        ends_at_s = self._loop.time() + limits.OWNER_ANSWER_DEADLINE_S
        while not self._ended and not self.may_answer():
            left_s = ends_at_s - self._loop.time()
            if left_s <= 0:
                raise WrongHostError(f"container {self._container_id}: it cannot be told now whether it runs here")
            await asyncio.wait([self._look()], timeout=left_s)

    async def run(self) -> None:
        """Look now and then, while the container is used; ends at once for a log that nobody can take."""
        while self._log.owned_at_s != float("inf"):
            await asyncio.sleep(limits.OWNER_LOOK_INTERVAL_S)
            now_s = self._loop.time()
            used = self.waiting_reads > 0 or now_s - self._used_at_s < limits.OWNER_IDLE_S
            if used and now_s - self._log.owned_at_s >= limits.OWNER_LOOK_INTERVAL_S:
                await asyncio.wait([self._look()])

    def stop(self) -> None:
        """The container stopped: nobody waits any more."""
        self._ended = True
        if self._looking is not None and self._looking is not asyncio.current_task():
            self._looking.cancel()

    def _look(self) -> asyncio.Task[None]:
        """One look for all who wait."""
        if self._looking is None or self._looking.done():
            self._looking = self._loop.create_task(self._confirm())
        return self._looking

    async def _confirm(self) -> None:
        try:
            async with asyncio.timeout(limits.OWNER_LOOK_DEADLINE_S):
                await self._log.confirm_owner()
        except FencedError as error:
            self._lost(error)
        except (UnavailableError, TimeoutError) as error:
            if self._log.owned_at_s == float("-inf"):
                self._lost(error)  # the log has ended, for whatever reason
            else:
                await asyncio.sleep(limits.OWNER_LOOK_RETRY_S)  # whoever waits begins another one
