"""Confirms ownership of a container's log, so that a fenced owner serves no stale reads (docs/design.md#stale-owners).

A new owner takes over an object log without the consent of the old one, which notices only when it writes. So a
container answers a read only if ownership was confirmed within ``limits.OWNER_SEEN_MAX_S``. While the container is in
use, ownership is confirmed in the background. A request after a longer idle time, or after the process was paused,
waits for a confirmation.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tailrace.common import limits
from tailrace.common.errors import FencedError, UnavailableError, WrongHostError
from tailrace.storage.request_deadline import request_deadline

if TYPE_CHECKING:
    from collections.abc import Callable

    from tailrace.log.port import DurableLog


class OwnershipCheck:
    """Confirms the ownership of one container's log; calls ``lost`` with the error when there is a later owner."""

    def __init__(self, container_id: int, log: DurableLog, lost: Callable[[Exception], None]) -> None:
        self._container_id = container_id
        self._log = log
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self._used_at_s = self._loop.time()
        self._confirming: asyncio.Task[None] | None = None
        self._ended = False
        self.waiting_reads = 0
        """Reads that wait at a tail: while there are any, the container counts as in use."""

    def may_answer(self) -> bool:
        """Return whether ownership was confirmed within the last ``limits.OWNER_SEEN_MAX_S``."""
        owned_at_s = self._log.owned_at_s
        if owned_at_s == float("inf"):
            return True
        self._used_at_s = now_s = self._loop.time()
        return now_s - owned_at_s <= limits.OWNER_SEEN_MAX_S

    async def wait(self) -> None:
        """Wait until `may_answer`, or until the container stops.

        Raises:
            WrongHostError: ownership was not confirmed within ``limits.OWNER_ANSWER_DEADLINE_S``; the client may retry.
        """
        ends_at_s = self._loop.time() + limits.OWNER_ANSWER_DEADLINE_S
        while not self._ended and not self.may_answer():
            left_s = ends_at_s - self._loop.time()
            if left_s <= 0:
                raise WrongHostError(
                    f"ownership of container {self._container_id} was not confirmed within"
                    f" {limits.OWNER_ANSWER_DEADLINE_S:g} s; retry"
                )
            await asyncio.wait([self._confirm_once()], timeout=left_s)

    async def run(self) -> None:
        """Confirm ownership at intervals while the container is in use.

        Return at once for a log that no other process can take over.
        """
        while self._log.owned_at_s != float("inf"):
            await asyncio.sleep(limits.OWNER_LOOK_INTERVAL_S)
            now_s = self._loop.time()
            used = self.waiting_reads > 0 or now_s - self._used_at_s < limits.OWNER_IDLE_S
            if used and now_s - self._log.owned_at_s >= limits.OWNER_LOOK_INTERVAL_S:
                await asyncio.wait([self._confirm_once()])

    def stop(self) -> None:
        """End the waits: the container stopped."""
        self._ended = True
        if self._confirming is not None and self._confirming is not asyncio.current_task():
            self._confirming.cancel()

    def _confirm_once(self) -> asyncio.Task[None]:
        """Return the running confirmation, which all waiters share; start one when none runs."""
        if self._confirming is None or self._confirming.done():
            self._confirming = self._loop.create_task(self._confirm())
        return self._confirming

    async def _confirm(self) -> None:
        try:
            async with request_deadline(f"owner of container {self._container_id}", limits.OWNER_LOOK_DEADLINE_S):
                await self._log.confirm_owner()
        except FencedError as error:
            self._lost(error)
        except UnavailableError as error:
            if self._log.owned_at_s == float("-inf"):
                self._lost(error)  # the log was closed or lost
            else:
                await asyncio.sleep(limits.OWNER_LOOK_RETRY_S)  # a waiter then starts the next confirmation
