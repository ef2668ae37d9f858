"""For how long an object store does not answer (docs/design.md#failure-detection)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from obstore.exceptions import PermissionDeniedError

from sim import SimWorld
from tailrace.common import limits
from tailrace.common.errors import (
    AlreadyExistsError,
    CorruptionError,
    DeadlineError,
    NoSuchBucketError,
    NotFoundError,
    UnavailableError,
)
from tailrace.storage.contact import ContactStore, StoreContact, keep_contact, with_contact
from tailrace.storage.figures import kind_of
from tailrace.storage.obstore_objects import ObstoreObjects
from tailrace.storage.obstores import open_object_store
from tailrace.storage.port import UploadParts


def test_nothing_asked_is_no_silence() -> None:
    contact = StoreContact()
    assert contact.silent_s(100.0) == 0.0
    contact.ended(contact.began(100.0), 101.0, answered=True)
    assert contact.silent_s(500.0) == 0.0


def test_silence_begins_with_the_first_request_without_an_answer_and_ends_with_any_answer() -> None:
    contact = StoreContact()
    first = contact.began(10.0)
    second = contact.began(12.0)
    assert contact.silent_s(13.0) == 3.0
    contact.ended(first, 14.0, answered=False)
    assert contact.silent_s(15.0) == 5.0, "a failure is no answer"
    contact.ended(second, 16.0, answered=True)
    assert contact.silent_s(17.0) == 0.0
    contact.began(18.0)
    contact.ended(contact.began(18.5), 20.0, answered=True)
    assert contact.silent_s(21.0) == 1.0, "the oldest request waits still, and the store answered at 20"


def test_a_request_is_due_when_there_was_no_answer_for_a_while() -> None:
    contact = StoreContact()
    assert contact.is_due(0.0)
    contact.ended(contact.began(0.0), 1.0, answered=True)
    assert not contact.is_due(1.0 + limits.WORKER_STORE_PROBE_S / 2)
    assert contact.is_due(1.0 + limits.WORKER_STORE_PROBE_S)
    contact.ended(contact.began(5.0), 6.0, answered=False)
    assert contact.is_due(6.0)


class Away(ObstoreObjects):
    """A store in memory that fails or keeps silent when a test asks for it."""

    def __init__(self) -> None:
        super().__init__(open_object_store("memory://")._store)  # type: ignore[attr-defined]
        self.error: Exception | None = None
        self.silent = False
        self.gets = 0

    async def get(self, key: str) -> bytes:
        self.gets += 1
        if self.silent:
            await asyncio.get_running_loop().create_future()
        if self.error is not None:
            raise self.error
        raise NotFoundError(key)


def in_virtual_time(scenario: Callable[[], Awaitable[None]]) -> None:
    with SimWorld(1) as world:

        async def main() -> None:
            await scenario()

        world.run(main())


@pytest.mark.parametrize("error", [UnavailableError("no"), DeadlineError("late"), None], ids=["no", "late", "silent"])
def test_an_idle_worker_knows_of_a_silence_and_of_its_end(error: Exception | None) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        inner, contact = Away(), StoreContact()
        keeping = loop.create_task(keep_contact(ContactStore(inner, contact), contact, "cluster.json"))
        await asyncio.sleep(60.0)
        assert contact.silent_s(loop.time()) == 0.0
        assert 25 <= inner.gets <= 35, "one request every two seconds"
        inner.error, inner.silent = error, error is None
        await asyncio.sleep(20.0)
        kind = kind_of(error) or "deadline"
        assert contact.figures.errors.keys() == {("get", kind)}, "also its own deadline is counted"
        assert 20.0 - limits.WORKER_STORE_PROBE_S <= contact.silent_s(loop.time()) <= 20.0 + limits.WORKER_STORE_PROBE_S
        inner.error, inner.silent = None, False
        await asyncio.sleep(limits.WORKER_STORE_PROBE_DEADLINE_S + limits.WORKER_STORE_PROBE_S)
        assert contact.silent_s(loop.time()) == 0.0
        keeping.cancel()

    in_virtual_time(scenario)


async def test_what_a_store_answers_passes_and_counts() -> None:
    loop = asyncio.get_running_loop()
    contact = StoreContact()
    store = ContactStore(open_object_store("memory://"), contact)
    with pytest.raises(NotFoundError):
        await store.get("a")
    for key in ("x/a", "x/b"):
        await store.put(key, [b"12", b"34"])
    assert await store.get_range("x/a", 1, 2) == b"23"
    assert [found.key async for found in store.list("x")] == ["x/a", "x/b"]
    await store.delete(["x/a"])
    assert [found.key async for found in store.list("x")] == ["x/b"]
    assert contact.silent_s(loop.time() + 100.0) == 0.0, "no request waits"
    assert contact.figures.requests == {"get": 2, "put": 2, "list": 2, "delete": 1}
    assert contact.figures.errors == {}, "an answer is no error"
    assert all(seconds > 0 for seconds in contact.figures.seconds.values())


async def test_a_cancelled_request_is_no_answer() -> None:
    loop = asyncio.get_running_loop()
    inner, contact = Away(), StoreContact()
    inner.silent = True
    request = loop.create_task(ContactStore(inner, contact).get("a"))
    await asyncio.sleep(0)
    request.cancel()
    await asyncio.wait([request])
    assert contact.silent_s(loop.time() + 100.0) >= 100.0
    assert contact.figures.errors == {}, "its answer is of no use any more"


DENIED = UnavailableError("put a: access denied")
DENIED.__cause__ = PermissionDeniedError("403")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (UnavailableError("503"), "unavailable"),
        (DeadlineError("no answer in 30 s"), "deadline"),
        (DENIED, "denied"),
        (CorruptionError("object a at 0", "object ends 2 bytes early"), "corrupt"),
        (ValueError("a bug"), "other"),
    ],
)
async def test_failed_requests_are_counted_by_kind(error: Exception, kind: str) -> None:
    inner, contact = Away(), StoreContact()
    inner.error = error
    with pytest.raises(type(error)):
        await ContactStore(inner, contact).get("a")
    assert contact.figures.errors == {("get", kind): 1}
    assert kind_of(AlreadyExistsError("a")) == kind_of(None) == ""


async def refused(contact: StoreContact, error: Exception) -> str:
    """Make a request that fails so; return the refusal that is known then."""
    inner = Away()
    inner.error = error
    with pytest.raises(type(error)):
        await ContactStore(inner, contact).get("a")
    return contact.refusal


async def test_a_store_that_refuses_is_known_by_its_words_until_it_answers_or_is_away() -> None:
    loop, contact = asyncio.get_running_loop(), StoreContact()
    assert contact.refusal == ""
    assert await refused(contact, DENIED) == "put a: access denied"
    assert contact.silent_s(loop.time() + 100.0) >= 100.0, "writers wait as without an answer"
    other = UnavailableError("put b: access denied")
    other.__cause__ = PermissionDeniedError("403")
    assert await refused(contact, other) == "put a: access denied", "each key would be another text"
    assert await refused(contact, NotFoundError("a")) == ""
    assert await refused(contact, NoSuchBucketError("get a: NoSuchBucket")) == "get a: NoSuchBucket"
    assert await refused(contact, DeadlineError("late")) == ""
    assert await refused(contact, other) == "put b: access denied"
    assert await refused(contact, UnavailableError("503")) == ""


async def test_a_request_that_is_given_up_says_nothing_of_refusals() -> None:
    contact, inner = StoreContact(), Away()
    assert await refused(contact, DENIED) == "put a: access denied"
    inner.silent = True
    request = asyncio.get_running_loop().create_task(ContactStore(inner, contact).get("a"))
    await asyncio.sleep(0)
    request.cancel()
    await asyncio.wait([request])
    assert contact.refusal == "put a: access denied"


async def test_parts_of_uploads_are_reached_through_it(tmp_path: Path) -> None:
    folder, contact = open_object_store(f"file://{tmp_path}"), StoreContact()
    followed = with_contact(folder, contact)
    assert isinstance(followed, UploadParts)
    part = tmp_path / "a" / "b#1000000001"
    part.parent.mkdir()
    part.touch()
    assert [info.key for info in await followed.list_parts("a", 10)] == ["a/b#1000000001"]
    await followed.delete_parts(["a/b#1000000001"])
    assert not part.exists()
    assert not isinstance(with_contact(open_object_store("memory://"), contact), UploadParts)
