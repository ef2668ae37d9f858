"""Objects of an S3 store are deleted by one request for many of them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from harness.s3endpoint import S3Endpoint
from tailrace.common.errors import ObjectNotDeletedError, UnavailableError
from tailrace.storage.contact import StoreContact, with_contact
from tailrace.storage.obstores import open_object_store

KEYS = [f"log/1/{number}" for number in range(5)]


class Compatible(S3Endpoint):
    """As much of S3 as deletions need."""

    def __init__(self, status: str, body: str) -> None:
        super().__init__()
        self._status, self._body = status, body
        self.requests: list[str] = []

    def answer(self, verb: str, path: str, fields: Mapping[str, str], body: bytes) -> tuple[str, bytes]:
        """See S3Endpoint."""
        self.requests.append(f"{verb} {path} {' '.join(re.findall('<Key>(.*?)</Key>', body.decode()))}")
        return self._status, self._body.encode()


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")


async def test_many_objects_take_one_request() -> None:
    deleted = "".join(f"<Deleted><Key>p/{key}</Key></Deleted>" for key in KEYS)
    s3 = Compatible("200 OK", f"<DeleteResult>{deleted}</DeleteResult>")
    async with s3.serving() as store:
        await store.delete([])
        await store.delete(KEYS)
    assert s3.requests == ["POST /bucket?delete p/log/1/0 p/log/1/1 p/log/1/2 p/log/1/3 p/log/1/4"]


async def test_one_that_cannot_be_deleted_is_reported() -> None:
    deleted = "".join(f"<Deleted><Key>p/{key}</Key></Deleted>" for key in KEYS[:4])
    error = f"<Error><Key>p/{KEYS[4]}</Key><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
    s3 = Compatible("200 OK", f"<DeleteResult>{deleted}{error}</DeleteResult>")
    async with s3.serving() as store:
        with pytest.raises(
            ObjectNotDeletedError, match="log/1/4 cannot be deleted: AccessDenied: Access Denied"
        ) as caught:
            await store.delete(KEYS)
    assert caught.value.key == KEYS[4]


@pytest.mark.parametrize("code", ["InternalError", "SlowDown"])
async def test_one_that_may_be_deleted_soon_is_no_refusal(code: str) -> None:
    error = f"<Error><Key>p/{KEYS[4]}</Key><Code>{code}</Code><Message>Retry.</Message></Error>"
    s3 = Compatible("200 OK", f"<DeleteResult>{error}</DeleteResult>")
    async with s3.serving() as store:
        with pytest.raises(UnavailableError) as caught:
            await store.delete(KEYS)
    assert not isinstance(caught.value, ObjectNotDeletedError)


async def test_a_refusal_of_one_object_is_no_silence_of_the_store() -> None:
    """A worker whose store is silent, or refuses all requests, loses its containers."""
    error = f"<Error><Key>p/{KEYS[0]}</Key><Code>AccessDenied</Code><Message>Locked.</Message></Error>"
    s3, contact = Compatible("200 OK", f"<DeleteResult>{error}</DeleteResult>"), StoreContact()
    async with s3.serving() as store:
        with pytest.raises(ObjectNotDeletedError):
            await with_contact(store, contact).delete(KEYS)
    assert contact.silent_s(asyncio.get_running_loop().time()) == 0.0
    assert contact.refusal == ""
    assert contact.figures.errors == {("delete", "other"): 1}


async def test_a_refusal_is_reported() -> None:
    s3 = Compatible("403 Forbidden", "")
    async with s3.serving() as store:
        with pytest.raises(UnavailableError):
            await store.delete(KEYS)


@pytest.mark.parametrize("kind", ["memory", "file"])
async def test_missing_objects_are_no_error(tmp_path: Path, kind: str) -> None:
    store = open_object_store("memory://" if kind == "memory" else tmp_path.as_uri())
    await store.put(KEYS[1], [b"x"])
    await store.delete(KEYS)
    assert [info.key async for info in store.list("log")] == []


async def test_a_file_that_cannot_be_removed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that is immutable by its attributes; root may remove any other."""
    store = open_object_store(tmp_path.as_uri())
    for key in KEYS[:3]:
        await store.put(key, [b"x"])
    real = Path.unlink

    def unlink(self: Path, missing_ok: bool = False) -> None:
        if self == tmp_path / KEYS[1]:
            raise PermissionError(1, "Operation not permitted", str(self))
        real(self, missing_ok)

    monkeypatch.setattr(Path, "unlink", unlink)
    with pytest.raises(ObjectNotDeletedError, match="Operation not permitted") as caught:
        await store.delete(KEYS[:3])
    assert caught.value.key == KEYS[1]
    await store.delete([KEYS[0], KEYS[2]])
    assert [info.key async for info in store.list("log")] == [KEYS[1]]
