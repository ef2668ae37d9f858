"""Verifies a whole data folder, or Tier 2 alone, one container after another."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from tailrace.cluster.cluster_identity import CLUSTER_KEY, read_cluster_id, read_identity
from tailrace.cluster.data_folder import Manifest, opened_epoch, read_data_folder
from tailrace.common import limits
from tailrace.common.errors import StartError
from tailrace.kernel import BlockCache
from tailrace.log.closed import ClosedLog, ReadOnlyDisk
from tailrace.log.closed_object import ClosedObjectLog
from tailrace.log.object_keys import LogKeys
from tailrace.segmentstore.cache.cache_manager import CacheManager
from tailrace.segmentstore.tier2.chunk_objects import OBJECT_KINDS, ChunkObjects, writer_of_key
from tailrace.segmentstore.tier2.snapshot import KIND, parse_key
from tailrace.segmentstore.verify.container import ContainerVerification
from tailrace.segmentstore.verify.container_log import LostLog
from tailrace.segmentstore.verify.log_objects import account_for_log
from tailrace.segmentstore.verify.objects import account_for_others
from tailrace.segmentstore.verify.read_only_store import ReadOnlyStore
from tailrace.segmentstore.verify.report import ContainerReport, LogEnd, Problem, Report
from tailrace.storage.obstores import open_object_store

if TYPE_CHECKING:
    from collections.abc import Callable

    from tailrace.common.ports import Entropy
    from tailrace.segmentstore.verify.container_log import VerifiedLog


async def verify_folder(
    path: Path,
    *,
    tier2: str = "",
    s3_endpoint: str | None = None,
    entropy: Entropy,
    progress: Callable[[int, int], None],
) -> Report:
    """Verify a folder that no server uses. Calls ``progress(done, total)`` often, in bytes.

    Memory does not depend on the size of the folder: it holds one container's state and fixed buffers.

    Raises:
        StartError: the folder is in use, has a newer format, is not a data folder, or its Tier 2 is missing.
        UnavailableError: Tier 2 does not answer.
    """
    async with contextlib.AsyncExitStack() as stack:
        folder = read_data_folder(path, tier2=tier2)
        stack.callback(folder.close)
        url = folder.manifest.tier2 or f"file://{(path / 'tier2').absolute()}"
        store = ReadOnlyStore(open_object_store(url, s3_endpoint=s3_endpoint, create=False))
        stack.push_async_callback(store.close)
        disk = ReadOnlyDisk()
        stack.callback(disk.close)
        logs = _FolderLogs(path, disk) if folder.manifest.log == "file" else _StoreLogs(store, path)
        return await _Verification(folder.manifest, store, logs, entropy, progress).run()


async def verify_tier2(
    tier2: str, *, s3_endpoint: str | None = None, entropy: Entropy, progress: Callable[[int, int], None]
) -> Report:
    """Verify Tier 2 of a cluster without its data folder; see `verify_folder`.

    When the logs are not in Tier 2, the newest snapshots replace them; later objects count as orphans.

    Raises:
        StartError: it holds no cluster, or a server wrote to it meanwhile. UnavailableError: it does not answer.
    """
    store = ReadOnlyStore(open_object_store(tier2, s3_endpoint=s3_endpoint, create=False))
    try:
        mark = await read_identity(store, f"Tier 2 {tier2}")
        if mark is None:
            raise StartError(f"Tier 2 {tier2} has no {CLUSTER_KEY}: it belongs to no cluster")
        has_logs = [await _any_below(store, LogKeys(container).folder) for container in range(mark.containers)]
        manifest = Manifest(mark.cluster_id, mark.containers, tier2, "object" if any(has_logs) else "file")
        logs: _Logs = _StoreLogs(store) if any(has_logs) else _NoLogs()
        return await _Verification(manifest, store, logs, entropy, progress).run()
    finally:
        await store.close()


async def _any_below(store: ReadOnlyStore, prefix: str) -> bool:
    async for _ in store.list(prefix.rstrip("/")):
        return True
    return False


async def _written_epoch(store: ReadOnlyStore, container: int) -> int:
    """Return the greatest epoch whose owner has written chunks, index pages or snapshots that exist; 0: none has."""
    greatest = 0
    for kind in (*OBJECT_KINDS, KIND):
        async for info in store.list(f"{kind}{container}"):
            snapshot, writer = parse_key(info.key), writer_of_key(info.key)
            greatest = max(greatest, snapshot[1].epoch if snapshot else 0, writer[1] if writer else 0)
    return greatest


class _NoLogs:
    """Logs that are lost or elsewhere."""

    def opened_epoch(self, container: int) -> int:
        """Return the last epoch for which the container's log is known to have been opened. StartError: unreadable."""
        return 0

    def known_epoch(self, container: int) -> int:
        """Return `opened_epoch`, or 0 when it is unreadable, which `_Verification` reports."""
        try:
            return self.opened_epoch(container)
        except StartError:
            return 0

    async def log(self, container: int) -> VerifiedLog:
        """Return the container's log, not yet opened."""
        return LostLog()

    def log_bytes(self, container: int) -> int:
        """Return the bytes of the log that are not objects of Tier 2."""
        return 0


class _FolderLogs(_NoLogs):
    """Logs in files."""

    def __init__(self, path: Path, disk: ReadOnlyDisk) -> None:
        self._path = path
        self._disk = disk

    def opened_epoch(self, container: int) -> int:
        """See _NoLogs."""
        return opened_epoch(self._path, container)

    async def log(self, container: int) -> ClosedLog:
        """See _NoLogs."""
        directory = str(self._directory(container))
        await self._wait_until_free(directory)
        return ClosedLog(self._disk, directory, container, opened_epoch=self.known_epoch(container))

    def log_bytes(self, container: int) -> int:
        """See _NoLogs."""
        directory = self._directory(container)
        files = directory.glob("[0-9]*-*.log") if directory.exists() else ()
        return sum(file.stat().st_size for file in files)

    def _directory(self, container: int) -> Path:
        return self._path / "log" / str(container)

    async def _wait_until_free(self, directory: str) -> None:
        """Wait for a worker whose parent was killed: it ends by itself soon. StartError: it does not."""
        ends_at_s = asyncio.get_running_loop().time() + limits.LOG_LOCK_TIMEOUT_S
        while True:
            try:
                self._disk.lock(directory).release()
                return
            except StartError:
                if asyncio.get_running_loop().time() >= ends_at_s:
                    raise
            await asyncio.sleep(limits.LOG_LOCK_POLL_S)


class _StoreLogs(_NoLogs):
    """Logs in objects of Tier 2; ``path`` is the folder with the epochs, if there is one."""

    def __init__(self, store: ReadOnlyStore, path: Path | None = None) -> None:
        self._store = store
        self._path = path

    def opened_epoch(self, container: int) -> int:
        """See _NoLogs."""
        return 0 if self._path is None else opened_epoch(self._path, container)

    async def log(self, container: int) -> ClosedObjectLog:
        """See _NoLogs. An epoch whose owner has written objects must be in the log, also where no folder knows it."""
        written = await _written_epoch(self._store, container)  # before the log is read: a live owner may write more
        return ClosedObjectLog(self._store, container, opened_epoch=max(self.known_epoch(container), written))


_Logs = _NoLogs


class _Verification:
    def __init__(
        self,
        manifest: Manifest,
        store: ReadOnlyStore,
        logs: _Logs,
        entropy: Entropy,
        progress: Callable[[int, int], None],
    ) -> None:
        self._manifest = manifest
        self._store = store
        self._logs = logs
        self._entropy = entropy
        self._progress = progress
        self._cache = CacheManager(BlockCache(limits.VERIFY_CACHE_BYTES))
        self._report = Report()
        self._done = 0
        self._total = 0

    async def run(self) -> Report:
        """Verify one container after another."""
        count = self._manifest.containers
        opened = [self._opened_epoch(container) for container in range(count)]
        await self._check_mark(bound=any(opened))
        self._total = sum(self._logs.log_bytes(container) for container in range(count))
        async for info in self._store.list(""):
            self._total += info.length_bytes
        for container in range(count):
            await self._verify(container)
        await account_for_others(self._store, count, self._report, object_logs=self._manifest.log == "object")
        return self._report

    def _opened_epoch(self, container: int) -> int:
        try:
            return self._logs.opened_epoch(container)
        except StartError as error:
            ContainerReport(self._report, container).problem(str(error))
            return 0

    async def _check_mark(self, *, bound: bool) -> None:
        """Check that Tier 2 belongs to the cluster. Raises StartError: it belongs to another one."""
        cluster_id = self._manifest.cluster_id
        try:
            found = await read_cluster_id(self._store, "Tier 2")
        except StartError as error:
            self._report.add(Problem(None, "", None, f"object {CLUSTER_KEY}", 0, str(error)))
            return
        if found is None and bound:
            self._report.add(Problem(None, "", None, f"object {CLUSTER_KEY}", None, "it does not exist"))
        elif found not in (None, cluster_id):
            raise StartError(f"Tier 2 belongs to cluster {found}, not to {cluster_id}")

    async def _verify(self, container: int) -> None:
        """Verify one container. Raises StartError: its log changed during each attempt.

        The store may carry out a last request of the former owner late. So one change is no sign of a live owner.
        """
        for attempt in range(limits.VERIFY_ATTEMPTS):
            if attempt:
                await asyncio.sleep(limits.VERIFY_PAUSE_S)
            part = Report()
            changed = await self._attempt(container, ContainerReport(part, container))
            if not changed:
                self._report.merge(part)
                return
        raise StartError(f"Tier 2 is in use: {changed} has a new owner or new frames")

    async def _attempt(self, container: int, report: ContainerReport) -> str:
        """Verify it once; return the place of its log when that changed meanwhile, so that the result is void."""
        log = await self._logs.log(container)
        cluster_id = uuid.UUID(self._manifest.cluster_id).bytes
        tier2 = ChunkObjects(self._store, cluster_id, container, 0, self._entropy)
        verification = ContainerVerification(
            log,
            store=self._store,
            tier2=tier2,
            cluster_id=cluster_id,
            cache=self._cache,
            report=report,
            advance=self._advance,
        )
        await verification.run()
        if not isinstance(log, ClosedObjectLog):
            return ""
        await account_for_log(log, self._store, report)
        known = log.has_begun and self._logs.known_epoch(container) == log.previous_epoch
        report.report.log_ends.append(LogEnd(container, log.previous_epoch, log.last_claim, known))
        return log.directory if log.last_claim and not await log.same_owner() else ""

    def _advance(self, length_bytes: int) -> None:
        self._done += length_bytes
        self._progress(min(self._done, self._total), self._total)
