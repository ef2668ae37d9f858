"""Whether this controller reaches any of its tables (docs/controller.md#a-controller-that-is-cut-off).

The tables are in many containers, so some of them answer while any segment store does. A controller that none of them
answers is of no use to clients, and others may be: it sends its clients away until one answers again.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING

import structlog

from tailrace.common import limits
from tailrace.common.errors import TailraceError, UnavailableError
from tailrace.controller.metadata.metadata_store import OWN_TABLES

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tailrace.controller.metadata.ports import MetadataStore

_LOG = structlog.get_logger(__name__)
_KEY = b"contact"
"""Of no record: that a table does not have it is an answer."""


class TableContact:
    """Asks one table after another, and all at once when none of them has answered for `cut_off_s`."""

    def __init__(
        self,
        metadata: MetadataStore,
        *,
        period_s: float = limits.CONTROLLER_CONTACT_PERIOD_S,
        answer_s: float = limits.CONTROLLER_CONTACT_ANSWER_S,
        cut_off_s: float = limits.CONTROLLER_CUT_OFF_S,
    ) -> None:
        self._metadata = metadata
        self._period_s = period_s
        self._answer_s = answer_s
        self._cut_off_s = cut_off_s
        self._answered_s = 0.0
        self.reached = True
        """False from the moment when no table answers until one does."""

    @property
    def trouble(self) -> str:
        """Say for how long no table has answered; empty while some do."""
        if self.reached:
            return ""
        return f"no segment store has answered for {asyncio.get_running_loop().time() - self._answered_s:.0f} s"

    async def watch(self, changed: Callable[[bool], Awaitable[None]]) -> None:
        """Ask until cancelled; call ``changed(reached)`` each time when `reached` has changed."""
        loop = asyncio.get_running_loop()
        self._answered_s = loop.time()
        for table in itertools.cycle(OWN_TABLES):
            await asyncio.sleep(self._period_s)
            if await self._answers(table):
                self._answered_s = loop.time()
            elif loop.time() - self._answered_s < self._cut_off_s:
                continue
            elif await self._any_answers():
                self._answered_s = loop.time()
            reached = loop.time() - self._answered_s < self._cut_off_s
            if reached == self.reached:
                continue
            self.reached = reached
            if reached:
                _LOG.info("controller_reaches_segment_stores")
            else:
                _LOG.error("controller_cut_off", silent_s=round(loop.time() - self._answered_s, 1))
            await changed(reached)

    async def _answers(self, table: str) -> bool:
        try:
            async with asyncio.timeout(self._answer_s):
                await self._metadata.get(table, [_KEY])
        except (UnavailableError, TimeoutError):
            return False
        except TailraceError:
            return True  # a segment store has refused
        return True

    async def _any_answers(self) -> bool:
        asked = [asyncio.get_running_loop().create_task(self._answers(table)) for table in OWN_TABLES]
        try:
            for answer in asyncio.as_completed(asked):
                if await answer:
                    return True
            return False
        finally:
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
