"""Publish a group's last checkpoint for retention, beside the reads.

See docs/protocol/reader-group-state.md#checkpoints.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from tailrace.client.group.state import policy
from tailrace.client.group.state import records as r
from tailrace.client.group.stream_cuts import complete_cuts
from tailrace.client.model import StreamName
from tailrace.common import limits
from tailrace.common.errors import (
    BadRequestError,
    NoSuchStreamError,
    TailraceError,
    UnavailableError,
    WriteConflictError,
)
from tailrace.common.logs import LibraryLog
from tailrace.common.task_groups import gather_bounded

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tailrace.client.context import ClientContext
    from tailrace.client.group.synchronizer import GroupSynchronizer
    from tailrace.client.model import ReaderGroupConfig
    from tailrace.common.stream_cut import StreamCut

_LOG = LibraryLog(__name__)


class Publisher:
    """Publishes one checkpoint at a time in a task of its own: a read never waits for the controller."""

    def __init__(self, context: ClientContext, synchronizer: GroupSynchronizer, subscriber: str) -> None:
        self._context = context
        self._synchronizer = synchronizer
        self._subscriber = subscriber
        self._task: asyncio.Task[bool] | None = None
        self._checkpoint: Mapping[str, int] = {}

    def begin(self) -> None:
        """Begin to publish the last checkpoint, if the group is so configured and no earlier one is under way.

        What is not published now is published after the next checkpoint.
        """
        state = self._synchronizer.state
        if self._task is None and policy.should_publish(state):
            self._checkpoint = dict(state.last_checkpoint or {})
            work = self._publish(state.config, self._checkpoint)
            self._task = asyncio.create_task(work, name=f"publish the position of {self._subscriber}")

    async def note_end(self) -> None:
        """Note in the group's state that its last checkpoint was published, once it was."""
        if self._task is None or not self._task.done():
            return
        task, self._task = self._task, None
        state = self._synchronizer.state
        if task.result() and not state.published and state.last_checkpoint == self._checkpoint:
            await self._synchronizer.update_unconditionally([r.UpdateCheckpointPublished(True)])

    async def stop(self) -> None:
        """Wait for a publication that is under way, for a bounded time, and end it."""
        if self._task is None:
            return
        await asyncio.wait([self._task], timeout=limits.READER_PUBLISH_LEAVE_S)
        if not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None
        await self.note_end()

    async def _publish(self, config: ReaderGroupConfig, checkpoint: Mapping[str, int]) -> bool:
        """Return whether the controller has the cuts. A failure is logged: the next checkpoint is published again."""

        async def publish(cut: StreamCut) -> Exception | None:
            """Publish the cut of one stream; return its failure, which stops no other stream."""
            try:
                with contextlib.suppress(NoSuchStreamError):  # it was deleted: there is nothing to retain
                    await self._context.controller.update_subscriber_cut(
                        StreamName(cut.scope, cut.stream),
                        self._subscriber,
                        config.group_id,
                        config.generation,
                        cut.positions,
                    )
            except Exception as error:  # no error of a publication may end a read
                return error
            return None

        try:
            cuts = await complete_cuts(self._context, checkpoint)
        except Exception as error:  # as above
            failures: list[Exception | None] = [error]
        else:
            failures = await gather_bounded(cuts.values(), publish)
        first = next((failure for failure in failures if failure is not None), None)
        if first is not None:
            self._log_failure(first)
        return first is None

    def _log_failure(self, error: Exception) -> None:
        if isinstance(error, UnavailableError | WriteConflictError | BadRequestError):
            # Refused, for example, when another reader published a later cut.
            _LOG.info("position_not_published", group=self._subscriber, reason=str(error))
            return
        known = isinstance(error, TailraceError)
        reason = str(error) if known else f"{type(error).__name__}: {error}"
        _LOG.warning("position_not_published", group=self._subscriber, reason=reason, exc_info=None if known else error)
