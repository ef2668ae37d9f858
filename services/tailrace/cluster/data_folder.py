"""The data folder of a standalone server: its lock, its manifest, and the epochs of its containers.

See docs/design.md#ownership.

The lock and the manifest are used at start, before the server serves, so they use the file system directly. Epochs
go through the port for small files.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from tailrace.common import limits
from tailrace.common.durable_folder import NO_SPACE, RealFolderFiles, sync_folder
from tailrace.common.errors import DiskFullError, OverloadedError, StartError
from tailrace.common.ports import Entropy, new_uuid

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tailrace.common.durable_folder import FolderFiles

FORMAT: Final = 2
_FILE_LOG_FORMAT: Final = 1
"""Format of folders with file logs. Object logs have a higher one, so that older programs do not open them."""
LogKind: TypeAlias = Literal["file", "object"]

_MANIFEST: Final = "tailrace.json"
_LOCK: Final = "lock"
_FILES: Final = RealFolderFiles()


@dataclass(frozen=True, slots=True)
class Manifest:
    """The content of ``tailrace.json``."""

    cluster_id: str
    containers: int
    tier2: str
    log: LogKind = "file"
    """Where the logs are: in files of the folder, or in objects of Tier 2."""


class DataFolder:
    """An open, exclusively locked data folder."""

    def __init__(self, path: Path, lock: int, manifest: Manifest) -> None:
        self.path = path
        self.manifest = manifest
        self._lock = lock

    def has_opened(self) -> bool:
        """Return whether the log of any container was opened. Raises StartError: an epoch file is damaged."""
        return _has_opened(self.path)

    def close(self) -> None:
        """Unlock the folder."""
        os.close(self._lock)


def take_epoch(data: Path, container_id: int, floor: int = 0, files: FolderFiles = _FILES) -> int:
    """Take the next epoch of a container, above `floor`; durable before this returns.

    A lock per container prevents that two processes get the same epoch.

    Raises:
        StartError: the epoch file is damaged, or cannot be written. DiskFullError: the disk has no room for it.
        OverloadedError: another process takes one now.
    """
    with _epochs_locked(data, container_id, files):
        epoch = max(last_epoch(data, container_id, files), floor) + 1
        _write_epochs(data, container_id, epoch, opened_epoch(data, container_id, files), files)
    return epoch


def note_opened(data: Path, container_id: int, epoch: int, files: FolderFiles = _FILES) -> None:
    """Record durably that the container's log was opened for an epoch: the log must exist from now on.

    Raises:
        StartError: the epoch file is damaged or cannot be written. DiskFullError: the disk has no room for it.
        OverloadedError: another process takes an epoch now.
    """
    with _epochs_locked(data, container_id, files):
        opened = max(opened_epoch(data, container_id, files), epoch)
        _write_epochs(data, container_id, last_epoch(data, container_id, files), opened, files)


@contextlib.contextmanager
def _epochs_locked(data: Path, container_id: int, files: FolderFiles) -> Iterator[None]:
    """Lock an epoch file from its read to its write, so that no process overwrites another's change."""
    file = _epoch_file(data, container_id)
    if not files.is_directory(str(data)):
        raise StartError(f"data folder {data} is missing: it had the epochs of its containers")
    try:
        files.make_directory(str(file.parent))
        lock = files.try_lock_file(str(file.with_suffix(".lock")))
    except OSError as error:
        raise StartError(f"epoch file {file} cannot be written: {error.strerror}") from error
    if lock is None:
        raise OverloadedError(f"another process takes an epoch of container {container_id}")
    try:
        yield
    finally:
        lock.release()


def _write_epochs(data: Path, container_id: int, epoch: int, opened: int, files: FolderFiles) -> None:
    file = _epoch_file(data, container_id)
    content = json.dumps({"epoch": epoch, "opened": opened}).encode()
    try:
        files.replace_file(str(file), content)
        # A container opens on a full disk too, and takes an epoch for that. The file that was replaced made room.
        files.keep_room(str(file), len(content))
    except OSError as error:
        text = f"epoch file {file} cannot be written: {error.strerror}"
        raise (DiskFullError if error.errno in NO_SPACE else StartError)(text) from error


def last_epoch(data: Path, container_id: int, files: FolderFiles = _FILES) -> int:
    """Return the last epoch of a container; 0: none was taken. Raises StartError: the epoch file is damaged."""
    return _read_epochs(_epoch_file(data, container_id), files)[0]


def opened_epoch(data: Path, container_id: int, files: FolderFiles = _FILES) -> int:
    """Return the last epoch for which the container's log was opened; 0: none or unknown. Raises StartError."""
    return _read_epochs(_epoch_file(data, container_id), files)[1]


def _read_epochs(file: Path, files: FolderFiles) -> tuple[int, int]:
    found = files.read_file(str(file))
    if found is None:
        return 0, 0
    try:
        content = json.loads(found)
        return int(content["epoch"]), int(content.get("opened", 0))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StartError(f"epoch file {file} is damaged") from error


def _has_opened(path: Path) -> bool:
    """Return whether any container's log was opened. Raises StartError: an epoch file is damaged."""
    return any(_read_epochs(epochs, _FILES)[1] for epochs in sorted((path / "epochs").glob("*.json")))


def _epoch_file(data: Path, container_id: int) -> Path:
    return data / "epochs" / f"{container_id}.json"


def open_data_folder(
    path: Path, *, containers: int, tier2: str, entropy: Entropy, log: LogKind | None = None
) -> DataFolder:
    """Open or create a data folder.

    An existing folder keeps its number of containers (0: any), its Tier 2 (empty: in the folder) and its kind of log
    (None: any; files for a new folder). Other values are refused.

    Raises:
        StartError: in use, of a newer format, not writable, damaged, or with other values; the text says which.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        lock = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StartError(f"data folder {path} is not writable: {error.strerror}") from error
    _take_lock(path, lock)
    try:
        return DataFolder(path, lock, _manifest(path, containers, tier2, log, entropy))
    except BaseException:
        os.close(lock)
        raise


def read_data_folder(path: Path, *, tier2: str = "") -> DataFolder:
    """Lock a data folder for a tool that only reads it. `tier2`: the one that the folder must have, if not empty.

    Raises:
        StartError: missing, in use, of a newer format, damaged, or with another Tier 2; the text says which.
    """
    file = path / _MANIFEST
    if not file.exists():
        raise StartError(f"{path} is not a data folder: it has no {_MANIFEST}")
    # Without a lock file no server was here yet, as after a restore; each creates it first.
    locked = path / _LOCK if (path / _LOCK).exists() else file
    try:
        lock = os.open(locked, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise StartError(f"data folder {path} cannot be locked: {error.strerror}") from error
    _take_lock(path, lock)
    try:
        manifest = _read_manifest(file)
        _check_same(file, manifest, 0, tier2 or manifest.tier2, None)
        return DataFolder(path, lock, manifest)
    except BaseException:
        os.close(lock)
        raise


def _take_lock(path: Path, lock: int) -> None:
    """Lock the open file; close it when that fails."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        raise StartError(f"data folder {path} is in use by another process") from error


def _manifest(path: Path, containers: int, tier2: str, log: LogKind | None, entropy: Entropy) -> Manifest:
    file = path / _MANIFEST
    found = _read_manifest(file) if file.exists() else None
    had_logs = _has_opened(path)
    used = had_logs or (path / "log").exists()
    if had_logs and not (path / "log").exists() and (found is None or found.log == "file"):
        raise StartError(f"log folder {path / 'log'} is missing: it had the logs of this folder's containers")
    cluster_id = str(new_uuid(entropy))
    if found is not None:
        if used:
            _check_same(file, found, containers, tier2, log)
            return found
        # No data was ever stored: the first start failed, perhaps because of these values. Or a folder with object logs
        # has lost its epochs; then Tier 2 knows its cluster and number of containers.
        cluster_id, log = found.cluster_id, log or found.log
        if found.log == "object":
            containers = containers or found.containers
    containers = containers or limits.CONTAINERS_DEFAULT
    if not 1 <= containers <= limits.CONTAINERS_MAX:
        raise StartError(f"--containers {containers} is not between 1 and {limits.CONTAINERS_MAX}")
    if used:
        raise StartError(f"data folder {path} has a log but no {_MANIFEST}: it is damaged")
    manifest = Manifest(cluster_id, containers, tier2, log or "file")
    write_manifest(path, manifest)
    return manifest


def write_manifest(path: Path, manifest: Manifest) -> None:
    """Write the manifest of a data folder, durably. Raises StartError: it cannot be written."""
    # The folder may be new: its own entry must survive a power cut.
    sync_folder(path.parent)
    try:
        _FILES.replace_file(str(path / _MANIFEST), _encode_manifest(manifest).encode())
    except OSError as error:
        raise StartError(f"data folder {path} is not writable: {error.strerror}") from error


def _encode_manifest(manifest: Manifest) -> str:
    content = {"cluster": manifest.cluster_id, "containers": manifest.containers, "tier2": manifest.tier2}
    if manifest.log == "file":
        content = {"format": _FILE_LOG_FORMAT, **content}
    else:
        content = {"format": FORMAT, **content, "log": manifest.log}
    return json.dumps(content, indent=2) + "\n"


def _read_manifest(file: Path) -> Manifest:
    try:
        content = json.loads(file.read_text())
        version = int(content["format"])
        if version > FORMAT:  # first: other fields of a newer format may have other types
            raise StartError(f"{file}: format {version} is newer than this program's {FORMAT}")
        log = content.get("log", "file")
        if log not in ("file", "object"):
            raise ValueError(log)
        return Manifest(str(content["cluster"]), int(content["containers"]), str(content["tier2"]), log)
    except (ValueError, KeyError, TypeError) as error:
        raise StartError(f"{file} is damaged") from error


def _check_same(file: Path, manifest: Manifest, containers: int, tier2: str, log: LogKind | None) -> None:
    if log not in (None, manifest.log):
        raise StartError(f"{file}: the folder's logs are {manifest.log} logs, not {log} logs")
    if containers not in (0, manifest.containers):
        raise StartError(f"{file}: the folder has {manifest.containers} containers, not {containers}")
    if tier2 != manifest.tier2:
        raise StartError(f"{file}: the folder's Tier 2 is {manifest.tier2 or 'in the folder'}, not {tier2 or 'in it'}")
