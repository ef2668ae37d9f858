"""A 404 of S3 means that an object is missing only with the code NoSuchKey: a proxy answers 404, too."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest

from harness.s3endpoint import S3Endpoint
from tailrace.common.errors import (
    FencedError,
    NoSuchBucketError,
    NotFoundError,
    SlowDownError,
    StartError,
    UnavailableError,
)
from tailrace.log.object import ObjectLog
from tailrace.log.probe import probe_conditions
from tailrace.storage.obstores import probe
from tailrace.storage.port import ObjectStore

PROXY = b"default backend - 404"
NO_KEY = b'<?xml version="1.0"?>\n<Error><Code>NoSuchKey</Code><Message>The key does not exist.</Message></Error>'
NO_BUCKET = b'<?xml version="1.0"?>\n<Error><Code>NoSuchBucket</Code><Message>No such bucket.</Message></Error>'
DENIED = b"<Error><Code>PreconditionFailed</Code></Error>"
CALLS: dict[str, Callable[[ObjectStore], Awaitable[Any]]] = {
    "put": lambda store: store.put("k", [b"x"]),
    "create": lambda store: store.put("k", [b"x"], if_absent=True),
    "get": lambda store: store.get("k"),
    "get_range": lambda store: store.get_range("k", 2, 5),
    "list": lambda store: _listed(store),
    "delete": lambda store: store.delete(["k", "l"]),
}


async def _listed(store: ObjectStore) -> list[str]:
    return [info.key async for info in store.list("")]


STATUSES = {
    "503 Service Unavailable": (
        SlowDownError,
        b"<Error><Code>SlowDown</Code><Message>Reduce your rate.</Message></Error>",
    ),
    "503 Service Temporarily Unavailable": (SlowDownError, b"<html>busy</html>"),
    "429 Too Many Requests": (SlowDownError, b""),
    "500 Internal Server Error": (UnavailableError, b"<Error><Code>InternalError</Code></Error>"),
    "403 Forbidden": (UnavailableError, b"<Error><Code>AccessDenied</Code><Message>not 503</Message></Error>"),
}


class FakeS3(S3Endpoint):
    """As much of S3 as the object log needs. With ``body_404`` the requests that ``catches`` matches get a 404."""

    def __init__(self) -> None:
        super().__init__()
        self.objects: dict[str, bytes] = {}
        self.body_404: bytes | None = None
        self.status = "404 Not Found"
        self.catches = re.compile("")
        self.caught = 0
        self.verbs = Counter[str]()

    def answer(self, verb: str, path: str, fields: Mapping[str, str], body: bytes) -> tuple[str, bytes]:
        """See S3Endpoint."""
        self.verbs[verb] += 1
        if self.body_404 is not None and self.catches.match(f"{verb} {path}"):
            self.caught += 1
            return self.status, self.body_404
        return self._answer(verb, path, fields, body)

    def _answer(self, verb: str, path: str, fields: Mapping[str, str], body: bytes) -> tuple[str, bytes]:
        if "?" in path and verb == "GET":
            contents = "".join(
                f"<Contents><Key>{key.removeprefix('/bucket/')}</Key><Size>{len(data)}</Size>"
                "<LastModified>2015-10-21T07:28:00.000Z</LastModified></Contents>"
                for key, data in sorted(self.objects.items())
            )
            return "200 OK", f"<ListBucketResult>{contents}</ListBucketResult>".encode()
        if verb == "POST":
            keys = re.findall("<Key>(.*?)</Key>", body.decode())
            for key in keys:
                self.objects.pop(f"/bucket/{key}", None)
            deleted = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in keys)
            return "200 OK", f"<DeleteResult>{deleted}</DeleteResult>".encode()
        if verb == "PUT":
            if "if-none-match" in fields and path in self.objects:
                return "412 Precondition Failed", DENIED
            self.objects[path] = body
            return "200 OK", b""
        if path not in self.objects:
            return "404 Not Found", NO_KEY
        data = self.objects[path]
        if found := re.fullmatch(r"bytes=(\d+)-(\d+)", fields.get("range", "")):
            first, end = int(found[1]), min(int(found[2]) + 1, len(data))
            if first >= len(data):
                return "416 Range Not Satisfiable", b"<Error><Code>InvalidRange</Code></Error>"
            return f"206 Partial Content\r\ncontent-range: bytes {first}-{end - 1}/{len(data)}", data[first:end]
        return "200 OK", data


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hidden-secret")


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("body", [PROXY, b"", b"<html>\n<Code>404</Code>"])
async def test_a_404_of_a_proxy_is_no_answer_of_the_store(call: str, body: bytes) -> None:
    s3 = FakeS3()
    async with s3.serving() as store:
        await store.put("k", [b"0123456789"])
        s3.body_404 = body
        with pytest.raises(UnavailableError) as caught:
            await CALLS[call](store)
        assert not isinstance(caught.value, NoSuchBucketError)
        assert "404 Not Found" in str(caught.value)
        assert body.decode().partition("\n")[0] in str(caught.value)
        assert "hidden" not in str(caught.value)
        s3.body_404 = None
        await CALLS["get"](store) if call != "delete" else await CALLS["delete"](store)


@pytest.mark.parametrize("call", [call for call in CALLS if call != "list"])
async def test_a_missing_bucket_says_nothing_of_an_object(call: str) -> None:
    s3 = FakeS3()
    s3.body_404 = NO_BUCKET
    async with s3.serving() as store:
        with pytest.raises(NoSuchBucketError, match="404 Not Found: NoSuchBucket: No such bucket"):
            await CALLS[call](store)


@pytest.mark.parametrize("call", ["get", "get_range"])
async def test_a_missing_object_is_missing(call: str) -> None:
    async with FakeS3().serving() as store:
        with pytest.raises(NotFoundError, match="object k does not exist"):
            await CALLS[call](store)


@pytest.mark.parametrize("call", ["put", "create", "delete"])
async def test_only_a_read_finds_that_an_object_is_missing(call: str) -> None:
    s3 = FakeS3()
    s3.body_404 = NO_KEY
    async with s3.serving() as store:
        with pytest.raises(UnavailableError):
            await CALLS[call](store)


async def test_a_look_for_the_size_trusts_no_404_without_a_body() -> None:
    """A HEAD has none; only a range that an object does not have leads to one."""
    s3 = FakeS3()
    s3.body_404, s3.catches = b"", re.compile("HEAD ")
    async with s3.serving() as store:
        await store.put("k", [b"0"])
        with pytest.raises(UnavailableError):
            await store.get_range("k", 2, 5)
        assert s3.caught == 1


@pytest.mark.parametrize("body", [PROXY, NO_BUCKET])
async def test_deletions_that_got_a_404_are_made_again(body: bytes) -> None:
    s3 = FakeS3()
    async with s3.serving() as store:
        await store.put("k", [b"0"])
        s3.body_404 = body
        with pytest.raises(UnavailableError):
            await store.delete(["k"])
        s3.body_404 = None
        assert await _listed(store) == ["k"]
        await store.delete(["k", "never-there"])
        assert await _listed(store) == []


async def test_probes_name_a_missing_bucket_and_wait_for_a_proxy() -> None:
    s3 = FakeS3()
    async with s3.serving() as store:
        s3.body_404 = NO_BUCKET
        with pytest.raises(StartError, match="Tier 2 does not exist: objects cannot be stored there"):
            await probe(store, "nonce")
        with pytest.raises(StartError, match="the object store cannot hold the log: it does not exist"):
            await probe_conditions(store, "nonce")
        s3.body_404 = PROXY
        with pytest.raises(UnavailableError, match="Tier 2 is not available: put probe/nonce: "):
            await probe(store, "nonce")


async def test_a_fenced_owner_acknowledges_nothing_while_a_proxy_answers_404() -> None:
    """No recovery would find what it acknowledges: the next owner has read the log before."""
    s3 = FakeS3()
    async with s3.serving() as store:
        first, second, third = (ObjectLog(store, 0) for _ in range(3))
        await first.open(1, b"a" * 16)
        assert await first.append([b"one"]) == 0
        await second.open(2, b"b" * 16)
        s3.body_404, s3.catches = PROXY, re.compile("GET .*/claims/")
        lost = first.append([b"two"])
        while s3.caught < 3 and not lost.done():  # noqa: ASYNC110 - the fake has no event
            await asyncio.sleep(0.01)
        assert not lost.done()
        s3.body_404 = None
        with pytest.raises(FencedError):
            await lost
        await first.close()
        await second.close()
        await third.open(3, b"c" * 16)
        assert [bytes(frame.payload) async for frame in third.recover()] == [b"one"]
        await third.close()


async def test_a_log_survives_a_proxy_that_answers_404() -> None:
    """Its puts are retried, and a reopening loses nothing."""
    s3 = FakeS3()
    async with s3.serving() as store:
        log = ObjectLog(store, 0)
        await log.open(1, b"a" * 16)
        s3.body_404, s3.catches = PROXY, re.compile("PUT ")
        appended = log.append([b"one"])
        while s3.caught < 2 and not appended.done():  # noqa: ASYNC110 - the fake has no event
            await asyncio.sleep(0.01)
        s3.body_404 = None
        assert await appended == 0
        await log.close()
        again = ObjectLog(store, 0, opened_epoch=1)
        s3.body_404, s3.catches = PROXY, re.compile("GET ")
        opening = asyncio.ensure_future(again.open(2, b"b" * 16))
        while s3.caught < 4 and not opening.done():  # noqa: ASYNC110 - the fake has no event
            await asyncio.sleep(0.01)
        s3.body_404 = None
        await opening
        assert [bytes(frame.payload) async for frame in again.recover()] == [b"one"]
        await again.close()


@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize("call", CALLS)
async def test_a_store_that_has_too_many_requests_says_so(call: str, status: str) -> None:
    s3 = FakeS3()
    kind, s3.body_404 = STATUSES[status]
    s3.status = status
    async with s3.serving() as store:
        with pytest.raises(UnavailableError, match=status[:3]) as caught:
            await CALLS[call](store)
        assert type(caught.value) is kind


class LosesReplies(FakeS3):
    """A store that answers 500 to the first put of each key: it has taken the object, or a proxy before it has not."""

    def __init__(self, *, takes: bool) -> None:
        super().__init__()
        self._takes = takes
        self._seen: set[str] = set()

    def answer(self, verb: str, path: str, fields: Mapping[str, str], body: bytes) -> tuple[str, bytes]:
        """See S3Endpoint."""
        if verb != "PUT" or path in self._seen:
            return super().answer(verb, path, fields, body)
        self._seen.add(path)
        if self._takes:
            super().answer(verb, path, fields, body)
        return "500 Internal Server Error", b""


@pytest.mark.parametrize("takes", [True, False])
async def test_a_lost_reply_does_not_end_a_start(takes: bool) -> None:
    """The client library repeats the put, and gets 412 because of the first attempt."""
    s3 = LosesReplies(takes=takes)
    async with s3.serving() as store:
        await probe(store, "nonce")
    assert not s3.objects


async def test_another_object_in_place_of_the_probes_ends_a_start() -> None:
    s3 = FakeS3()
    s3.objects["/bucket/p/probe/nonce"] = b"another one's"
    async with s3.serving() as store:
        with pytest.raises(StartError, match="other bytes"):
            await probe(store, "nonce")


async def test_a_conflict_without_an_object_is_no_reason_to_end() -> None:
    s3 = FakeS3()
    s3.status, s3.body_404 = "409 Conflict", b"<Error><Code>ConditionalRequestConflict</Code></Error>"
    s3.catches = re.compile("PUT")
    async with s3.serving() as store:
        with pytest.raises(UnavailableError, match="conflict"):
            await probe(store, "nonce")


async def test_a_store_that_has_too_many_requests_gets_no_other_one() -> None:
    """Whether the object is long enough is asked only when the range may be wrong, of which names say nothing."""
    s3 = FakeS3()
    s3.status, s3.body_404 = "503 Service Unavailable", b"<Error><Code>SlowDown</Code></Error>"
    s3.catches = re.compile("GET")
    async with s3.serving() as store:
        await store.put("orange", [b"0123456789"])
        with pytest.raises(SlowDownError):
            await store.get_range("orange", 2, 5)
    assert s3.verbs["GET"] == 4, "what the client library does by itself"
    assert s3.verbs["HEAD"] == 0
