"""A whole data folder: its manifest and lock, and one container after the other."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from tailrace.cluster.clusterobject import CLUSTER_KEY, marked_cluster
from tailrace.cluster.datafolder import DataFolder, opened_epoch, read_data_folder
from tailrace.common import limits
from tailrace.common.errors import StartError
from tailrace.kernel import BlockCache
from tailrace.log.closed import ClosedLog, ReadOnlyDisk
from tailrace.segmentstore.cachemanager import CacheManager
from tailrace.segmentstore.tier2 import Tier2
from tailrace.segmentstore.verify.container import ContainerVerification
from tailrace.segmentstore.verify.objects import account_for_others
from tailrace.segmentstore.verify.readstore import ReadStore
from tailrace.segmentstore.verify.report import ContainerReport, Problem, Report
from tailrace.storage.obstores import open_object_store

if TYPE_CHECKING:
    from collections.abc import Callable

    from tailrace.common.ports import Entropy


async def verify_folder(
    path: Path,
    *,
    tier2: str = "",
    s3_endpoint: str | None = None,
    entropy: Entropy,
    progress: Callable[[int, int], None],
) -> Report:
    """Verify a folder that no server uses. ``progress(done, total)`` is called often, in bytes.

    Memory does not depend on how much the folder holds: a container's state, as its server has it, and fixed buffers.

    Raises:
        StartError: the folder is in use, of a newer format, none, or its Tier 2 is not there.
        UnavailableError: Tier 2 does not answer.
    """
    async with contextlib.AsyncExitStack() as stack:
        folder = read_data_folder(path, tier2=tier2)
        stack.callback(folder.close)
        url = folder.manifest.tier2 or f"file://{(path / 'tier2').absolute()}"
        store = ReadStore(open_object_store(url, s3_endpoint=s3_endpoint, create=False))
        stack.push_async_callback(store.close)
        disk = ReadOnlyDisk()
        stack.callback(disk.close)
        return await _FolderVerification(folder, store, disk, entropy, progress).run()


class _FolderVerification:
    def __init__(
        self,
        folder: DataFolder,
        store: ReadStore,
        disk: ReadOnlyDisk,
        entropy: Entropy,
        progress: Callable[[int, int], None],
    ) -> None:
        self._folder = folder
        self._store = store
        self._disk = disk
        self._entropy = entropy
        self._progress = progress
        self._cache = CacheManager(BlockCache(limits.VERIFY_CACHE_BYTES))
        self._report = Report()
        self._done = 0
        self._total = 0

    async def run(self) -> Report:
        """Verify container after container."""
        count = self._folder.manifest.containers
        opened = [self._opened_epoch(container) for container in range(count)]
        await self._check_mark(bound=any(opened))
        self._total = sum(_log_file_bytes(self._directory(container)) for container in range(count))
        async for info in self._store.list(""):
            self._total += info.length_bytes
        for container in range(count):
            await self._verify(container, opened[container])
        await account_for_others(self._store, count, self._report)
        return self._report

    def _directory(self, container: int) -> Path:
        return self._folder.path / "log" / str(container)

    def _opened_epoch(self, container: int) -> int:
        try:
            return opened_epoch(self._folder.path, container)
        except StartError as error:
            ContainerReport(self._report, container).problem(str(error))
            return 0

    async def _check_mark(self, *, bound: bool) -> None:
        """Tier 2 is that of the cluster. Raises StartError: it is that of another one."""
        cluster_id = self._folder.manifest.cluster_id
        try:
            found = await marked_cluster(self._store, "Tier 2")
        except StartError as error:
            self._report.add(Problem(None, "", None, f"object {CLUSTER_KEY}", 0, str(error)))
            return
        if found is None and bound:
            self._report.add(Problem(None, "", None, f"object {CLUSTER_KEY}", None, "it does not exist"))
        elif found not in (None, cluster_id):
            raise StartError(f"Tier 2 belongs to cluster {found}, not to {cluster_id}")

    async def _verify(self, container: int, opened: int) -> None:
        report = ContainerReport(self._report, container)
        directory = self._directory(container)
        await self._wait_until_free(str(directory))
        cluster_id = uuid.UUID(self._folder.manifest.cluster_id).bytes
        tier2 = Tier2(self._store, cluster_id, container, 0, self._entropy)
        log = ClosedLog(self._disk, str(directory), container, opened_epoch=opened)
        await ContainerVerification(log, self._store, tier2, cluster_id, self._cache, report, self._advance).run()

    async def _wait_until_free(self, directory: str) -> None:
        """A worker whose parent was killed ends by itself a moment later. StartError: it does not."""
        ends_at_s = asyncio.get_running_loop().time() + limits.LOG_LOCK_PATIENCE_S
        while True:
            try:
                self._disk.lock(directory).release()
                return
            except StartError:
                if asyncio.get_running_loop().time() >= ends_at_s:
                    raise
            await asyncio.sleep(limits.LOG_LOCK_POLL_S)

    def _advance(self, length_bytes: int) -> None:
        self._done += length_bytes
        self._progress(min(self._done, self._total), self._total)


def _log_file_bytes(directory: Path) -> int:
    return sum(file.stat().st_size for file in directory.glob("[0-9]*-*.log")) if directory.exists() else 0
