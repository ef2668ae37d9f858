"""Files and folders below objects in a folder: parts of uploads, folders that only their user reads."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, cast

from tailrace.common.durable_folder import sync_folder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tailrace.storage.aligned_copies import AlignedCopy
    from tailrace.storage.direct_writes import DirectWrites

_NO_SYNC: Final = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EROFS})
"""Errors of a file system that does not sync folders, or is only read."""


@contextlib.contextmanager
def durable_part(path: Path, data: bytes | AlignedCopy, numbers: Iterator[int], direct: DirectWrites) -> Iterator[Path]:
    """Write a part of the object at `path` whose content is durable; hold its lock meanwhile, so that it stays.

    The block gives it the object's name, or removes it; it is removed when the block fails. No other put has it,
    whatever its process's id. Raises FileNotFoundError: its folder is gone.
    """
    with _new_part(path, numbers) as file:
        part = Path(file.name)
        try:
            with contextlib.suppress(OSError):  # a file system without locks: no part is ever deleted there
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            direct.write(file.fileno(), data)
            os.fsync(file.fileno())
            yield part
        except Exception:
            part.unlink(missing_ok=True)  # on a full disk, its bytes are needed
            raise


def _new_part(path: Path, numbers: Iterator[int]) -> BinaryIO:
    while True:
        # obstore does not list names with digits after "#".
        name = f"{path.name}#{os.getpid()}{next(numbers):09d}"
        try:
            return cast("BinaryIO", open(path.with_name(name), "xb", opener=_open_private))
        except FileExistsError:
            continue  # that of another process with this id, in another container, or before a restart


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


def part_files(folder: Path) -> Iterator[Path]:
    """Yield the files of interrupted puts below a folder. Folders may vanish meanwhile."""

    def failed(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError | NotADirectoryError | PermissionError):
            raise error

    for place, _, names in os.walk(folder, onerror=failed):
        yield from (Path(place, name) for name in names if "#" in name)


def parts_of(path: Path) -> Iterator[Path]:
    """Yield the files of interrupted puts of the object at `path`."""
    with contextlib.suppress(FileNotFoundError), os.scandir(path.parent) as entries:
        yield from (Path(entry) for entry in entries if entry.name.startswith(f"{path.name}#"))


def remove_unlocked(path: Path) -> bool:
    """Remove the file of an upload whose process has ended; return whether it did. A running one holds its lock."""
    with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False  # it is in use, or the file system has no locks
        if os.path.samestat(os.fstat(file.fileno()), path.stat()):  # else another put has the name now
            path.unlink()
            return True
    return False


def make_private(folder: Path) -> None:
    """Create a folder and its missing parents (`Path.mkdir` gives parents the mode of the umask)."""
    if folder.is_dir():
        return
    make_private(folder.parent)
    _make_one(folder)


def _make_one(folder: Path) -> None:
    try:
        folder.mkdir(0o700)
    except FileExistsError:
        if not stat.S_ISDIR(folder.stat().st_mode):
            raise  # else another process was first


def make_root(folder: Path) -> None:
    """Create the folder of a store and its missing parents, durably. Raises OSError."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    if not missing and not folder.is_dir():
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(folder))
    _sync_entry(folder if not missing else missing[-1].parent)  # who made it may have been killed before the sync
    for each in reversed(missing):  # a process that is killed leaves at most the last one unsynced
        _make_one(each)
        sync_folder(each.parent)


def _sync_entry(folder: Path) -> None:
    """Make the entry of a folder that exists durable, if this user may have made it. Raises OSError."""
    if os.path.ismount(folder):
        return
    try:
        sync_folder(folder.parent)
    except PermissionError:
        if os.access(folder.parent, os.W_OK):
            raise
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise
