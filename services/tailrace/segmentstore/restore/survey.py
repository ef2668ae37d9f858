"""Lists the objects of one container, to restore it and to see whether a server writes to the store."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tailrace.kernel import crc32c
from tailrace.segmentstore.tier2.chunk_objects import OBJECT_KINDS, writer_of_key
from tailrace.segmentstore.tier2.snapshot import SnapshotName, folder, parse_key

if TYPE_CHECKING:
    from tailrace.storage.port import ObjectStore


@dataclass(slots=True)
class Survey:
    """The objects of one container. ``fingerprint`` changes with any of them: count, and a sum over the keys."""

    container: int
    snapshots: list[SnapshotName] = field(default_factory=list)
    objects: dict[str, int] = field(default_factory=dict)
    """Lengths by key: chunks and pages of indexes."""
    log_bytes: int = 0
    log_objects: int = 0
    fingerprint: tuple[int, int] = (0, 0)

    @property
    def greatest_epoch(self) -> int:
        """Return the greatest epoch in a key; 0: there is none."""
        writers = [writer[1] for key in self.objects if (writer := writer_of_key(key)) is not None]
        return max([0, *writers, *(name.epoch for name in self.snapshots)])

    @property
    def opened_epoch(self) -> int:
        """Return an epoch that the log must have, because its owner wrote an object; 0: there is no object."""
        return max(self.greatest_epoch, 1 if self.objects or self.snapshots else 0)

    @property
    def greatest_sequence(self) -> int:
        """Return the greatest operation in a key: a segment's id is the operation that created it."""
        numbers = [int(key.split("/")[1], 16) for key in self.objects if writer_of_key(key) is not None]
        return max([0, *numbers, *(name.sequence for name in self.snapshots)])


async def survey(store: ObjectStore, container: int) -> Survey:
    """List all objects of a container. UnavailableError: the store does not answer."""
    found = Survey(container)
    count = total = 0
    for prefix in (*(f"{kind}{container}" for kind in OBJECT_KINDS), folder(container), f"log/{container}"):
        async for info in store.list(prefix):
            count += 1
            total ^= crc32c(info.key.encode()) << 32 | crc32c(info.key[::-1].encode())
            snapshot = parse_key(info.key)
            if snapshot is not None:
                found.snapshots.append(snapshot[1])
            elif prefix.startswith("log/"):
                found.log_bytes += info.length_bytes
                found.log_objects += 1
            else:
                found.objects[info.key] = info.length_bytes
    found.snapshots.sort()
    found.fingerprint = count, total
    return found
