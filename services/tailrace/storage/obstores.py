"""Implements object stores with obstore: local folder, S3 and compatible stores, memory (docs/design.md#tier-2)."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import itertools
import os
import re
import stat
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar
from urllib.parse import urlsplit

import obstore
from obstore.exceptions import AlreadyExistsError as ObjectExistsError
from obstore.exceptions import BaseError as ObjectStoreError
from obstore.exceptions import PermissionDeniedError as ObjectPermissionError
from obstore.store import LocalStore, MemoryStore, S3Store

from tailrace.common import limits
from tailrace.common.durable_folder import sync_folder
from tailrace.common.errors import (
    AlreadyExistsError,
    CorruptionError,
    DeadlineError,
    NoSuchBucketError,
    NotFoundError,
    StartError,
    UnavailableError,
)
from tailrace.storage.port import Buffer, ObjectInfo

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Iterator, Sequence

    from tailrace.storage.port import ObjectStore

Store: TypeAlias = LocalStore | MemoryStore | S3Store
T = TypeVar("T")


class ObstoreObjects:
    """The port over any obstore store; prepends `prefix` to every key."""

    def __init__(self, store: Store, prefix: str = "") -> None:
        self._store: Any = store
        self._prefix = prefix.strip("/") + "/" if prefix.strip("/") else ""

    async def _call(self, what: str, key: str, call: Awaitable[T]) -> T:
        try:
            async with asyncio.timeout(limits.STORAGE_CALL_DEADLINE_S):
                return await call
        except TimeoutError as error:
            raise DeadlineError(f"{what} {key}: no answer in {limits.STORAGE_CALL_DEADLINE_S:.0f} s") from error
        except (FileNotFoundError, obstore.exceptions.NotFoundError) as error:
            raise self._missing(what, key, error) from error
        except ObjectExistsError as error:
            raise AlreadyExistsError(f"object {key} exists already") from error
        except AlreadyExistsError:
            raise
        except (ObjectStoreError, OSError) as error:
            raise UnavailableError(f"{what} {key}: {_first_line(error)}") from error

    def _missing(self, what: str, key: str, error: BaseException) -> NotFoundError | UnavailableError:
        """Return what a 404 means: from S3 that an object is missing only with its code, for a read.

        A proxy before the store answers 404, too, and knows nothing of objects.
        """
        if not isinstance(self._store, S3Store):
            return NotFoundError(f"object {key} does not exist")
        code = _field(error, "Code")
        if code == "NoSuchKey" and what == "get":
            return NotFoundError(f"object {key} does not exist")
        if code == "NoSuchBucket":
            return NoSuchBucketError(f"{what} {key}: {_first_line(error)}")
        return UnavailableError(f"{what} {key}: the object store did not answer: {_first_line(error)}")

    async def put(self, key: str, data: Sequence[Buffer], *, if_absent: bool = False) -> None:
        """Create an object from the joined buffers in a single request, never multipart."""
        body = data[0] if len(data) == 1 else b"".join(data)
        mode: Literal["create", "overwrite"] = "create" if if_absent else "overwrite"
        call = obstore.put_async(self._store, self._prefix + key, bytes(body), mode=mode, use_multipart=False)
        await self._call("put", key, call)

    async def get(self, key: str) -> bytes:
        """Return a whole object."""

        async def whole() -> bytes:
            result = await obstore.get_async(self._store, self._prefix + key)
            return bytes(await result.bytes_async())

        return await self._call("get", key, whole())

    async def get_range(self, key: str, offset: int, length: int) -> bytes:
        """Return exactly `length` bytes from `offset`."""
        if length == 0:
            return b""
        call = obstore.get_range_async(self._store, self._prefix + key, start=offset, length=length)
        try:
            data = bytes(await self._call("get", key, call))
        except UnavailableError as error:
            # Each store has its own text for a range beyond the end, and "range" may be part of any message.
            if "range" in str(error).lower() and await self._size(key) < offset + length:
                raise CorruptionError(f"object {key} at {offset}", "object is shorter than its reference") from error
            raise
        if len(data) != length:
            raise CorruptionError(f"object {key} at {offset}", f"object ends {length - len(data)} bytes early")
        return data

    async def _size(self, key: str) -> int:
        return int((await self._call("head", key, obstore.head_async(self._store, self._prefix + key)))["size"])

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        """Yield the objects below `prefix` (whole path parts)."""
        stream = obstore.list(self._store, prefix=self._prefix + prefix, chunk_size=1000)
        pages = stream.__aiter__()
        while True:
            try:
                page = await self._call("list", prefix, pages.__anext__())
            except StopAsyncIteration:
                return
            for meta in page:
                modified_ms = round(meta["last_modified"].timestamp() * 1000)
                yield ObjectInfo(meta["path"].removeprefix(self._prefix), meta["size"], modified_ms)

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete objects; missing ones are not an error. An S3 store gets one request for all of them."""
        if keys and isinstance(self._store, S3Store):  # which answers that missing objects are deleted
            paths = [self._prefix + key for key in keys]
            await self._call("delete", keys[0], obstore.delete_async(self._store, paths))
            return
        for key in keys:
            with contextlib.suppress(NotFoundError):
                await self._call("delete", key, obstore.delete_async(self._store, self._prefix + key))

    async def close(self) -> None:
        """Do nothing: obstore closes its connections with the store object."""


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
                _make_private(folder)
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


def _make_private(folder: Path) -> None:
    """Create a folder and its missing parents (`Path.mkdir` gives parents the mode of the umask)."""
    if folder.is_dir():
        return
    _make_private(folder.parent)
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


def _first_line(error: BaseException) -> str:
    """Return a store's error in one line, with the code and message of its XML in place of the XML."""
    text = str(error).strip()
    details = [found for name in ("Code", "Message") if (found := _field(error, name))]
    line = (text or type(error).__name__).splitlines()[0].partition(": <?xml")[0]
    line = re.sub("^Object at location .*? not found: ", "", line)  # that of a deletion has all its keys
    return ": ".join([line[:300], *details])


def _field(error: BaseException, name: str) -> str:
    """Return a field of the XML with which S3 answered; empty: there is none."""
    found = re.search(f"<{name}>(.*?)</{name}>", str(error), re.DOTALL)
    return found[1].strip() if found else ""


@dataclass(frozen=True, slots=True)
class S3Credentials:
    """An access key of an S3 store; its text shows no secret. ``session_token`` is empty for a lasting key."""

    access_key_id: str
    secret_access_key: str = field(repr=False)
    session_token: str = field(default="", repr=False)


def open_object_store(
    url: str,
    *,
    s3_endpoint: str | None = None,
    s3_region: str | None = None,
    s3_credentials: S3Credentials | None = None,
    create: bool = True,
) -> ObjectStore:
    """Open an object store from ``file:///folder``, ``s3://bucket/prefix`` or ``memory://``.

    Creates a missing folder, unless `create` is false. Credentials and region come from the environment
    (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION); `s3_region` and `s3_credentials` override them.

    Raises:
        StartError: the URL has another form, or the folder cannot be used.
    """
    parts = urlsplit(url)
    if parts.scheme == "memory":
        return ObstoreObjects(MemoryStore())
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
            raise StartError(f"Tier 2 {url!r}: the folder must be absolute, with three slashes: file:///folder")
        folder = Path(parts.path)
        if not create and not folder.is_dir():
            raise StartError(f"Tier 2 folder {folder} does not exist")
        try:
            _make_private(folder)
        except OSError as error:
            raise StartError(f"Tier 2 folder {folder} cannot be used: {error.strerror}") from error
        return FolderObjects(folder)
    if parts.scheme == "s3" and parts.netloc:
        options: dict[str, Any] = {}
        if s3_endpoint:
            options = {"endpoint": s3_endpoint, "virtual_hosted_style_request": False}
            options.setdefault("region", "us-east-1")
        if s3_region:
            options["region"] = s3_region
        if s3_credentials:
            options["access_key_id"] = s3_credentials.access_key_id
            options["secret_access_key"] = s3_credentials.secret_access_key
        if s3_credentials and s3_credentials.session_token:
            options["session_token"] = s3_credentials.session_token
        store = S3Store(
            parts.netloc,
            client_options={"allow_http": True, "timeout": timedelta(seconds=limits.STORAGE_CALL_DEADLINE_S)},
            retry_config={"max_retries": 3, "retry_timeout": timedelta(seconds=10)},
            **options,
        )
        return ObstoreObjects(store, parts.path)
    raise StartError(f"Tier 2 {url!r} is neither file:///folder nor s3://bucket/prefix")


async def probe(store: ObjectStore, nonce: str, place: str = "Tier 2") -> None:
    """Write, read back and delete one object, to find a wrong address or credential at start.

    Raises:
        StartError: it is no store for this cluster; the text names `place` and the store's error.
        UnavailableError: it does not take objects, as a full one, or does not answer; the text says the same.
    """
    key = f"probe/{nonce}"
    try:
        try:
            await store.put(key, [nonce.encode()], if_absent=True)
        except (NoSuchBucketError, NotFoundError) as error:
            raise StartError(f"{place} does not exist: objects cannot be stored there") from error
        if await store.get(key) != nonce.encode():
            raise StartError(f"{place} returned other bytes than those written")
        await store.delete([key])
    except UnavailableError as error:
        raise UnavailableError(f"{place} is not available: {error}") from error
    except (AlreadyExistsError, NotFoundError, ObjectPermissionError) as error:
        raise StartError(f"{place} is not available: {error}") from error
