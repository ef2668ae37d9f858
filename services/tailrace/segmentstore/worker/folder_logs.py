"""Logs and epochs of a server with a data folder: file logs in it, or object logs in its Tier 2.

See docs/design.md#tier-1, docs/design.md#ownership.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from tailrace.cluster.data_folder import last_epoch, note_opened, opened_epoch
from tailrace.cluster.file_epochs import FileEpochs
from tailrace.common import limits
from tailrace.common.errors import IllegalStateError, StartError, UnavailableError
from tailrace.log.file import FileLog
from tailrace.log.object import ObjectLog
from tailrace.log.object_keys import LogKeys
from tailrace.log.object_requests import frame_window
from tailrace.log.object_scan import scan_slots
from tailrace.log.probe import probe_conditions
from tailrace.segmentstore.tier2.chunk_objects import OBJECT_KINDS, writer_of_key
from tailrace.segmentstore.tier2.snapshot import folder, parse_key

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tailrace.cluster.data_folder import LogKind
    from tailrace.log.disk import FolderDisk
    from tailrace.log.port import DurableLog
    from tailrace.storage.port import ObjectStore


class FolderLogs(Protocol):
    """The logs and epochs of a worker; the arguments are those of `WorkerPorts`."""

    async def prepare(self, store: ObjectStore, place: str, nonce: str) -> None:
        """Check that logs can be opened; errors call Tier 2 ``place``. Raises StartError."""
        ...

    def open_log(self, container_id: int) -> DurableLog:
        """Return the log of a container, not yet opened."""
        ...

    async def next_epoch(self, container_id: int, floor: int) -> int:
        """Take the container's next epoch."""
        ...

    def log_opened(self, container_id: int, epoch: int) -> None:
        """Record that the log exists."""
        ...


def folder_logs(kind: LogKind, data: Path, containers: Sequence[int], disk: FolderDisk) -> FolderLogs:
    """Return the logs of these containers of a data folder. Close `disk` after the logs."""
    return FileLogs(data, containers, disk) if kind == "file" else ObjectLogs(data, containers, disk)


class FileLogs:
    """Logs in files of the folder."""

    def __init__(self, data: Path, containers: Sequence[int], disk: FolderDisk) -> None:
        self._data = data
        self._disk = disk
        self._epochs = FileEpochs(data, disk)
        self._opened = {container_id: opened_epoch(data, container_id, disk) for container_id in containers}

    async def prepare(self, store: ObjectStore, place: str, nonce: str) -> None:
        """See FolderLogs.prepare."""
        for container_id in self._opened:
            directory = self._directory(container_id)
            names = _names(self._disk, directory)
            if not self._opened[container_id] and not any(map(_is_log_file, names or ())):
                if await _any_below(store, LogKeys(container_id).folder):
                    raise StartError(f"{place} holds the log of container {container_id}: use object logs")
                self._opened[container_id] = await epoch_of_objects(store, container_id)
            if names is not None:
                await _wait_until_free(self._disk, directory)

    def open_log(self, container_id: int) -> FileLog:
        """See FolderLogs.open_log."""
        return FileLog(
            self._disk,
            self._directory(container_id),
            container_id,
            file_bytes=limits.LOG_FILE_BYTES,
            max_frame_bytes=limits.LOG_FRAME_MAX_BYTES,
            reserve_bytes=limits.LOG_RESERVE_BYTES,
            opened_epoch=self._opened[container_id],
            opens_full=True,
        )

    async def next_epoch(self, container_id: int, floor: int) -> int:
        """See FolderLogs.next_epoch."""
        return await self._epochs.take(container_id, floor)

    def log_opened(self, container_id: int, epoch: int) -> None:
        """See FolderLogs.log_opened."""
        note_opened(self._data, container_id, epoch, self._disk)
        self._opened[container_id] = epoch

    def _directory(self, container_id: int) -> str:
        return str(self._data / "log" / str(container_id))


class ObjectLogs:
    """Logs in the objects of Tier 2. The folder holds epochs only; when they are lost the claims replace them."""

    def __init__(self, data: Path, containers: Sequence[int], disk: FolderDisk) -> None:
        self._data = data
        self._disk = disk
        self._epochs = FileEpochs(data, disk)
        self._opened = {container_id: opened_epoch(data, container_id, disk) for container_id in containers}
        self._served: set[int] = set()
        self._scan_slots = scan_slots()
        self._put_window = frame_window()
        self._store: ObjectStore

    async def prepare(self, store: ObjectStore, place: str, nonce: str) -> None:
        """See FolderLogs.prepare."""
        try:
            await probe_conditions(store, nonce, place)
        except UnavailableError as error:
            raise StartError(f"{place} is not available: {error}") from error
        for container_id in self._opened:
            if not self._opened[container_id]:
                self._opened[container_id] = await epoch_of_objects(store, container_id)
        self._store = store

    def open_log(self, container_id: int) -> ObjectLog:
        """See FolderLogs.open_log."""
        return ObjectLog(
            self._store,
            container_id,
            max_frame_bytes=limits.LOG_FRAME_MAX_BYTES,
            opened_epoch=self._opened[container_id],
            scan_slots=self._scan_slots,
            put_window=self._put_window,
        )

    async def next_epoch(self, container_id: int, floor: int) -> int:
        """See FolderLogs.next_epoch.

        Raises:
            IllegalStateError: another server took the container from this one. Taking it back would repeat for ever,
                and the operator who started the other server wants that one to serve.
        """
        if container_id in self._served and floor > last_epoch(self._data, container_id, self._disk):
            raise IllegalStateError(
                f"another server over the same Tier 2 took container {container_id} with epoch {floor};"
                " restart this server to take it back"
            )
        return await self._epochs.take(container_id, floor)

    def log_opened(self, container_id: int, epoch: int) -> None:
        """See FolderLogs.log_opened."""
        note_opened(self._data, container_id, epoch, self._disk)
        self._opened[container_id] = epoch
        self._served.add(container_id)


async def epoch_of_objects(store: ObjectStore, container_id: int) -> int:
    """Return an epoch of the container that wrote to Tier 2, preferably of its newest snapshot; 0 when none did.

    It shows that a log existed, for folders that have lost their epochs too; 1 where only objects of other names do.
    """
    names = [parse_key(info.key) async for info in store.list(folder(container_id))]
    if epochs := [name[1].epoch for name in names if name is not None]:
        return max(epochs)
    others = 0
    for kind in OBJECT_KINDS:
        async for info in store.list(f"{kind}{container_id}"):
            if (writer := writer_of_key(info.key)) is not None:
                return writer[1]
            others = 1
    return others


async def _any_below(store: ObjectStore, prefix: str) -> bool:
    async for _ in store.list(prefix):
        return True
    return False


def _names(disk: FolderDisk, directory: str) -> list[str] | None:
    """Return the names in a directory; None: there is no such directory."""
    try:
        return disk.list(directory)
    except FileNotFoundError:
        return None


def _is_log_file(name: str) -> bool:
    return name[:1].isdigit() and name.endswith(".log")


async def _wait_until_free(disk: FolderDisk, directory: str) -> None:
    """Wait until the log is unlocked: a worker whose parent was killed holds the lock until it ends.

    When that takes too long, opening the log raises that it is in use.
    """
    ends_at_s = asyncio.get_running_loop().time() + limits.LOG_LOCK_TIMEOUT_S
    while asyncio.get_running_loop().time() < ends_at_s:
        try:
            disk.lock(directory).release()
        except StartError:
            await asyncio.sleep(limits.LOG_LOCK_POLL_S)
        else:
            return
