"""List a stream, group, table or scope in the table of pending work as long as this controller counts on it.

See docs/controller.md#how-a-change-happens.

Another controller may take the mark of a stream over at any time. It removes its own mark when it has found no work for
`ControllerConfig.idle_s`, so a mark is safe for that time after it was written, of which half is relied on. A change
whose work was written later, or may still be, writes the mark again: the other controller's removal then either came
before, or fails because the mark has another version.

Groups, tables and scopes have a mark of each controller. Another one removes it only when it takes its controller for
dead and has found no work for `ControllerConfig.requests_deadline_s`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import structlog

from tailrace.common import limits
from tailrace.common.errors import TailraceError, WriteConflictError
from tailrace.controller.metadata.metadata_store import PENDING_TABLE
from tailrace.controller.metadata.ports import UNCONDITIONAL, Put
from tailrace.controller.metadata.records import PendingRecord, encode

if TYPE_CHECKING:
    from tailrace.controller.workflows.context import WorkflowContext

_LOG = structlog.get_logger(__name__)
STREAM: Final = "stream"
"""The kind of streams in the table of pending work."""


class PendingMark:
    """This controller's mark of one stream, group, table or scope. Times are in seconds on the loop's clock."""

    def __init__(self, context: WorkflowContext, what: str, scope: str, name: str) -> None:
        self._context = context
        self._what, self._scope, self._name = what, scope, name
        self._version: int | None = None
        self._written_s = 0.0
        self._doubted_until_s: float | None = None
        self._writing = asyncio.Lock()
        self._ensuring: asyncio.Task[None] | None = None

    @property
    def key(self) -> bytes:
        """Return its key in the table of pending work."""
        own = "" if self._what == STREAM else f"/{self._context.instance}"
        return f"{self._what}/{self._scope}/{self._name}{own}".encode()

    @property
    def is_safe(self) -> bool:
        """Whether the mark is there, also if another controller took it over right after it was written."""
        safe_until_s = self._written_s + self._context.config.idle_s / 2
        return self._version is not None and asyncio.get_running_loop().time() <= safe_until_s

    @property
    def is_doubted(self) -> bool:
        """Whether a change may be written whose call failed, and that the mark is not safe for."""
        return self._doubted_until_s is not None

    @property
    def doubted_for_s(self) -> float:
        """For how long from now such a change may still be written; 0 when none may."""
        return max(0.0, (self._doubted_until_s or 0.0) - asyncio.get_running_loop().time())

    def doubt(self) -> None:
        """Note that a call failed or was given up whose change may be written, now or while requests may last."""
        self._doubted_until_s = asyncio.get_running_loop().time() + self._context.config.requests_deadline_s

    async def ensure(self) -> None:
        """Write the mark unless it is safe. Raises UnavailableError when it cannot be written in time."""
        if not self.is_safe:
            async with self._writing:
                if not self.is_safe:
                    await self._write()
        self._end_doubt()

    def ensure_soon(self) -> None:
        """Do the same without waiting for it. A failure is logged; call it again while the mark `is_doubted`."""
        if self._ensuring is None or self._ensuring.done():
            name = f"mark of {self._scope}/{self._name}"
            self._ensuring = asyncio.get_running_loop().create_task(self._ensure_or_log(), name=name)

    async def _ensure_or_log(self) -> None:
        try:
            async with asyncio.timeout(limits.WORKFLOW_STEP_DEADLINE_S):
                await self.ensure()
        except (TailraceError, TimeoutError) as error:
            stream, reason = f"{self._scope}/{self._name}", f"{type(error).__name__}: {error}"
            _LOG.warning("stream_not_marked", stream=stream, reason=reason)

    async def close(self) -> None:
        """Stop what `ensure_soon` has begun."""
        if self._ensuring is not None:
            self._ensuring.cancel()
            await asyncio.gather(self._ensuring, return_exceptions=True)

    async def write(self) -> None:
        """Write the mark over that of another controller. Raises UnavailableError when it cannot be written in time."""
        async with self._writing:
            await self._write()
        self._end_doubt()

    async def remove(self) -> None:
        """Remove what this controller wrote last. Another controller's mark stays, and one that cannot be removed."""
        await self.close()
        if self._version is None:
            return
        version, self._version = self._version, None
        await remove_mark(self._context, self.key, version)

    def _end_doubt(self) -> None:
        if not self.doubted_for_s:
            self._doubted_until_s = None

    async def _write(self) -> None:
        record = PendingRecord(self._what, self._scope, self._name, self._context.instance)
        now_s = asyncio.get_running_loop().time()
        entry = Put(self.key, encode(record), UNCONDITIONAL)
        self._version = (await self._context.store.metadata.put(PENDING_TABLE, [entry]))[0]
        self._written_s = now_s


async def remove_mark(context: WorkflowContext, key: bytes, version: int) -> None:
    """Remove a mark of that version. One that was written again stays, and one that cannot be removed."""
    try:
        await context.store.metadata.remove(PENDING_TABLE, [(key, version)])
    except WriteConflictError:
        _LOG.debug("pending again", mark=key.decode())
    except Exception as error:  # harmless: an adoption finds no work, and what has ended here must go on
        _LOG.warning(
            "finished work stays pending",
            mark=key.decode(),
            error=f"{type(error).__name__}: {error}",
            exc_info=not isinstance(error, TailraceError | TimeoutError),
        )
