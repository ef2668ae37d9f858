"""Reads and writes a container's objects in Tier 2 (docs/design.md#tier-2)."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Final, TypeAlias

from tailrace.common import limits
from tailrace.common.errors import CorruptionError, NotFoundError, UnavailableError
from tailrace.log.object_keys import LogKeys
from tailrace.segmentstore.metadata.fields import ChunkRef
from tailrace.segmentstore.tier2 import snapshot
from tailrace.segmentstore.tier2.shared_reads import SharedReads, spawn_plainly
from tailrace.storage import chunks
from tailrace.storage.port import UploadParts
from tailrace.storage.put_window import PutWindow

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence

    from tailrace.common.ports import Entropy
    from tailrace.segmentstore.tier2.shared_reads import Spawn
    from tailrace.storage.port import ObjectInfo, ObjectStore

Buffer: TypeAlias = bytes | bytearray | memoryview


OBJECT_KINDS: Final = ("c", "a")
"""First letters of keys: chunks, attribute indexes."""
_KEY: Final = re.compile(r"[ac]([0-9]+)/[0-9a-f]{16}/[0-9a-f]{16}-[0-9a-f]{16}-([0-9a-f]{8,16})-[0-9a-f]{12}")


def writer_of_key(key: str) -> tuple[int, int] | None:
    """Return container and epoch of the owner that wrote an object; None for a key of another form."""
    match = _KEY.fullmatch(key)
    return (int(match[1]), int(match[2], 16)) if match else None


class Section:
    """A range of one segment to write. ``begins_event``: an event begins at its first byte, for certain."""

    __slots__ = ("begins_event", "data", "segment_id", "segment_name", "start_offset")

    def __init__(
        self, segment_id: int, segment_name: str, start_offset: int, data: Buffer, *, begins_event: bool = False
    ) -> None:
        self.segment_id = segment_id
        self.segment_name = segment_name
        self.start_offset = start_offset
        self.data = data
        self.begins_event = begins_event


class ChunkObjects:
    """The objects of one container in Tier 2. Keys: ``c<container>/<segment id>/<start>-<end>-<epoch>-<nonce>``.

    ``confirm_owner`` raises FencedError when the container has a later owner. ``spawn`` runs shared reads until the
    container stops. ``upload_window`` bounds the puts, shared by the containers of a process; None: its own.
    """

    def __init__(
        self,
        store: ObjectStore,
        cluster_id: bytes,
        container_id: int,
        epoch: int,
        entropy: Entropy,
        *,
        confirm_owner: Callable[[], Awaitable[None]] | None = None,
        spawn: Spawn = spawn_plainly,
        upload_window: PutWindow | None = None,
    ) -> None:
        self._store = store
        self._window = upload_window or PutWindow(limits.UPLOADS_MAX)
        self._confirm_owner = confirm_owner
        self._cluster_id = cluster_id
        self._container_id = container_id
        self._epoch = epoch
        self._entropy = entropy
        self._reads = asyncio.Semaphore(limits.STORAGE_READS_MAX)
        self.shared = SharedReads(spawn)
        """Reads that several calls may wait for: ranges of segments, index pages."""
        self._unreferenced: dict[str, None] = {}
        self.shared_bytes: dict[str, int] = {}
        """Lengths of known objects with several sections; of others references say it."""
        self.bytes_written = 0
        self.objects_written = 0

    @property
    def epoch(self) -> int:
        """Epoch of the owner, part of every key that it writes."""
        return self._epoch

    def _key(self, kind: str, section: Section, length: int) -> str:
        nonce = self._entropy.token(6).hex()
        end = section.start_offset + length
        return (
            f"{kind}{self._container_id}/{section.segment_id:016x}/"
            f"{section.start_offset:016x}-{end:016x}-{self._epoch:08x}-{nonce}"
        )

    async def write(self, sections: Sequence[Section], *, kind: str = "c") -> list[tuple[int, ChunkRef]]:
        """Write sections as one new object; return (segment id, reference) of each.

        The nonce makes the key unique. The object counts only once its references are committed.
        """
        key = self._key(kind, sections[0], len(sections[0].data))
        buffers: list[Buffer] = []
        refs = []
        position = 0
        for section in sections:
            header = chunks.SectionHeader(
                self._cluster_id,
                section.segment_id,
                section.segment_name,
                section.start_offset,
                len(section.data),
                section.begins_event,
            )
            parts, data_position, position = chunks.encode_section(key, position, header, section.data)
            buffers.extend(parts)
            refs.append((section.segment_id, ChunkRef(key, data_position, section.start_offset, len(section.data))))
        try:
            await self.put(key, buffers)
        except UnavailableError:
            self.remember_unreferenced([key])
            raise
        if len(sections) > 1:
            self.shared_bytes[key] = position
        self.bytes_written += position
        self.objects_written += 1
        return refs

    async def put(self, key: str, data: Sequence[Buffer]) -> None:
        """Put an object as soon as the process may send one more."""
        async with self._window.slot(sum(map(len, data))):
            await self._store.put(key, data)

    @property
    def window_full(self) -> bool:
        """Return whether one more put would wait for others of the process."""
        return self._window.full

    def remember_unreferenced(self, keys: Iterable[str]) -> None:
        """Remember objects of this owner that may exist, and that no operation references or ever will."""
        self._unreferenced.update(dict.fromkeys(keys))
        while len(self._unreferenced) > limits.OBJECTS_UNREFERENCED_MAX:
            del self._unreferenced[next(iter(self._unreferenced))]  # the next owner's sweep finds it

    def take_unreferenced(self) -> list[str]:
        """Return the keys that were remembered since the last call; commit them to the pending deletes."""
        keys = list(self._unreferenced)
        self._unreferenced.clear()
        return keys

    async def read(self, ref: ChunkRef, offset: int, length: int) -> tuple[int, list[memoryview]]:
        """Return verified blocks around [offset, offset + length) of a segment, all within one reference.

        Returns (segment offset of the first byte, blocks).

        Raises:
            NotFoundError: the object is gone. CorruptionError: it is damaged; names object and position.
        """
        position, stored, first = chunks.block_range(ref.data_offset, ref.length, offset - ref.segment_offset, length)
        async with self._reads:
            raw = await self._store.get_range(ref.object_key, position, stored)
        return ref.segment_offset + first, chunks.decode_blocks(ref.object_key, position, raw)

    async def read_exact(self, ref: ChunkRef, offset: int, length: int) -> bytes:
        """Return exactly [offset, offset + length) of a segment, within one reference.

        Raises:
            CorruptionError: the object is damaged. For a missing object, see `missing`.
        """
        try:
            start, blocks = await self.read(ref, offset, length)
        except NotFoundError as error:
            raise await self.missing(ref) from error
        data = b"".join(blocks)
        return data[offset - start : offset - start + length]

    async def read_section(self, ref: ChunkRef) -> tuple[bytes, bool]:
        """Return all bytes of a reference, and whether its section's header says that an event begins at the first.

        Raises:
            CorruptionError: the object is damaged. For a missing object, see `missing`.
        """
        before = min(ref.data_offset, chunks.HEADER_MAX_BYTES)
        begin = ref.data_offset - before
        try:
            async with self._reads:
                raw = await self._store.get_range(ref.object_key, begin, before + chunks.stored_length(ref.length))
        except NotFoundError as error:
            raise await self.missing(ref) from error
        view = memoryview(raw)
        blocks = chunks.decode_blocks(ref.object_key, ref.data_offset, view[before:])
        return b"".join(blocks), chunks.begins_event(view[:before], self._cluster_id, ref.length)

    async def missing(self, ref: ChunkRef) -> CorruptionError:
        """Return the error for a reference whose object does not exist.

        Raises:
            FencedError: a later owner may have deleted it. UnavailableError: ownership cannot be confirmed.
        """
        if self._confirm_owner is not None:
            await self._confirm_owner()
        return CorruptionError(f"object {ref.object_key}", "it is referenced and does not exist")

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete objects."""
        await self._store.delete(keys)
        for key in keys:
            self.shared_bytes.pop(key, None)

    def list_objects(self, kind: str) -> AsyncIterator[ObjectInfo]:
        """Iterate over the container's objects of one kind, as the store lists them: the list may be stale."""
        return self._store.list(f"{kind}{self._container_id}/")

    async def abandoned_parts(self, is_of_earlier_owner: Callable[[str], bool]) -> list[str]:
        """Return the names of unfinished uploads of earlier owners, if the store can list them.

        Also of snapshots, and of the frames, marks and claims of an object log in the same store.
        """
        if not isinstance(self._store, UploadParts):
            return []
        found: list[ObjectInfo] = []
        folders = [f"{kind}{self._container_id}" for kind in (*OBJECT_KINDS, snapshot.KIND)]
        for folder in (*folders, LogKeys(self._container_id).folder.rstrip("/")):
            found += await self._store.list_parts(folder, limits.SWEEP_ORPHANS_MAX)
        return [info.key for info in found if is_of_earlier_owner(info.key.partition("#")[0])]

    async def delete_parts(self, names: Sequence[str]) -> int:
        """Delete the unfinished uploads that `abandoned_parts` returned; those still written stay. Return how many."""
        return await self._store.delete_parts(names) if isinstance(self._store, UploadParts) else 0

    async def look(self, ref: ChunkRef) -> tuple[bool, bool]:
        """Return whether the object of a reference exists, and whether an event surely begins at its first byte."""
        before = min(ref.data_offset, chunks.HEADER_MAX_BYTES)
        try:
            async with self._reads:
                raw = await self._store.get_range(ref.object_key, ref.data_offset - before, before + 1)
        except (NotFoundError, CorruptionError):
            return False, False
        return True, chunks.begins_event(memoryview(raw)[:before], self._cluster_id, ref.length)
