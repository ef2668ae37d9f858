"""The port over any store of obstore (docs/design.md#tier-2)."""

from __future__ import annotations

import asyncio
import contextlib
import re
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypeVar

import obstore
from obstore.exceptions import AlreadyExistsError as ObjectExistsError
from obstore.exceptions import BaseError as ObjectStoreError
from obstore.store import LocalStore, MemoryStore, S3Store

from tailrace.common import limits
from tailrace.common.errors import (
    AlreadyExistsError,
    CorruptionError,
    DeadlineError,
    NoSuchBucketError,
    NotFoundError,
    ObjectNotDeletedError,
    SlowDownError,
    UnavailableError,
)
from tailrace.storage.port import Buffer, ObjectInfo
from tailrace.storage.request_deadline import call_deadline_s

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Sequence

    from obstore import GetResult, ObjectMeta

Store: TypeAlias = LocalStore | MemoryStore | S3Store
T = TypeVar("T")
_DELETE_FAILED: Final = re.compile(
    r'DeleteFailed \{\s+path: "(?P<path>[^"]+)",\s+code: "(?P<code>[^"]*)",\s+message: "(?P<message>[^"]*)"'
)
"""In the text of an error of obstore: S3 has answered that it did not delete this object of several."""
_DELETED_LATER: Final = frozenset(
    {"InternalError", "OperationAborted", "RequestTimeout", "ServiceUnavailable", "SlowDown"}
)
LIST_PAGE_OBJECTS: Final = 1000
"""How many objects S3 lists in a page that is not the last one."""
_NEVER_WRITTEN: Final = "probe/never-written"
_IN_PLACE: Final = "something else answers in place of the object store, such as a proxy"
_SLOW_DOWN: Final = re.compile(r"status code: (429|503)\b")
"""In the text of an error of obstore, which has repeated the request before, for less than a second."""


class ObstoreObjects:
    """The port over any obstore store; prepends `prefix` to every key."""

    def __init__(self, store: Store, prefix: str = "") -> None:
        self._store: Any = store
        self._prefix = prefix.strip("/") + "/" if prefix.strip("/") else ""
        self._known = ""
        """The object that was written or read last; empty: none."""

    async def _call(
        self, what: str, key: str, call: Awaitable[T], length_bytes: int = 0, *, began_s: float | None = None
    ) -> T:
        """Await a call that moves so many bytes, within its deadline, which counts from `began_s`; None: from now."""
        now_s, deadline_s = asyncio.get_running_loop().time(), call_deadline_s(length_bytes)
        try:
            async with asyncio.timeout_at((now_s if began_s is None else began_s) + deadline_s):
                return await call
        except TimeoutError as error:
            raise DeadlineError(f"{what} {key}: no answer in {deadline_s:g} s") from error
        except (FileNotFoundError, obstore.exceptions.NotFoundError) as error:
            raise self._missing(what, key, error) from error
        except ObjectExistsError as error:
            raise AlreadyExistsError(f"object {key} exists already") from error
        except (AlreadyExistsError, ObjectNotDeletedError):
            raise
        except (ObjectStoreError, OSError) as error:
            if what == "delete" and (refused := self._refused_deletion(key, error)) is not None:
                raise refused from error
            kind = SlowDownError if _SLOW_DOWN.search(str(error)) else UnavailableError
            raise kind(f"{what} {key}: {_first_line(error)}") from error

    def _refused_deletion(self, key: str, error: BaseException) -> ObjectNotDeletedError | None:
        """Return the error of one object, where the store answered that it deletes others but not that one.

        S3 has deleted the others of the request by then. It also says so of an object that it may delete soon.
        """
        if isinstance(error, PermissionError):  # of a folder
            return ObjectNotDeletedError(key, _first_line(error))
        found = _DELETE_FAILED.search(str(error))
        if found is None or found["code"] in _DELETED_LATER:
            return None
        return ObjectNotDeletedError(found["path"].removeprefix(self._prefix), f"{found['code']}: {found['message']}")

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
        body = bytes(data[0] if len(data) == 1 else b"".join(data))
        mode: Literal["create", "overwrite"] = "create" if if_absent else "overwrite"
        call = obstore.put_async(self._store, self._prefix + key, body, mode=mode, use_multipart=False)
        await self._call("put", key, call, len(body))
        self._known = key

    async def get(self, key: str) -> bytes:
        """Return a whole object. Its length is known, and counts, once the store has begun to answer."""
        began_s = asyncio.get_running_loop().time()
        result = await self._call("get", key, obstore.get_async(self._store, self._prefix + key))
        data = await self._call("get", key, self._whole(key, result), result.meta["size"], began_s=began_s)
        self._known = key
        return data

    async def _whole(self, key: str, result: GetResult) -> bytes:
        return bytes(await result.bytes_async())

    async def get_range(self, key: str, offset: int, length: int) -> bytes:
        """Return exactly `length` bytes from `offset`."""
        if length == 0:
            return b""
        try:
            data = await self._call("get", key, self._range(key, offset, length), length)
        except SlowDownError:
            raise
        except UnavailableError as error:
            # Each store has its own text for a range beyond the end, and "range" may be part of any message.
            if "range" in str(error).lower() and await self._size(key) < offset + length:
                raise CorruptionError(f"object {key} at {offset}", "object is shorter than its reference") from error
            raise
        if len(data) != length:
            raise CorruptionError(f"object {key} at {offset}", f"object ends {length - len(data)} bytes early")
        return data

    async def _range(self, key: str, offset: int, length: int) -> bytes:
        return bytes(await obstore.get_range_async(self._store, self._prefix + key, start=offset, length=length))

    async def _size(self, key: str) -> int:
        return int((await self._call("head", key, obstore.head_async(self._store, self._prefix + key)))["size"])

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        """Yield the objects below `prefix` (whole path parts).

        S3 says that nothing more is below it by a page without objects, and obstore takes any XML for one, such as the
        page of a proxy. So an end that no page with objects says is looked into.
        """
        after, rounds = "", 0
        while True:
            count = 0
            async for page in self._pages(prefix, after):
                for meta in page:
                    after, count = meta["path"], count + 1
                    modified_ms = round(meta["last_modified"].timestamp() * 1000)
                    yield ObjectInfo(after.removeprefix(self._prefix), meta["size"], modified_ms)
            if not isinstance(self._store, S3Store) or count % LIST_PAGE_OBJECTS or await self._ends(prefix, after):
                return
            rounds = 0 if count else rounds + 1
            if rounds == limits.STORAGE_LIST_ROUNDS_MAX:
                raise UnavailableError(f"list {prefix or '/'}: {_IN_PLACE}, now and then")

    async def _pages(self, prefix: str, after: str = "") -> AsyncIterator[Sequence[ObjectMeta]]:
        """Yield what is below a prefix in pages, after a path of the store."""
        stream = obstore.list(
            self._store, prefix=self._prefix + prefix, offset=after or None, chunk_size=LIST_PAGE_OBJECTS
        )
        pages = stream.__aiter__()
        while True:
            try:
                yield await self._call("list", prefix, pages.__anext__())
            except StopAsyncIteration:
                return

    async def _first_page(self, prefix: str, after: str = "") -> Sequence[ObjectMeta]:
        async for page in self._pages(prefix, after):
            return page
        return ()

    async def _ends(self, prefix: str, after: str) -> bool:
        """Return whether no object is below a prefix after a path, which a page without objects said.

        A list of the whole store from there says it by the objects that it has, which no proxy knows. Where it has none
        either, the store must show that it lists; and twice in turn it must list none, so that it is not two
        servers, of which each answers every second request.

        Raises:
            UnavailableError: something else answers lists in place of the store.
        """
        below = (self._prefix + prefix).rstrip("/") + "/" if self._prefix + prefix else ""
        rest = await self._first_page("", after or below.rstrip("/"))
        if any(meta["path"].startswith(below) for meta in rest):
            return False
        if rest and rest[-1]["path"] > below:
            return True
        if not ((prefix or after) and await self._first_page("")):
            await self._check_that_it_is_empty(prefix)
        return not any([await self._first_page(prefix, after) for _ in range(2)])

    async def _check_that_it_is_empty(self, prefix: str) -> None:
        """Raise UnavailableError if a store that lists no objects has the one written or read last, or any one."""
        for key in (self._known, _NEVER_WRITTEN):
            if key:
                with contextlib.suppress(NotFoundError):
                    await self._call("get", key, obstore.get_async(self._store, self._prefix + key))
                    raise UnavailableError(f"list {prefix or '/'}: no objects, but there is {key}: {_IN_PLACE}")

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete objects; missing ones are not an error. An S3 store gets one request for up to 1000 of them."""
        if keys and isinstance(self._store, S3Store):  # which answers that missing objects are deleted
            paths = [self._prefix + key for key in keys]
            await self._call("delete", keys[0], obstore.delete_async(self._store, paths))
            return
        for key in keys:
            with contextlib.suppress(NotFoundError):
                await self._call("delete", key, obstore.delete_async(self._store, self._prefix + key))

    async def close(self) -> None:
        """Do nothing: obstore closes its connections with the store object."""


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
