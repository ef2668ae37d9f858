"""Restores a whole cluster from the store into a new data folder, one container after another."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import uuid
from typing import TYPE_CHECKING

from tailrace.cluster.cluster_identity import CLUSTER_KEY, read_identity
from tailrace.cluster.data_folder import Manifest, note_opened, take_epoch, write_manifest
from tailrace.common import limits
from tailrace.common.errors import StartError, UnavailableError
from tailrace.log.disk import RealDisk
from tailrace.log.file import FileLog
from tailrace.segmentstore.restore.container import (
    look_at_log,
    lost_log,
    newest_state,
    snapshot_name,
    store_snapshot,
    write_log,
)
from tailrace.segmentstore.restore.report import RestoredContainer, RestoreReport
from tailrace.segmentstore.restore.survey import Survey, survey
from tailrace.segmentstore.tier2.snapshot import folder
from tailrace.storage.obstores import open_object_store
from tailrace.storage.port import make_durable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from tailrace.cluster.cluster_identity import ClusterIdentity
    from tailrace.cluster.data_folder import LogKind
    from tailrace.common.ports import Clock, Entropy
    from tailrace.log.closed_object import ClosedObjectLog
    from tailrace.segmentstore.metadata.state import ContainerState
    from tailrace.segmentstore.tier2.snapshot import SnapshotName
    from tailrace.storage.port import ObjectStore


async def restore_cluster(
    path: Path,
    *,
    tier2: str,
    s3_endpoint: str | None = None,
    clock: Clock,
    entropy: Entropy,
    progress: Callable[[int, int], None],
    dry_run: bool = False,
) -> RestoreReport:
    """Make a new data folder for a cluster that has lost its own. Calls ``progress(done, total)`` often.

    When this fails, the folder is as it was before. With `dry_run` everything is read and checked, nothing written in
    the folder or the store: the report says what a restore would bring back and what would be missing.

    Raises:
        StartError: the folder is not empty, the store holds no cluster, or a server writes to the store.
        DataError: a container whose log is lost cannot be restored; the text names the object. UnavailableError.
    """
    store = open_object_store(tier2, s3_endpoint=s3_endpoint, create=False)
    try:
        _refuse_used(path)
        with contextlib.nullcontext() if dry_run else _new_folder(path):
            mark = await read_identity(store, f"Tier 2 {tier2}")
            if mark is None:
                raise StartError(f"Tier 2 {tier2} has no {CLUSTER_KEY}: it belongs to no cluster")
            writes = None if dry_run else _Writes(path, store, uuid.UUID(mark.cluster_id).bytes, clock, entropy)
            return await _Restore(store, mark, writes, progress).run(tier2)
    finally:
        await store.close()


def _refuse_used(path: Path) -> None:
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise StartError(f"{path} is not empty: restore a cluster into a new folder")


@contextlib.contextmanager
def _new_folder(path: Path) -> Iterator[None]:
    """Make the folder if it does not exist; restore its prior state when the block fails.

    A folder that existed stays: it may be a link or a mount point. A failure to clean up is a note of the error.
    """
    existed = path.exists()
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StartError(f"{path} cannot be created: {error.strerror}") from error
    try:
        yield
    except BaseException as error:
        try:
            if existed:
                _empty(path)
            else:
                shutil.rmtree(path)
        except OSError as failure:
            error.add_note(f"{path} could not be cleaned up: {failure}")
        raise


def _empty(path: Path) -> None:
    """Remove what is in a folder."""
    for entry in list(path.iterdir()):
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


class _Writes:
    """Everything that a restore writes: the data folder, and new snapshots in the store."""

    def __init__(self, path: Path, store: ObjectStore, cluster_id: bytes, clock: Clock, entropy: Entropy) -> None:
        self._path = path
        self._store = store
        self._cluster_id = cluster_id
        self._clock = clock
        self._entropy = entropy
        self._disk = RealDisk()

    def close(self) -> None:
        """Close the files."""
        self._disk.close()

    def epoch(self, container: int, epoch: int, opened: int) -> None:
        """Have the next owner of a container take a later epoch than the lost one, and expect a log of `opened`."""
        take_epoch(self._path, container, epoch - 1)
        note_opened(self._path, container, opened)

    async def log(self, state: ContainerState) -> None:
        """Make the log of a container whose own is lost."""
        directory = str(self._path / "log" / str(state.container_id))
        log = FileLog(self._disk, directory, state.container_id)
        await write_log(log, state, self._clock, self._entropy.token(16))

    def snapshot_name(self, state: ContainerState) -> SnapshotName:
        """Return the name under which `snapshot` is to store a restored state."""
        return snapshot_name(state, self._entropy)

    async def snapshot(self, state: ContainerState, name: SnapshotName) -> None:
        """Store a restored state as the newest snapshot."""
        await store_snapshot(self._store, self._cluster_id, state, self._clock, name)

    def manifest(self, manifest: Manifest) -> None:
        """Make the folder valid."""
        write_manifest(self._path, manifest)


class _Restore:
    """One restore; ``writes`` None: a dry run."""

    def __init__(
        self, store: ObjectStore, mark: ClusterIdentity, writes: _Writes | None, progress: Callable[[int, int], None]
    ) -> None:
        self._store = store
        self._mark = mark
        self._writes = writes
        self._progress = progress
        self._cluster_id = uuid.UUID(mark.cluster_id).bytes
        self._surveys: list[Survey] = []
        self._logs: list[ClosedObjectLog] = []
        self._states: list[ContainerState] = []
        self._done = 0
        self._total = 1
        self._began_s = asyncio.get_running_loop().time()

    async def run(self, tier2: str) -> RestoreReport:
        """Restore one container after another; the folder is valid once its manifest is written."""
        writes = self._writes
        report = RestoreReport(self._mark.cluster_id, dry_run=writes is None)
        for container in range(self._mark.containers):
            self._surveys.append(await survey(self._store, container))
        # A log is read twice: for its last checkpoint, and for the operations after it.
        self._total = sum(2 * found.log_bytes + 1 for found in self._surveys)
        try:
            for found in self._surveys:
                report.containers.append(await self._container(found))
                self._advance(1)
        finally:
            if writes is not None:
                writes.close()
        await self._refuse_a_living_owner()
        if writes is not None:
            kind: LogKind = "object" if self._logs else "file"
            await self._finish(writes, Manifest(self._mark.cluster_id, self._mark.containers, tier2, kind))
        return report

    async def _container(self, found: Survey) -> RestoredContainer:
        if found.log_objects:
            result, log = await look_at_log(self._store, found, self._advance)
            self._logs.append(log)
            if result.epoch and self._writes is not None:
                # Not the last claim: its owner may have died before the log had its epoch.
                self._writes.epoch(found.container, result.epoch, max(log.previous_epoch, found.opened_epoch))
            return result
        if any(other.log_objects for other in self._surveys) and (found.snapshots or found.objects):
            return lost_log(found)
        result, state = await newest_state(self._store, self._cluster_id, found)
        if state is not None and self._writes is not None:
            await self._writes.log(state)
            self._writes.epoch(found.container, state.epoch, state.epoch)
            self._states.append(state)
        return result

    async def _refuse_a_living_owner(self) -> None:
        """Raise StartError when objects or claims change while the restore reads the store."""
        watched_s = asyncio.get_running_loop().time() - self._began_s
        await asyncio.sleep(max(limits.RESTORE_WATCH_S - watched_s, 0))
        for found in self._surveys:
            now = await survey(self._store, found.container)
            if now.fingerprint != found.fingerprint:
                raise StartError(f"Tier 2 is in use: objects of container {found.container} changed meanwhile")
        for log in self._logs:
            if not await log.same_owner():
                raise StartError(f"Tier 2 is in use: {log.directory} has a new owner or new frames")

    async def _finish(self, writes: _Writes, manifest: Manifest) -> None:
        """Store the restored states as the newest snapshots, and make the folder valid.

        When that fails the snapshots are deleted: the owner of the former folder, if that is still there, would stop at
        them for good, and the new folder is removed.
        """
        names: dict[int, SnapshotName] = {}
        try:
            for state in self._states:
                # Before the put: one that fails may be carried out.
                names[state.container_id] = writes.snapshot_name(state)
                await writes.snapshot(state, names[state.container_id])
            await self._refuse_later_snapshots(names)
            writes.manifest(manifest)
        except BaseException as error:
            await self._delete_snapshots(names, error)
            raise

    async def _refuse_later_snapshots(self, names: Mapping[int, SnapshotName]) -> None:
        """Raise StartError when a live owner stored a snapshot meanwhile.

        Such an owner takes its own snapshot for the newest one. It deletes objects that only older snapshots need, and
        the restored one is among them.
        """
        for container, own in names.items():
            known = {own, *self._surveys[container].snapshots}
            later = [name for name in (await survey(self._store, container)).snapshots if name not in known]
            if later:
                raise StartError(f"Tier 2 is in use: container {container} got snapshot {later[-1].key(container)}")

    async def _delete_snapshots(self, names: Mapping[int, SnapshotName], error: BaseException) -> None:
        """Delete the snapshots of this restore, which failed with `error`; a failure to do so is a note of that."""
        keys = [name.key(container) for container, name in names.items()]
        try:
            await self._store.delete(keys)
        except UnavailableError as failure:
            error.add_note(f"Delete the snapshots of this restore, {', '.join(keys)}: {failure}")
            return
        try:
            for container in names:  # deletions as well: an owner would stop at one that came back
                await make_durable(self._store, folder(container))
        except UnavailableError as failure:
            error.add_note(f"A power cut may bring back the snapshots of this restore: {failure}")

    def _advance(self, amount: int) -> None:
        self._done += amount
        self._progress(min(self._done, self._total), self._total)
