"""The data folder of a standalone server: its user, its format, and the epochs of its containers (design §9).

Runs once at start, before the server serves, so it uses the file system directly.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from tailrace.common import limits
from tailrace.common.durable_folder import sync_folder
from tailrace.common.errors import OverloadedError, StartError
from tailrace.common.ports import Entropy, new_uuid

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FORMAT: Final = 2
_FILE_LOG_FORMAT: Final = 1
"""Of folders whose logs are in files; programs that know no other logs must not open others."""
LogKind: TypeAlias = Literal["file", "object"]

_MANIFEST: Final = "tailrace.json"
_LOCK: Final = "lock"


@dataclass(frozen=True, slots=True)
class Manifest:
    """What ``tailrace.json`` says."""

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

    def close(self) -> None:
        """Let another process use the folder."""
        os.close(self._lock)


def take_epoch(data: Path, container_id: int, floor: int = 0) -> int:
    """Take the next epoch of a container, above `floor` too; durable before it is returned.

    Read and written under a lock of the container's own: no two processes get the same one.

    Raises:
        StartError: the epoch file is damaged, or cannot be written. OverloadedError: another process takes one now.
    """
    with _epochs_locked(data, container_id):
        epoch = max(last_epoch(data, container_id), floor) + 1
        _write_epochs(data, container_id, epoch, opened_epoch(data, container_id))
    return epoch


def note_opened(data: Path, container_id: int, epoch: int) -> None:
    """Remember durably that the container's log was opened for an epoch: it must be there from now on.

    Raises:
        StartError: the epoch file is damaged or cannot be written. OverloadedError: another process takes an epoch now.
    """
    with _epochs_locked(data, container_id):
        opened = max(opened_epoch(data, container_id), epoch)
        _write_epochs(data, container_id, last_epoch(data, container_id), opened)


@contextlib.contextmanager
def _epochs_locked(data: Path, container_id: int) -> Iterator[None]:
    """Between reading and writing of an epoch file: else one process could write back what another has changed."""
    file = _epoch_file(data, container_id)
    try:
        if not file.parent.exists():
            file.parent.mkdir(exist_ok=True)
            sync_folder(data)
        lock = os.open(file.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StartError(f"epoch file {file} cannot be written: {error.strerror}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        raise OverloadedError(f"another process takes an epoch of container {container_id}") from error
    try:
        yield
    finally:
        os.close(lock)


def _write_epochs(data: Path, container_id: int, epoch: int, opened: int) -> None:
    file = _epoch_file(data, container_id)
    try:
        _write_synced(file, json.dumps({"epoch": epoch, "opened": opened}))
    except OSError as error:
        raise StartError(f"epoch file {file} cannot be written: {error.strerror}") from error


def last_epoch(data: Path, container_id: int) -> int:
    """The epoch of a container that was taken last; 0: none was. Raises StartError: the epoch file is damaged."""
    return _read_epochs(_epoch_file(data, container_id))[0]


def opened_epoch(data: Path, container_id: int) -> int:
    """The last epoch for which the container's log was opened; 0: none, or that is not known. Raises StartError."""
    return _read_epochs(_epoch_file(data, container_id))[1]


def _read_epochs(file: Path) -> tuple[int, int]:
    if not file.exists():
        return 0, 0
    try:
        content = json.loads(file.read_text())
        return int(content["epoch"]), int(content.get("opened", 0))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StartError(f"epoch file {file} is damaged") from error


def _epoch_file(data: Path, container_id: int) -> Path:
    return data / "epochs" / f"{container_id}.json"


def open_data_folder(
    path: Path, *, containers: int, tier2: str, entropy: Entropy, log: LogKind | None = None
) -> DataFolder:
    """Open or create a data folder.

    An existing folder keeps its number of containers (0 asks for no number), its Tier 2 (empty: in the folder) and its
    kind of log (None: as it is, files for a new one); asking for others is refused.

    Raises:
        StartError: in use, of a newer format, not writable, damaged, or of another shape; says which.
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
    """Lock a data folder for a tool that changes nothing in it. `tier2`: the one that the folder must have, if any.

    Raises:
        StartError: none, in use, of a newer format, damaged, or with another Tier 2; says which.
    """
    file = path / _MANIFEST
    if not file.exists():
        raise StartError(f"{path} is no data folder: it has no {_MANIFEST}")
    try:
        lock = os.open(path / _LOCK, os.O_RDONLY | os.O_CLOEXEC)
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
    """Lock the open file; closed when that fails."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        raise StartError(f"data folder {path} is in use by another process") from error


def _manifest(path: Path, containers: int, tier2: str, log: LogKind | None, entropy: Entropy) -> Manifest:
    file = path / _MANIFEST
    found = _read_manifest(file) if file.exists() else None
    had_logs = any(_read_epochs(epochs)[1] for epochs in sorted((path / "epochs").glob("*.json")))
    used = had_logs or (path / "log").exists()
    if had_logs and not (path / "log").exists() and (found is None or found.log == "file"):
        raise StartError(f"log folder {path / 'log'} is missing: it had the logs of this folder's containers")
    cluster_id = str(new_uuid(entropy))
    if found is not None:
        if used:
            _check_same(file, found, containers, tier2, log)
            return found
        # Nothing was ever stored: the first start failed, perhaps because of just these values. Or the epochs were lost
        # of a folder whose logs are in objects; Tier 2 knows its cluster, and what it must have.
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
    """Make a folder a data folder, durably. Raises StartError: it cannot be written."""
    # The folder itself may be new: its own entry must survive a power cut too.
    sync_folder(path.parent)
    try:
        _write_synced(path / _MANIFEST, _encode_manifest(manifest))
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
        if version > FORMAT:  # before all else: its other fields may be of another kind
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


def _write_synced(file: Path, text: str) -> None:
    temporary = file.with_suffix(".part")
    with temporary.open("w") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    temporary.replace(file)
    sync_folder(file.parent)
