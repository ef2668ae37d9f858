"""Verifies that every snapshot of a container is readable, and that the newest one can be restored."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.common.errors import CorruptionError, DataError, NotFoundError
from tailrace.segmentstore.tier2.snapshot import Snapshot, SnapshotName, folder, parse_key
from tailrace.segmentstore.verify.report import Orphan

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tailrace.segmentstore.metadata.fields import ChunkRef
    from tailrace.segmentstore.metadata.state import ContainerState
    from tailrace.segmentstore.verify.chunk_bytes import ChunkReader
    from tailrace.segmentstore.verify.report import ContainerReport
    from tailrace.storage.port import ObjectStore


class SnapshotWalk:
    """Verifies the snapshots of one container."""

    def __init__(
        self, store: ObjectStore, cluster_id: bytes, report: ContainerReport, advance: Callable[[int], None]
    ) -> None:
        self._store = store
        self._cluster_id = cluster_id
        self._report = report
        self._advance = advance

    async def walk(self, state: ContainerState | None, lengths: Mapping[str, int], reader: ChunkReader) -> None:
        """Read all snapshots. The newest one's objects must exist, and be readable where `state` does not need them.

        ``lengths`` are the lengths of existing objects; `state` is None when the log cannot be read.
        """
        names = await self._names()
        await self._list_others()
        for name in names:
            found = await self._read(name)
            if found is None or name is not names[-1]:
                continue
            key = name.key(self._report.container)
            try:
                restored = found.load(key)
            except DataError as error:
                self._report.problem(_reason(error), place=f"object {key}")
            else:
                if state is not None:
                    await self._verify(key, restored, state, lengths, reader)

    async def any(self) -> bool:
        """Return whether the container has a snapshot."""
        return bool(await self._names())

    async def load_newest(self, into: ContainerState) -> str | None:
        """Fill a state from the newest snapshot; return its key, None when there is none.

        Raises:
            DataError: it cannot be restored; the text names the object.
        """
        names = await self._names()
        if not names:
            return None
        key = names[-1].key(self._report.container)
        found = Snapshot.decode(key, await self._store.get(key))
        found.load(key, into=into)
        return key

    async def _names(self) -> list[SnapshotName]:
        container = self._report.container
        names = []
        async for info in self._store.list(folder(container)):
            found = parse_key(info.key)
            if found is None:
                continue
            names.append(found[1])
        return sorted(names)

    async def _list_others(self) -> None:
        container = self._report.container
        async for info in self._store.list(folder(container)):
            if parse_key(info.key) is None:
                self._report.report.add_orphan(Orphan(container, info.key, info.length_bytes))

    async def _read(self, name: SnapshotName) -> Snapshot | None:
        container, report = self._report.container, self._report.report
        key = name.key(container)
        try:
            data = await self._store.get(key)
            self._advance(len(data))
            found = Snapshot.decode(key, data)
        except NotFoundError:
            self._report.problem("it was listed and is missing now", place=f"object {key}")
            return None
        except DataError as error:
            self._report.problem(_reason(error), place=f"object {key}")
            return None
        if found.cluster_id != self._cluster_id:
            self._report.problem(f"written by another cluster, {found.cluster_id.hex()}", place=f"object {key}")
            return None
        report.snapshots += 1
        report.snapshot_bytes += len(data)
        return found

    async def _verify(
        self,
        key: str,
        restored: ContainerState,
        state: ContainerState,
        lengths: Mapping[str, int],
        reader: ChunkReader,
    ) -> None:
        verified = {(ref.object_key, ref.data_offset) for ref in _refs(state)}
        for segment in restored.segments.values():
            for ref in (*segment.chunks, *segment.index_pages):
                if (ref.object_key, ref.data_offset) in verified:
                    continue
                if ref.object_key not in lengths:
                    reason = f"it needs object {ref.object_key}, which does not exist"
                    self._report.problem(reason, segment=segment.name, offset=ref.segment_offset, place=f"object {key}")
                else:
                    await reader.verify(segment.name, ref, sizes=lengths)


def _refs(state: ContainerState) -> list[ChunkRef]:
    return [ref for segment in state.segments.values() for ref in (*segment.chunks, *segment.index_pages)]


def _reason(error: DataError) -> str:
    return error.reason if isinstance(error, CorruptionError) else str(error)
