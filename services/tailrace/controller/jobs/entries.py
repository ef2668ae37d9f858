"""Unlist streams that are deleted, in the buckets of this controller (docs/controller.md#entries-of-deleted-streams).

A controller that was paused while it listed a stream, and died before it looked again whether the stream still exists,
leaves the entry. No workflow removes it: that of the stream is finished.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from tailrace.common import limits
from tailrace.common.errors import (
    CorruptionError,
    FormatVersionError,
    NoSuchScopeError,
    TailraceError,
    WriteConflictError,
)
from tailrace.controller.metadata.metadata_store import bucket_of
from tailrace.controller.metadata.model import StreamState
from tailrace.controller.metadata.reading import readable
from tailrace.controller.metadata.records import StreamRecord
from tailrace.controller.metadata.scope_store import STREAMS
from tailrace.controller.metadata.stream_store import StreamKey
from tailrace.controller.workflows import listing

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from tailrace.controller.workflows.context import WorkflowContext

_LOG = structlog.get_logger(__name__)


class EntrySweep:
    """Looks through the lists of all scopes for streams that are deleted."""

    def __init__(self, context: WorkflowContext) -> None:
        self._context = context
        self.removed = 0
        self.failures = 0
        """Scopes that could not be looked at and entries that cannot be read, counted in each round."""

    async def round(self, buckets: Collection[int]) -> None:
        """Look at each entry of a stream in these buckets once. A scope that cannot be read does not stop the others.

        Raises:
            UnavailableError: the scopes cannot be listed.
        """
        token = ""
        while True:
            scopes, token = await self._context.scopes.list_scopes(limits.LIST_PAGE_ENTRIES_MAX, token)
            if not scopes:
                return
            for scope in scopes:
                try:
                    await self._look_at(scope, buckets)
                except NoSuchScopeError:
                    continue  # deleted meanwhile, with its entries
                except Exception as error:  # any error concerns this scope only; the next round comes
                    self.failures += 1
                    _LOG.warning(
                        "entry_sweep_failed",
                        scope=scope,
                        reason=f"{type(error).__name__}: {error}",
                        exc_info=not isinstance(error, TailraceError | TimeoutError),
                    )

    async def _look_at(self, scope: str, buckets: Collection[int]) -> None:
        token = ""
        while True:
            async with asyncio.timeout(limits.WORKFLOW_STEP_DEADLINE_S):
                names, token = await self._context.scopes.list_names(
                    scope, STREAMS, limits.LIST_PAGE_ENTRIES_MAX, token
                )
                if not names:
                    return
                mine = [StreamKey(scope, name) for name in names if bucket_of(scope, name) in buckets]
                for key, root in await self._deleted(mine):
                    await self._unlist(key, root)

    async def _deleted(self, keys: Sequence[StreamKey]) -> list[tuple[StreamKey, StreamRecord]]:
        """Return those of the streams that are deleted, with their roots, by one read of each bucket's table."""
        by_table: dict[str, list[StreamKey]] = {}
        for key in keys:
            by_table.setdefault(key.table, []).append(key)
        found = []
        for table, its in by_table.items():
            stored = await self._context.store.metadata.get(table, [key.root for key in its])
            for key, entry in zip(its, stored, strict=True):
                root = None if entry is None else readable(StreamRecord, table, entry)
                if root is not None and root.state is StreamState.DELETED:
                    found.append((key, root))
        return found

    async def _unlist(self, key: StreamKey, root: StreamRecord) -> None:
        try:
            removed = await listing.remove(self._context, key, root)
        except WriteConflictError:
            return  # it is created again
        except (CorruptionError, FormatVersionError) as error:  # of this entry only: it stays
            self.failures += 1
            _LOG.warning("entry_of_deleted_stream_stays", stream=str(key), reason=f"{type(error).__name__}: {error}")
            return
        if removed:
            self.removed += 1
            _LOG.info("entry_of_deleted_stream_removed", stream=str(key))
