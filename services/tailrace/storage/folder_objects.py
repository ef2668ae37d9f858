"""Objects in a local folder, durable before they are acknowledged (docs/design.md#objects-in-a-folder)."""

from __future__ import annotations

import asyncio
import itertools
import os
from pathlib import Path
from typing import TYPE_CHECKING

from obstore.store import LocalStore

from tailrace.common import limits
from tailrace.common.durable_folder import sync_folder
from tailrace.common.errors import AlreadyExistsError, NotFoundError, UnavailableError
from tailrace.storage.aligned_copies import AlignedCopies, AlignedCopy
from tailrace.storage.direct_writes import DirectWrites
from tailrace.storage.folder_files import durable_part, make_private, part_files, parts_of, remove_unlocked
from tailrace.storage.obstore_objects import ObstoreObjects
from tailrace.storage.port import Buffer, ObjectInfo
from tailrace.storage.unsynced_keys import UnsyncedKey, UnsyncedKeys

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator, Sequence

    from obstore import GetResult


class FolderObjects(ObstoreObjects):
    """A local folder whose objects are synced to disk before `put` returns (obstore itself does not sync).

    An object of this process that may not be durable is not reported to exist: reads make it durable first.
    Only its user reads what it creates: files have mode 0600, folders 0700. Folders go with their last file. Any number
    of processes may use it at a time.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(LocalStore(str(folder)))
        self._folder = folder
        self._numbers = itertools.count(1)
        self._copies = AlignedCopies()
        self._direct = DirectWrites(folder)
        self._unsynced = UnsyncedKeys()
        self._synced_ns: dict[Path, int] = {}
        """Folders with folders, by the time of the last change that is durable; bounded by the number of containers."""

    async def put(self, key: str, data: Sequence[Buffer], *, if_absent: bool = False) -> None:
        """Create an object: write a temporary file, sync it, rename it, sync the folders."""
        # A copy: the thread continues after a deadline or a cancellation, when the buffers may be reused.
        length = sum(map(len, data))
        small = length < limits.STORAGE_DIRECT_MIN_BYTES
        body = b"".join(data) if small else self._copies.take(data, length)
        await self._call("put", key, asyncio.to_thread(self._put_synced, key, body, if_absent), length)

    async def _whole(self, key: str, result: GetResult) -> bytes:
        data = await super()._whole(key, result)
        if key in self._unsynced:  # looked at afterwards: see UnsyncedKeys
            await asyncio.to_thread(self._confirm, key, limits.STORAGE_UNSYNCED_READ_S)
        return data

    async def _range(self, key: str, offset: int, length: int) -> bytes:
        data = await super()._range(key, offset, length)
        if key in self._unsynced:
            await asyncio.to_thread(self._confirm, key, limits.STORAGE_UNSYNCED_READ_S)
        return data

    async def make_durable(self, folder: str) -> None:
        """See FolderStore.make_durable."""
        await self._call(
            "sync", folder or str(self._folder), asyncio.to_thread(self._sync_found, self._folder / folder)
        )

    def unfinished(self) -> Iterator[ObjectInfo]:
        """Yield the files of interrupted puts; they are not objects."""
        return self._described(sorted(part_files(self._folder)))

    async def list_parts(self, prefix: str, limit: int) -> list[ObjectInfo]:
        """See UploadParts.list_parts."""
        return await self._call("list", prefix, asyncio.to_thread(self._parts, prefix, limit))

    def _parts(self, prefix: str, limit: int) -> list[ObjectInfo]:
        place = self._folder / prefix
        found = itertools.chain(parts_of(place), part_files(place))
        return list(self._described(sorted(itertools.islice(found, limit))))

    def _described(self, paths: Iterable[Path]) -> Iterator[ObjectInfo]:
        for path in paths:
            try:
                found = path.stat()
            except FileNotFoundError:
                continue  # the put has ended meanwhile
            yield ObjectInfo(str(path.relative_to(self._folder)), found.st_size, found.st_mtime_ns // 1_000_000)

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        """Yield the objects below `prefix` (whole path parts)."""
        async for info in super().list(prefix):
            if info.key in self._unsynced:
                try:
                    await self._call("list", info.key, asyncio.to_thread(self._confirm, info.key))
                except NotFoundError:
                    continue
            yield info

    async def delete_parts(self, names: Sequence[str]) -> int:
        """See UploadParts.delete_parts."""
        deleted = 0
        for name in names:
            deleted += await self._call("delete", name, asyncio.to_thread(self._remove_part, self._folder / name))
        return deleted

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete objects, and the folders that become empty; missing ones are not an error."""
        for key in keys:
            await self._call("delete", key, asyncio.to_thread(self._remove, key))

    def _remove(self, key: str) -> None:
        path = self._folder / key
        if key in self._unsynced:  # a thread that gives the key to a copy now would bring the object back
            with self._unsynced.held(key) as state:
                path.unlink(missing_ok=True)
                state.uncertain = False
        else:
            path.unlink(missing_ok=True)
        self._remove_empty(path.parent)

    def _remove_part(self, path: Path) -> bool:
        removed = remove_unlocked(path)
        self._remove_empty(path.parent)
        return removed

    def _remove_empty(self, folder: Path) -> None:
        """Remove a folder and its parents as far as they are empty; what cannot be removed does no harm."""
        while folder != self._folder:
            try:
                folder.rmdir()
            except OSError:
                return
            self._synced_ns.pop(folder, None)
            folder = folder.parent

    def _put_synced(self, key: str, data: bytes | AlignedCopy, if_absent: bool) -> None:
        try:
            self._put_in_folder(key, data, if_absent)
        finally:
            if isinstance(data, AlignedCopy):
                self._copies.give(data)

    def _put_in_folder(self, key: str, data: bytes | AlignedCopy, if_absent: bool) -> None:
        self._limit_unsynced(key)
        folder = (self._folder / key).parent
        for _ in range(limits.STORAGE_FOLDER_ATTEMPTS):
            try:
                make_private(folder)
                self._place(key, data, if_absent)
                return
            except FileNotFoundError:
                continue  # a deletion removed the folder before there was a file in it
        raise UnavailableError(f"put {key}: its folder was removed {limits.STORAGE_FOLDER_ATTEMPTS} times")

    def _place(self, key: str, data: bytes | AlignedCopy, if_absent: bool) -> None:
        """Store an object durably.

        Raises:
            AlreadyExistsError: `if_absent` and the key exists, which is durable.
            UnavailableError: it was deleted meanwhile. FileNotFoundError: its folder is gone.
        """
        with self._unsynced.held(key) as state:
            existed = self._enter(key, data, state, if_absent)
            try:
                self._sync(key, state)
            except FileNotFoundError as error:
                raise UnavailableError(f"put {key}: the object was deleted before it was durable") from error
        if existed:
            raise AlreadyExistsError(f"object {key} exists already")

    def _enter(self, key: str, data: bytes | AlignedCopy, state: UnsyncedKey, if_absent: bool) -> bool:
        """Create the object, or return True: `if_absent` and there is one. Raises FileNotFoundError."""
        path, before = self._folder / key, state.uncertain
        try:
            with durable_part(path, data, self._numbers, self._direct) as part:
                # Before it is visible; also an object that another process may not have synced yet.
                state.uncertain = True
                if not if_absent:
                    part.replace(path)
                    return False
                try:
                    os.link(part, path)
                    return False
                except FileExistsError:
                    pass
                finally:
                    part.unlink(missing_ok=True)
            if before:
                self._enter_again(key)
        except FileNotFoundError:
            state.uncertain = before
            raise
        return True

    def _enter_again(self, key: str) -> None:
        """Give an object's key to a copy of its file, because a sync of its entry has failed.

        A file system without a journal drops an entry that it could not write, still shows it, and says that the next
        sync succeeds. A journal that cannot be written takes no further changes at all. So what was changed after the
        failure, and synced, is durable on both. Objects are immutable: the copy is the object. A deletion by another
        process meanwhile may be undone, as by a put that ends late.

        Raises:
            FileNotFoundError: the object was deleted. UnavailableError: the copy was.
        """
        path = self._folder / key
        data = path.read_bytes()
        try:
            with durable_part(path, data, self._numbers, self._direct) as copy:
                copy.replace(path)
        except FileNotFoundError as error:
            raise UnavailableError(f"object {key}: its copy was deleted before it was durable") from error

    def _sync(self, key: str, state: UnsyncedKey) -> None:
        """Make an object's entry durable, and the folders on the way. Raises FileNotFoundError: they were deleted."""
        folder = (self._folder / key).parent
        try:
            sync_folder(folder)
            self._sync_way_to(folder)
        except FileNotFoundError:
            state.uncertain = False
            raise
        state.uncertain = False

    def _confirm(self, key: str, wait_s: float | None = None) -> None:
        """Wait at most `wait_s` for a put that is under way, then make the object durable if the put has not.

        Raises:
            FileNotFoundError: it was deleted. OSError, UnavailableError: it may not survive a power cut.
        """
        with self._unsynced.held(key, wait_s) as state:
            if not state.uncertain:
                return
            try:
                self._enter_again(key)
            except FileNotFoundError:
                state.uncertain = False
                raise
            self._sync(key, state)

    def _limit_unsynced(self, key: str) -> None:
        """Refuse a put while too many objects are uncertain, unless the oldest of them becomes durable, or is gone.

        Objects of failed uploads are never read, so nothing else makes them durable.
        """
        surplus = self._unsynced.surplus()
        if surplus is None:
            return
        try:
            self._confirm(surplus)
        except FileNotFoundError:
            return
        except OSError as error:
            raise UnavailableError(f"put {key}: objects that were put before are not durable yet: {error}") from error

    def _sync_found(self, folder: Path) -> None:
        """Make durable what is in a folder now; if it has vanished, that it has.

        Raises UnavailableError: the store's own folder has vanished.
        """
        while True:
            try:
                sync_folder(folder)
                self._sync_way_to(folder)
                return
            except FileNotFoundError as error:
                if folder == self._folder:
                    raise UnavailableError(f"the folder {folder} does not exist") from error
                folder = folder.parent

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
