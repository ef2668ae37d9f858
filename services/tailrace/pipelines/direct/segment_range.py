"""Read a range of a segment from Tier 2: verified bytes, in order, some of them ahead (docs/spark-direct.md)."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from tailrace.common import limits
from tailrace.common.errors import (
    CorruptionError,
    DataLossError,
    NotFoundError,
    SegmentGoneError,
    SegmentTruncatedError,
    UnavailableError,
)
from tailrace.pipelines.direct.references import load_references, requests
from tailrace.storage import chunks

if TYPE_CHECKING:
    import uuid
    from collections.abc import AsyncGenerator, AsyncIterator, Iterable

    from tailrace.pipelines.direct.references import Request, SegmentReferences
    from tailrace.storage.port import ObjectStore


class TierTwo:
    """The object store of one cluster, for reading."""

    def __init__(self, store: ObjectStore, cluster_id: uuid.UUID, containers: int) -> None:
        self.store = store
        self.cluster_id = cluster_id
        self.containers = containers

    async def references(self, segments: Iterable[str]) -> dict[str, SegmentReferences]:
        """Return the references of segments; see `load_references`."""
        return await load_references(self.store, self.cluster_id, self.containers, list(segments))


class SegmentRange:
    """The bytes of one segment, by references that may be old.

    The objects of a snapshot may be deleted when a newer snapshot is stored. An object that is missing makes the reader
    take the references of the newest snapshot and continue at the byte where it is.
    """

    def __init__(self, tier2: TierTwo, references: SegmentReferences) -> None:
        self.references = references
        self.rereads = 0
        """How often references were read again."""
        self._tier2 = tier2

    async def pieces(self, start: int, end: int) -> AsyncGenerator[list[memoryview], None]:
        """Yield the verified bytes of [start, end), at most about ``limits.DIRECT_READ_BYTES`` at a time.

        Raises:
            SegmentTruncatedError: bytes are gone, since their stream was truncated; SegmentGoneError: all of them are.
            CorruptionError: an object is damaged or missing; names object, position, segment and offset.
            DataLossError: the newest snapshot ends before ``end``. UnavailableError: the store does not answer.
        """
        position, rereads, missing = start, 0, ""
        while position < end:
            ahead = _Prefetch(self._tier2.store, requests(self.references, position, end, limits.DIRECT_READ_BYTES))
            try:
                async for request, blocks in ahead.results():
                    position = request.offset + request.length
                    rereads, missing = 0, ""
                    yield blocks
            except _MissingObjectError as error:
                rereads += 1
                if rereads > limits.DIRECT_REREADS_MAX:
                    raise UnavailableError(
                        f"objects of segment {self.references.segment} were replaced {rereads} times"
                        f" before byte {position} was read"
                    ) from error
                await self._reread(error.request, position, end, missing)
                missing = self.references.snapshot
            finally:
                await ahead.close()

    async def _reread(self, request: Request, position: int, end: int, known_missing_in: str) -> None:
        """Take the references of the newest snapshot.

        ``known_missing_in`` is the snapshot from which the missing object was taken by the last call, if any: when it
        is still the newest one, no newer one has let the object go.
        """
        self.rereads += 1
        name = self.references.segment
        found = (await self._tier2.references([name])).get(name)
        if found is None or found.segment_id != self.references.segment_id:
            raise SegmentGoneError(name, position)
        if found.start_offset > position:
            raise SegmentTruncatedError(name, found.start_offset, position)
        if found.length < end:
            raise DataLossError(f"object {found.snapshot}: segment {name} has {found.length} bytes, {end} were known")
        if found.snapshot == known_missing_in:
            reason = f"snapshot {found.snapshot} references it for byte {request.offset} of segment {name}"
            raise CorruptionError(f"object {request.ref.object_key}", f"it does not exist, and {reason}")
        self.references = found


class _MissingObjectError(Exception):
    def __init__(self, request: Request) -> None:
        super().__init__(request.ref.object_key)
        self.request = request


class _Prefetch:
    """Requests in order, a bounded number and amount of them in flight."""

    def __init__(self, store: ObjectStore, wanted: Iterable[Request]) -> None:
        self._store = store
        self._wanted = iter(wanted)
        self._next = next(self._wanted, None)
        self._running: deque[tuple[Request, asyncio.Task[bytes]]] = deque()
        self._bytes = 0

    async def results(self) -> AsyncIterator[tuple[Request, list[memoryview]]]:
        """Yield each request with its verified bytes.

        Raises:
            _MissingObjectError: the object of the next request does not exist.
        """
        self._fill()
        while self._running:
            request, task = self._running[0]
            try:
                raw = await task
            except NotFoundError as error:
                raise _MissingObjectError(request) from error
            except CorruptionError as error:
                raise _located(error, request) from error
            self._running.popleft()
            self._bytes -= request.length
            self._fill()
            yield request, _verified(request, raw)

    def _fill(self) -> None:
        while (
            self._next is not None
            and len(self._running) < limits.DIRECT_READS_MAX
            and self._bytes + self._next.length <= limits.DIRECT_READ_AHEAD_BYTES
        ):
            self._running.append((self._next, asyncio.create_task(self._get(self._next))))
            self._bytes += self._next.length
            self._next = next(self._wanted, None)

    async def _get(self, request: Request) -> bytes:
        position, stored, _ = _object_range(request)
        return await self._store.get_range(request.ref.object_key, position, stored)

    async def close(self) -> None:
        """Cancel what is in flight."""
        tasks = [task for _, task in self._running]
        self._running.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _object_range(request: Request) -> tuple[int, int, int]:
    ref, offset = request.ref, request.offset
    return chunks.block_range(ref.data_offset, ref.length, offset - ref.segment_offset, request.length)


def _verified(request: Request, raw: bytes) -> list[memoryview]:
    """Return exactly the bytes of a request. Raises CorruptionError."""
    position, _, first = _object_range(request)
    try:
        blocks = chunks.decode_blocks(request.ref.object_key, position, raw)
    except CorruptionError as error:
        raise _located(error, request) from error
    skip = request.offset - request.ref.segment_offset - first
    surplus = sum(map(len, blocks)) - skip - request.length
    if skip:
        blocks[0] = blocks[0][skip:]  # a request begins within the first block that is read, and ends within the last
    if surplus:
        blocks[-1] = blocks[-1][:-surplus]
    return blocks


def _located(error: CorruptionError, request: Request) -> CorruptionError:
    name = f"bytes {request.offset} to {request.offset + request.length} of the segment need it"
    return CorruptionError(error.place, f"{error.reason}; {name}")
