"""Objects of an S3 store are deleted by one request for many of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from harness.s3endpoint import S3Endpoint
from tailrace.common.errors import UnavailableError
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
        with pytest.raises(UnavailableError, match="AccessDenied"):
            await store.delete(KEYS)


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
