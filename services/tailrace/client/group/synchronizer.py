"""Synchronize the shared state of a reader group with its segment (docs/protocol/reader-group-state.md#records).

Every client of the group applies the records of the segment in order. Changes that depend on the state are conditional
on the latest revision; after a conflict they are computed again from the newer state.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from tailrace.client.group.state import records as r
from tailrace.client.group.state.codec import decode_record, encode_batch, encode_initial
from tailrace.client.group.state.state import GroupState, compact, initial_state
from tailrace.client.model import StreamName
from tailrace.client.revisioned import Entry, RevisionedStream, open_revisioned
from tailrace.common import limits, names
from tailrace.common.errors import (
    CorruptionError,
    FormatVersionError,
    IllegalStateError,
    NoSuchReaderGroupError,
    NotFoundError,
    OverloadedError,
    SegmentTruncatedError,
    UnavailableError,
)

if TYPE_CHECKING:
    from tailrace.client.context import ClientContext

Generator = Callable[[GroupState], Sequence[r.Update]]
Watcher = Callable[[GroupState], None]


class GroupSynchronizer:
    """Follow and change the state of one group. Concurrent calls take turns: two fetches would apply a record twice.

    Whatever reads or writes the state raises NoSuchReaderGroupError once the group was deleted.
    """

    def __init__(self, context: ClientContext, stream: RevisionedStream, name: str) -> None:
        self.name = name
        self.version = 0
        """Changes whenever the state does."""
        self._context = context
        self._stream = stream
        self._state: GroupState | None = None
        self._revision = -1
        self._mark: int | None = None
        self._watchers: list[Watcher] = []
        self._turn = asyncio.Lock()

    @classmethod
    async def open(cls, context: ClientContext, scope: str, group: str) -> GroupSynchronizer:
        """Find the group's segment. Raises NoSuchReaderGroupError."""
        name = f"{scope}/{group}"
        try:
            stream = await open_revisioned(context, StreamName(scope, names.READER_GROUP_PREFIX + group))
        except NotFoundError as error:
            raise NoSuchReaderGroupError(f"reader group {name} does not exist") from error
        return cls(context, stream, name)

    @property
    def state(self) -> GroupState:
        """Return the state as of the last fetch or write. Raises IllegalStateError before the first state."""
        if self._state is None:
            raise IllegalStateError(f"reader group {self.name} has no state yet")
        return self._state

    @property
    def has_state(self) -> bool:
        """Return whether a first state was read."""
        return self._state is not None

    @contextlib.contextmanager
    def watched(self, watcher: Watcher) -> Iterator[None]:
        """Pass every state to `watcher` within the block, including states between two fetches."""
        self._watchers.append(watcher)
        try:
            yield
        finally:
            self._watchers.remove(watcher)

    @contextlib.contextmanager
    def _naming_the_group(self) -> Iterator[None]:
        """Raise NoSuchReaderGroupError when a request does not find the segment of the state.

        Callers know the group; its segment is an internal name.
        """
        try:
            yield
        except NotFoundError as error:
            raise NoSuchReaderGroupError(f"reader group {self.name} does not exist") from error

    @contextlib.asynccontextmanager
    async def _alone(self) -> AsyncIterator[None]:
        """Wait until no other call uses the state, and keep others out; errors name the group.

        Raises UnavailableError when the others take too long, as during an outage.
        """
        try:
            async with asyncio.timeout(limits.READER_GROUP_TURN_S):
                await self._turn.acquire()
        except TimeoutError:
            waited = f"another call has used it for {limits.READER_GROUP_TURN_S:g} s"
            raise UnavailableError(f"the state of reader group {self.name} is in use: {waited}") from None
        try:
            with self._naming_the_group():
                yield
        finally:
            self._turn.release()

    # -- reading ------------------------------------------------------------------------------------------------

    async def fetch(self) -> None:
        """Apply the records written since the last fetch.

        Raises:
            NoSuchReaderGroupError: the group was deleted.
            CorruptionError, FormatVersionError: a record cannot be read.
            IllegalStateError: a record contradicts the state; the group is unusable.
            UnavailableError: another call has used the state for READER_GROUP_TURN_S.
        """
        async with self._alone():
            await self._fetch()

    async def _fetch(self) -> None:
        if self._state is not None:
            try:
                self._apply_all(await self._stream.read_from(self._revision))
                return
            except SegmentTruncatedError:
                pass  # a compaction truncated these records and replaces them
        for attempt in range(limits.READER_GROUP_LOADS_MAX):
            try:
                await self._load()
                return
            except SegmentTruncatedError:  # compacted again since
                if attempt == limits.READER_GROUP_LOADS_MAX - 1:
                    raise

    async def _load(self) -> None:
        """Read the state again from the mark or the oldest record; skip records before the first state.

        The state is replaced after all records are read, so that a failure keeps the previous state.
        """
        mark = await self._stream.mark()
        start = await self._stream.oldest() if mark is None else mark
        entries = await self._stream.read_from(start)
        self._mark, self._state = mark, None
        self.version += 1
        self._apply_all(entries)

    def _apply_all(self, entries: Sequence[Entry]) -> None:
        for payload, revision in entries:
            try:
                initial, updates = decode_record(payload)
            except CorruptionError as error:
                place = f"{self._stream.segment} before {revision}"
                raise CorruptionError(place, error.reason) from error
            except FormatVersionError as error:
                raise FormatVersionError(f"{self._stream.segment} before {revision}: {error}") from error
            self._apply(initial, updates)
            self._revision = revision

    def _apply(self, initial: bool, updates: Sequence[r.Update]) -> None:
        if self._state is None and not initial:
            return
        self.version += 1
        for update in updates:
            if self._state is None:
                assert isinstance(update, r.Init | r.Compact)
                self._state = initial_state(update)
            else:
                self._state.apply(update)
            for watcher in self._watchers:
                watcher(self._state)

    # -- writing ------------------------------------------------------------------------------------------------

    async def initialize(self, initial: r.Init) -> bool:
        """Write the first state; return False when one exists."""
        async with self._alone():
            start = await self._stream.oldest()
            revision = await self._stream.write_conditionally(start, encode_initial(initial))
            await self._fetch()
        return revision is not None

    async def update(self, generate: Generator) -> list[r.Update]:
        """Write and return the updates that `generate` computes from the latest state; nothing when there are none.

        After a conflict `generate` is called again.

        Raises:
            OverloadedError: READER_GROUP_CONFLICTS_MAX conflicts in a row. NoSuchReaderGroupError. UnavailableError, as
            `fetch`.
        """
        async with self._alone():
            return await self._update(generate)

    async def _update(self, generate: Generator) -> list[r.Update]:
        for _ in range(limits.READER_GROUP_CONFLICTS_MAX):
            updates = list(generate(self.state))
            if not updates:
                return []
            self._rehearse(updates)
            revision = await self._stream.write_conditionally(self._revision, encode_batch(updates))
            if revision is not None:
                self._apply(False, updates)
                self._revision = revision
                return updates
            await self._fetch()
        raise OverloadedError(f"the state of reader group {self.name} changed too often during a write; retry")

    def _rehearse(self, updates: Sequence[r.Update]) -> None:
        """Check updates before they are written, because a wrong one fails every client.

        See docs/protocol/reader-group-state.md#rules-for-our-client.
        """
        rehearsal = initial_state(compact(self.state))
        for update in updates:
            rehearsal.apply(update)

    async def update_unconditionally(self, updates: Sequence[r.Update]) -> None:
        """Write updates that have no precondition; they take effect with the next fetch."""
        with self._naming_the_group():
            await self._stream.write_unconditionally(encode_batch(updates))

    async def compact_sometimes(self) -> None:
        """Compact the records when they have grown, with a low probability for each reader.

        See docs/protocol/reader-group-state.md#compaction.
        """
        if self._state is None or self._revision - (self._mark or 0) <= limits.READER_GROUP_COMPACT_BYTES:
            return
        if self._context.entropy.uniform() < limits.READER_GROUP_COMPACT_PROBABILITY:
            await self.compact()

    async def compact(self) -> bool:
        """Write the whole state as one record, mark it, and truncate the records before the old mark.

        Returns False when another client wrote first.
        """
        async with self._alone():
            return await self._compact()

    async def _compact(self) -> bool:
        at = self._revision
        revision = await self._stream.write_conditionally(at, encode_initial(compact(self.state)))
        if revision is None:
            return False
        self._apply(True, [compact(self.state)])
        self._revision = revision
        old = await self._stream.mark()
        if (old is None or old < at) and await self._stream.compare_and_set_mark(old, at) and old is not None:
            await self._truncate(old)
        self._mark = await self._stream.mark()
        return True

    async def _truncate(self, revision: int) -> None:
        try:
            await self._stream.truncate(revision)
        except UnavailableError:
            return  # the next compaction truncates further
