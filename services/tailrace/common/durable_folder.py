"""Small files of a folder, replaced whole and durably.

A new, renamed or deleted file may be lost in a power cut until its folder is synced.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
from collections.abc import Callable
from typing import Final, Protocol, TypeVar

_T = TypeVar("_T")
NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
"""Errors of a full disk."""


class FileLock(Protocol):
    """An exclusive lock."""

    def release(self) -> None:
        """Unlock; idempotent."""
        ...


class FolderFiles(Protocol):
    """The port for small files. An OSError means that the disk failed."""

    def read_file(self, path: str) -> bytes | None:
        """Return the content of a file, or None when there is no such file."""
        ...

    def replace_file(self, path: str, content: bytes) -> None:
        """Replace a file or create it, durably: a power cut leaves the old content or the new one."""
        ...

    def keep_room(self, path: str, length_bytes: int) -> None:
        """Keep room for the next `replace_file` of a content of that length, so that it works on a full disk.

        Does nothing when the disk has no room now.
        """
        ...

    def is_directory(self, path: str) -> bool:
        """Return whether there is such a directory."""
        ...

    def make_directory(self, directory: str) -> None:
        """Create a directory durably, with its parents, unless it exists."""
        ...

    def try_lock_file(self, path: str) -> FileLock | None:
        """Lock a file, which is created when missing. Return None when another process holds the lock."""
        ...

    async def in_background(self, function: Callable[[], _T]) -> _T:
        """Run a function that uses these files without blocking the event loop."""
        ...


class RealFolderFiles:
    """The machine's file system."""

    def read_file(self, path: str) -> bytes | None:
        """See FolderFiles.read_file."""
        try:
            with open(path, "rb") as stream:
                return stream.read()
        except FileNotFoundError:
            return None

    def replace_file(self, path: str, content: bytes) -> None:
        """See FolderFiles.replace_file."""
        temporary = _part_of(path)
        _write_part(temporary, content)
        os.replace(temporary, path)
        sync_folder(os.path.dirname(path))

    def keep_room(self, path: str, length_bytes: int) -> None:
        """See FolderFiles.keep_room."""
        try:
            _write_part(_part_of(path), bytes(length_bytes))
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise

    def is_directory(self, path: str) -> bool:
        """See FolderFiles.is_directory."""
        return os.path.isdir(path)

    def make_directory(self, directory: str) -> None:
        """See FolderFiles.make_directory."""
        missing = []
        place = os.path.abspath(directory)
        while not os.path.isdir(place):
            missing.append(place)
            place = os.path.dirname(place)
        for path in reversed(missing):
            with contextlib.suppress(FileExistsError):
                os.mkdir(path, 0o750)
            sync_folder(os.path.dirname(path))

    def try_lock_file(self, path: str) -> RealFileLock | None:
        """See FolderFiles.try_lock_file."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        except BaseException:
            os.close(descriptor)
            raise
        return RealFileLock(descriptor)

    async def in_background(self, function: Callable[[], _T]) -> _T:
        """See FolderFiles.in_background."""
        return await asyncio.get_running_loop().run_in_executor(None, function)


def _part_of(path: str) -> str:
    """Return the name under which a file's next content is written."""
    return os.path.splitext(path)[0] + ".part"


def _write_part(path: str, content: bytes) -> None:
    """Write a file durably into the blocks that it has already, if any: a full disk has no others."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    with open(descriptor, "r+b") as stream:
        stream.write(content)
        stream.truncate()
        stream.flush()
        os.fsync(stream.fileno())


class RealFileLock:
    """A lock that this process holds by flock."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def release(self) -> None:
        """See FileLock.release."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def sync_folder(folder: str | os.PathLike[str]) -> None:
    """Write the entries of a folder to the disk. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
