"""Objects in a local folder, durable before they are acknowledged (docs/design.md#tier-2)."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import itertools
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from obstore.store import LocalStore

from tailrace.common import limits
from tailrace.common.durable_folder import sync_folder
from tailrace.common.errors import AlreadyExistsError, UnavailableError
from tailrace.storage.obstore_objects import ObstoreObjects
from tailrace.storage.port import Buffer, ObjectInfo

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class FolderObjects(ObstoreObjects):
    """A local folder whose objects are synced to disk before `put` returns (obstore itself does not sync).

    Only its user reads what it creates: files have mode 0600, folders 0700. Folders go with their last file. Any number
    of processes may use it at a time.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(LocalStore(str(folder)))
        self._folder = folder
        self._attempts = itertools.count(1)
        self._synced_ns: dict[Path, int] = {}
        """Folders with folders, by the time of the last change that is durable; bounded by the number of containers."""

    async def put(self, key: str, data: Sequence[Buffer], *, if_absent: bool = False) -> None:
        """Create an object: write a temporary file, sync it, rename it, sync the folders."""
        # A copy: the thread continues after a deadline or a cancellation, when the buffers may be reused.
        body = b"".join(data)
        await self._call("put", key, asyncio.to_thread(self._put_synced, key, body, if_absent))

    def unfinished(self) -> Iterator[ObjectInfo]:
        """Yield the files of interrupted puts; they are not objects."""
        for path in sorted(_part_files(self._folder)):
            try:
                found = path.stat()
            except FileNotFoundError:
                continue  # the put has ended meanwhile
            yield ObjectInfo(str(path.relative_to(self._folder)), found.st_size, found.st_mtime_ns // 1_000_000)

    async def list_parts(self, prefix: str, limit: int) -> list[str]:
        """See UploadParts.list_parts."""
        return await self._call("list", prefix, asyncio.to_thread(self._parts, prefix, limit))

    def _parts(self, prefix: str, limit: int) -> list[str]:
        found = itertools.islice(_part_files(self._folder / prefix), limit)
        return sorted(str(path.relative_to(self._folder)) for path in found)

    async def delete_parts(self, names: Sequence[str]) -> None:
        """See UploadParts.delete_parts."""
        for name in names:
            await self._call("delete", name, asyncio.to_thread(self._remove_part, self._folder / name))

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete objects, and the folders that become empty; missing ones are not an error."""
        for key in keys:
            await self._call("delete", key, asyncio.to_thread(self._remove, self._folder / key))

    def _remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)
        self._remove_empty(path.parent)

    def _remove_part(self, path: Path) -> None:
        _remove_unlocked(path)
        self._remove_empty(path.parent)

    def _remove_empty(self, folder: Path) -> None:
        """Remove a folder and its parents as far as they are empty; what cannot be removed does no harm."""
        while folder != self._folder:
            try:
                folder.rmdir()
            except OSError:
                return
            self._synced_ns.pop(folder, None)
            folder = folder.parent

    def _put_synced(self, key: str, data: bytes, if_absent: bool) -> None:
        folder = (self._folder / key).parent
        for _ in range(limits.STORAGE_FOLDER_ATTEMPTS):
            try:
                make_private(folder)
                self._place(key, data, if_absent)
                break
            except FileNotFoundError:
                continue  # a deletion removed the folder before there was a file in it
        else:
            raise UnavailableError(f"put {key}: its folder was removed {limits.STORAGE_FOLDER_ATTEMPTS} times")
        try:
            sync_folder(folder)
            self._sync_way_to(folder)
        except FileNotFoundError as error:
            raise UnavailableError(f"put {key}: the object was deleted before it was durable") from error

    def _place(self, key: str, data: bytes, if_absent: bool) -> None:
        """Store a file whose content is durable. Raises AlreadyExistsError; FileNotFoundError: its folder is gone."""
        path = self._folder / key
        # obstore does not list names with digits after "#". Concurrent puts must not share a name.
        temporary = path.with_name(f"{path.name}#{os.getpid()}{next(self._attempts):09d}")
        try:
            with open(temporary, "wb", opener=_open_private) as file:
                with contextlib.suppress(OSError):  # a file system without locks: no part is ever deleted there
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        except BaseException:
            temporary.unlink(missing_ok=True)  # on a full disk, its bytes are needed
            raise
        if if_absent:
            try:
                os.link(temporary, path)
            except FileExistsError as error:
                raise AlreadyExistsError(f"object {key} exists already") from error
            finally:
                temporary.unlink(missing_ok=True)
        else:
            temporary.replace(path)

    def _sync_way_to(self, folder: Path) -> None:
        """Make the entries of a folder and its parents durable: their creator may not have synced them yet.

        Any process may have removed and made a folder again. So a parent is synced unless its time of change is that
        of an earlier sync. A time is remembered only once it has passed: a further change might get the same.
        """
        now_ns = folder.stat().st_mtime_ns  # that of the put itself: what changes from now on does not get a lower one
        while folder != self._folder:
            folder = folder.parent
            changed_ns = folder.stat().st_mtime_ns
            if self._synced_ns.get(folder) != changed_ns:
                sync_folder(folder)
                if changed_ns < now_ns:
                    self._synced_ns[folder] = changed_ns


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


def make_private(folder: Path) -> None:
    """Create a folder and its missing parents (`Path.mkdir` gives parents the mode of the umask)."""
    if folder.is_dir():
        return
    make_private(folder.parent)
    try:
        folder.mkdir(0o700)
    except FileExistsError:
        if not stat.S_ISDIR(folder.stat().st_mode):
            raise  # else another process was first


def _part_files(folder: Path) -> Iterator[Path]:
    """Yield the files of interrupted puts below a folder. Folders may vanish meanwhile."""

    def failed(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError | PermissionError):
            raise error

    for place, _, names in os.walk(folder, onerror=failed):
        yield from (Path(place, name) for name in names if "#" in name)


def _remove_unlocked(path: Path) -> None:
    """Remove the file of an upload whose process has ended: a running one holds its lock."""
    with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return  # it is in use, or the file system has no locks
        path.unlink(missing_ok=True)
