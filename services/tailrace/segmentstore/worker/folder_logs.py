"""Logs and epochs of a server with a data folder: file logs in it, or object logs in its Tier 2 (design §4, §9)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from tailrace.cluster.data_folder import last_epoch, note_opened, opened_epoch
from tailrace.cluster.file_epochs import FileEpochs
from tailrace.common import limits
from tailrace.common.errors import IllegalStateError, StartError, UnavailableError
from tailrace.log.disk import RealDisk
from tailrace.log.file import FileLog
from tailrace.log.object import ObjectLog
from tailrace.log.object_keys import LogKeys
from tailrace.log.object_scan import scan_slots
from tailrace.log.probe import probe_conditions
from tailrace.segmentstore.tier2.chunk_objects import OBJECT_KINDS, epoch_of_key
from tailrace.segmentstore.tier2.snapshot import folder, parse_key

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.cluster.data_folder import LogKind
    from tailrace.log.port import DurableLog
    from tailrace.storage.port import ObjectStore


class FolderLogs(Protocol):
    """What a worker needs of its logs; the arguments are those of `WorkerPorts`."""

    async def prepare(self, store: ObjectStore, place: str, nonce: str) -> None:
        """See that logs can be opened; ``place`` is what errors call Tier 2. Raises StartError."""
        ...

    def open_log(self, container_id: int) -> DurableLog:
        """The log of a container, not yet opened."""
        ...

    async def next_epoch(self, container_id: int, floor: int) -> int:
        """Take the container's next epoch."""
        ...

    def log_opened(self, container_id: int, epoch: int) -> None:
        """Remember that the log is there."""
        ...

    def close(self) -> None:
        """Let go of what is shared by the logs."""
        ...


def folder_logs(kind: LogKind, data: Path, containers: Sequence[int]) -> FolderLogs:
    """The logs of those containers of a data folder."""
    return FileLogs(data, containers) if kind == "file" else ObjectLogs(data, containers)


class FileLogs:
    """Logs in files of the folder."""

    def __init__(self, data: Path, containers: Sequence[int]) -> None:
        self._data = data
        self._disk = RealDisk()
        self._epochs = FileEpochs(data)
        self._opened = {container_id: opened_epoch(data, container_id) for container_id in containers}

    async def prepare(self, store: ObjectStore, place: str, nonce: str) -> None:
        """See FolderLogs.prepare."""
        for container_id in self._opened:
            directory = self._directory(container_id)
            if not self._opened[container_id] and not any(directory.glob("[0-9]*.log")):
                if await _any_below(store, LogKeys(container_id).folder):
                    raise StartError(f"{place} has the log of container {container_id}: its logs are object logs")
                self._opened[container_id] = await epoch_of_objects(store, container_id)
            if directory.exists():
                await _wait_until_free(self._disk, str(directory))

    def open_log(self, container_id: int) -> FileLog:
        """See FolderLogs.open_log."""
        directory = str(self._directory(container_id))
        return FileLog(self._disk, directory, container_id, opened_epoch=self._opened[container_id])

    async def next_epoch(self, container_id: int, floor: int) -> int:
        """See FolderLogs.next_epoch."""
        return await self._epochs.take(container_id, floor)

    def log_opened(self, container_id: int, epoch: int) -> None:
        """See FolderLogs.log_opened."""
        note_opened(self._data, container_id, epoch)
        self._opened[container_id] = epoch

    def close(self) -> None:
        """See FolderLogs.close."""
        self._disk.close()

    def _directory(self, container_id: int) -> Path:
        return self._data / "log" / str(container_id)


class ObjectLogs:
    """Logs in the objects of Tier 2. The folder holds epochs only; when they are lost the claims take their place."""

    def __init__(self, data: Path, containers: Sequence[int]) -> None:
        self._data = data
        self._epochs = FileEpochs(data)
        self._opened = {container_id: opened_epoch(data, container_id) for container_id in containers}
        self._served: set[int] = set()
        self._scan_slots = scan_slots()
        self._store: ObjectStore

    async def prepare(self, store: ObjectStore, place: str, nonce: str) -> None:
        """See FolderLogs.prepare."""
        try:
            await probe_conditions(store, nonce, place)
        except UnavailableError as error:
            raise StartError(f"{place} does not work: {error}") from error
        for container_id in self._opened:
            if not self._opened[container_id]:
                self._opened[container_id] = await epoch_of_objects(store, container_id)
        self._store = store

    def open_log(self, container_id: int) -> ObjectLog:
        """See FolderLogs.open_log."""
        opened_epoch = self._opened[container_id]
        return ObjectLog(self._store, container_id, opened_epoch=opened_epoch, scan_slots=self._scan_slots)

    async def next_epoch(self, container_id: int, floor: int) -> int:
        """See FolderLogs.next_epoch.

        Raises:
            IllegalStateError: another server took the container from this one. Taking it back would go on for ever, and
                whoever started that server wants it to serve.
        """
        if container_id in self._served and floor > last_epoch(self._data, container_id):
            raise IllegalStateError(
                f"container {container_id} was taken by another server over the same Tier 2 with epoch {floor};"
                " it is taken back when this server is started again"
            )
        return await self._epochs.take(container_id, floor)

    def log_opened(self, container_id: int, epoch: int) -> None:
        """See FolderLogs.log_opened."""
        note_opened(self._data, container_id, epoch)
        self._opened[container_id] = epoch
        self._served.add(container_id)

    def close(self) -> None:
        """See FolderLogs.close."""


async def epoch_of_objects(store: ObjectStore, container_id: int) -> int:
    """An epoch of the container that wrote to Tier 2, that of its newest snapshot if it has one; 0: none did.

    The second witness of a log that is gone, for folders whose epochs are gone too.
    """
    names = [parse_key(info.key) async for info in store.list(folder(container_id))]
    if epochs := [name[1].epoch for name in names if name is not None]:
        return max(epochs)
    for kind in OBJECT_KINDS:
        async for info in store.list(f"{kind}{container_id}"):
            return epoch_of_key(info.key)
    return 0


async def _any_below(store: ObjectStore, prefix: str) -> bool:
    async for _ in store.list(prefix):
        return True
    return False


async def _wait_until_free(disk: RealDisk, directory: str) -> None:
    """Wait for a worker whose parent was killed: it ends by itself a moment later, and its log is locked until then.

    When it takes too long, opening the log says that it is in use.
    """
    ends_at_s = asyncio.get_running_loop().time() + limits.LOG_LOCK_TIMEOUT_S
    while asyncio.get_running_loop().time() < ends_at_s:
        try:
            disk.lock(directory).release()
        except StartError:
            await asyncio.sleep(limits.LOG_LOCK_POLL_S)
        else:
            return
