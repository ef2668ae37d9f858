"""A list is empty only when the object store says so: a proxy may answer with a page of its own, and status 200."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Mapping
from urllib.parse import parse_qs, urlsplit

import pytest

from harness.s3endpoint import S3Endpoint
from tailrace.common.errors import UnavailableError
from tailrace.storage.port import ObjectStore

PAGES = {
    "sign in": b"<!DOCTYPE html><html><head><title>Sign in</title></head><body><p>Sign in</p></body></html>",
    "an error": b"<?xml version='1.0'?><Error><Code>AccessDenied</Code></Error>",
    "bare": b"<html><body>busy</body></html>",
}
NO_KEY = b"<?xml version='1.0'?><Error><Code>NoSuchKey</Code><Message>The key does not exist.</Message></Error>"
LIST = "GET /bucket[?]"
PAGE_OBJECTS = 1000


class ProxiedS3(S3Endpoint):
    """Puts, reads and lists of S3. While ``page`` is set, a request that ``catches`` matches gets it, with status 200.

    Of those, the ones with numbers in ``spared``, counted from 1, reach the store.
    """

    def __init__(self) -> None:
        super().__init__()
        self.objects: dict[str, bytes] = {}
        self.page: bytes | None = None
        self.catches = re.compile("")
        self.spared: frozenset[int] = frozenset()
        self.matched = 0
        self.requests: list[str] = []

    def answer(self, verb: str, path: str, fields: Mapping[str, str], body: bytes) -> tuple[str, bytes]:
        """See S3Endpoint."""
        self.requests.append(f"{verb} {path}")
        if self.page is not None and self.catches.match(self.requests[-1]):
            self.matched += 1
            if self.matched not in self.spared:
                return "200 OK", self.page
        if verb == "PUT":
            self.objects[path.removeprefix("/bucket/")] = body
            return "200 OK", b""
        if "?" in path:
            return "200 OK", self._listed({name: found[0] for name, found in parse_qs(urlsplit(path).query).items()})
        found = self.objects.get(path.removeprefix("/bucket/"))
        return ("404 Not Found", NO_KEY) if found is None else ("200 OK", found)

    def _listed(self, query: Mapping[str, str]) -> bytes:
        after = query.get("continuation-token", query.get("start-after", ""))
        keys = sorted(key for key in self.objects if key.startswith(query["prefix"]) and key > after)
        page = keys[:PAGE_OBJECTS]
        contents = "".join(
            f"<Contents><Key>{key}</Key><Size>1</Size><LastModified>2015-10-21T07:28:00.000Z</LastModified></Contents>"
            for key in page
        )
        more = f"<NextContinuationToken>{page[-1]}</NextContinuationToken>" if len(keys) > len(page) else ""
        return f"<ListBucketResult>{contents}{more}</ListBucketResult>".encode()


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")


async def listed(store: ObjectStore, prefix: str) -> list[str]:
    async with asyncio.timeout(120):
        return [info.key async for info in store.list(prefix)]


@pytest.mark.parametrize("prefix", ["c/3", ""])
@pytest.mark.parametrize("page", PAGES)
async def test_a_page_for_every_list_is_no_empty_list(page: str, prefix: str) -> None:
    s3 = ProxiedS3()
    async with s3.serving() as store:
        await store.put("cluster/identity", [b"x"])
        await store.put("c/3/0", [b"x"])
        s3.page, s3.catches = PAGES[page], re.compile(LIST)
        with pytest.raises(UnavailableError, match="something else answers in place of the object store"):
            await listed(store, prefix)
        s3.page = None
        assert "c/3/0" in await listed(store, prefix)


@pytest.mark.parametrize("prefix", ["c/3", ""])
@pytest.mark.parametrize("page", PAGES)
async def test_a_page_for_every_request_is_no_empty_list(page: str, prefix: str) -> None:
    """Also of a store of which nothing was read or written before."""
    s3 = ProxiedS3()
    s3.page = PAGES[page]
    async with s3.serving() as store:
        with pytest.raises(UnavailableError, match="something else answers in place of the object store"):
            await listed(store, prefix)


@pytest.mark.parametrize("neighbour", [None, "a/0", "d/0"])
@pytest.mark.parametrize("hidden", [[1], [1, 3], [1, 3, 5], [1, 2], [1, 2, 4], [1, 2, 4, 6]])
@pytest.mark.parametrize("page", PAGES)
async def test_a_page_for_some_lists_hides_no_objects(page: str, hidden: list[int], neighbour: str | None) -> None:
    """As where one of two servers behind an address is no object store."""
    s3 = ProxiedS3()
    async with s3.serving() as store:
        await store.put("c/3/0", [b"x"])
        if neighbour:
            await store.put(neighbour, [b"x"])
        s3.page, s3.catches = PAGES[page], re.compile(LIST)
        s3.spared = frozenset(range(1, 100)).difference(hidden)
        found: list[str] | None = None
        with contextlib.suppress(UnavailableError):  # which says that something else answers
            found = await listed(store, "c/3")
        assert found in (["c/3/0"], None)


@pytest.mark.parametrize("hidden", [[2], [3], [2, 4], [2, 3], [2, 4, 6]])
@pytest.mark.parametrize("pages", [1, 2])
async def test_a_page_in_the_middle_of_a_list_hides_no_objects(hidden: list[int], pages: int) -> None:
    keys = [f"c/3/{number:04}" for number in range(2 * PAGE_OBJECTS)]
    s3 = ProxiedS3()
    s3.objects = {f"p/{key}": b"x" for key in keys[: pages * PAGE_OBJECTS]}
    async with s3.serving() as store:
        s3.page, s3.catches = PAGES["bare"], re.compile(LIST)
        s3.spared = frozenset(range(1, 100)).difference(hidden)
        assert await listed(store, "c/3") == keys[: pages * PAGE_OBJECTS]


async def test_a_page_for_every_second_list_ends_in_an_error_or_the_objects() -> None:
    s3 = ProxiedS3()
    async with s3.serving() as store:
        await store.put("c/3/0", [b"x"])
        await store.put("d/0", [b"x"])
        s3.page, s3.catches = PAGES["bare"], re.compile("GET /bucket[?].*prefix=p%2Fc")
        with pytest.raises(UnavailableError, match="now and then"):
            await listed(store, "c/3")


async def test_an_empty_list_of_the_store_is_empty() -> None:
    """Of a new bucket, of one whose last object was deleted by another process, and of one with other objects."""
    s3 = ProxiedS3()
    async with s3.serving() as store:
        assert await listed(store, "") == []
        assert await listed(store, "c/3") == []
        await store.put("c/3/0", [b"x"])
        s3.objects.clear()
        assert await listed(store, "c/3") == []
        await store.put("c/4/0", [b"x"])
        s3.requests.clear()
        assert await listed(store, "c/3") == []
        assert len(s3.requests) == 2
        assert await listed(store, "c/5") == []
        await store.put("c/3-other/0", [b"x"])
        assert await listed(store, "c/3") == []


async def test_a_list_that_has_objects_takes_one_request_a_page() -> None:
    s3 = ProxiedS3()
    s3.objects = {f"p/c/3/{number:04}": b"x" for number in range(PAGE_OBJECTS + 1)}
    async with s3.serving() as store:
        assert len(await listed(store, "c")) == PAGE_OBJECTS + 1
    assert len(s3.requests) == 2
