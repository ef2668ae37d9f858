"""Lists by tag read an index, also of data from before there was one, and show nothing that only the index has."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

from harness.interception import EachSegment
from tailrace.common import limits
from tailrace.common.errors import BadRequestError, UnavailableError
from tailrace.controller.metadata.metadata_store import CONTROLLERS_TABLE, scope_table, tag_table
from tailrace.controller.metadata.ports import UNCONDITIONAL, Put
from tailrace.controller.metadata.records import InstanceRecord, ScopeStreamEntry, encode
from tailrace.controller.metadata.tag_index import KEY_BYTES
from tailrace.rpc import controller_pb2 as pb

SCOPE = pb.ScopeInfo(scope="scope")
QUICK = {"look_s": 0.01, "beat_s": 0.01, "lapse_s": 0.2, "rescan_s": 0.05}


class Counting:
    """A store that counts its calls by name and table."""

    def __init__(self) -> None:
        self.calls: Counter[tuple[str, str]] = Counter()
        self.fails: set[str] = set()
        """Calls that fail."""

    def wrap(self, target: Any) -> Any:
        """The store with the counter in front of it."""
        return _Counted(target, self)

    def of(self, *tables: str) -> int:
        """How many calls the tables got."""
        return sum(count for (_, table), count in self.calls.items() if table in tables)


class _Counted(EachSegment):
    def __init__(self, target: Any, counting: Counting) -> None:
        self._target = target
        self._counting = counting

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._target, name)

        async def call(*args: Any, **keywords: Any) -> Any:
            self._counting.calls[name, args[0]] += 1
            if name in self._counting.fails:
                raise UnavailableError(f"{name} fails")
            await asyncio.sleep(0)
            return await method(*args, **keywords)

        return call


async def pages(api: Any, tag: str, token: str = "") -> AsyncIterator[tuple[list[str], str]]:
    """Every page of a list by tag, the empty one at the end too, each with the token of the next."""
    while True:
        request = pb.StreamsInScopeWithTagRequest(
            scope=SCOPE, tag=tag, continuationToken=pb.ContinuationToken(token=token)
        )
        answer = await api.call("listStreamsInScopeForTag", request)
        assert answer.status == pb.StreamsInScopeResponse.SUCCESS
        token = answer.continuationToken.token
        yield [info.stream for info in answer.streams], token
        if not answer.streams:
            return


async def listed(api: Any, tag: str) -> list[str]:
    """All streams with a tag, sorted; each must come once."""
    found = [name async for page, _ in pages(api, tag) for name in page]
    assert len(set(found)) == len(found)
    return sorted(found)


async def until_indexed(api: Any, tag: str = "any") -> None:
    """List until the index is used: its tokens differ."""
    async with asyncio.timeout(120):
        while True:
            async for _, token in pages(api, tag):
                if token.startswith("t."):
                    return
            await asyncio.sleep(0)


async def write_before_indexes(world: Any, streams: dict[str, tuple[str, ...]]) -> None:
    """Entries of streams as controllers before there was an index wrote them."""
    scopes, _ = world.tags()
    owner = await scopes.require_existing("scope")
    entries = [
        Put(f"s/{name}".encode(), encode(ScopeStreamEntry(tags)), UNCONDITIONAL) for name, tags in streams.items()
    ]
    for start in range(0, len(entries), 100):
        await world.metadata.put(scope_table("scope", owner.nonce), entries[start : start + 100])


async def tables(world: Any) -> tuple[str, str]:
    """The scope's table and its index."""
    scopes, _ = world.tags()
    nonce = (await scopes.require_existing("scope")).nonce
    return scope_table("scope", nonce), tag_table("scope", nonce)


async def test_a_list_by_tag_reads_the_streams_of_the_tag_and_no_others(world: Any, make_api: Any) -> None:
    """Of 10,000 streams 10 have the tag: three calls in place of ten, and 10 entries in place of 10,000."""
    counting = Counting()
    api = make_api(await world.start(counting))
    await api.call("createScope", SCOPE)
    streams: dict[str, tuple[str, ...]] = {
        f"s{number:05}": ("rare",) if number % 1000 == 7 else ("frequent",) for number in range(10_000)
    }
    await write_before_indexes(world, streams)
    names = await tables(world)
    counting.calls.clear()
    rare = sorted(name for name, tags in streams.items() if tags == ("rare",))
    assert await listed(api, "rare") == rare
    before = counting.calls["entries", names[0]]
    assert before >= 10
    await until_indexed(api)

    counting.calls.clear()
    assert await listed(api, "rare") == rare
    print(f"calls for 10 of 10,000 streams: {before} before, now {dict(counting.calls)}")
    assert (counting.of(names[0]), counting.of(names[1])) == (1, 2)
    assert counting.calls["get", names[0]] == 1
    assert await listed(api, "frequent") == sorted(streams.keys() - set(rare))


async def test_pages_have_bounds_and_tokens_that_are_never_empty(world: Any, make_api: Any) -> None:
    api = make_api(await world.start())
    await api.call("createScope", SCOPE)
    await write_before_indexes(world, {f"s{number}": ("a", "b") for number in range(2500)})
    for mode in (".", "t."):
        found = [page async for page in pages(api, "a")]
        assert all(token.startswith(mode) for _, token in found)
        assert [len(page) for page, _ in found] == [1000, 1000, 500, 0]
        again = [page async for page in pages(api, "a", found[-1][1])]
        assert again == [([], found[-1][1])], "the end stays the end"
        await until_indexed(api)


async def test_an_iteration_ends_as_it_began(world: Any, make_api: Any) -> None:
    """Its token says whether it reads the index; what changes meanwhile neither hides nor doubles a stream."""
    api = make_api(await world.start())
    await api.call("createScope", SCOPE)
    await write_before_indexes(world, {f"s{number}": ("a",) for number in range(1500)})
    first, token = await anext(pages(api, "a"))
    assert token.startswith(".")
    await until_indexed(api)
    rest = [name async for page, _ in pages(api, "a", token) for name in page]
    assert (len(first), len(set(first + rest))) == (1000, 1500)

    first, token = await anext(pages(api, "a"))
    other = make_api(await world.start(seed=2))  # it has not checked the index
    rest = [name async for page, _ in pages(other, "a", token) for name in page]
    assert (len(first), len(rest), len(set(first + rest))) == (1000, 500, 1500)


@pytest.mark.parametrize("token", ["t.", "t.x", "t.AAAA", "t.ü", "t." + "A" * 44])
async def test_tokens_of_others_are_refused(world: Any, make_api: Any, token: str) -> None:
    api = make_api(await world.start())
    await api.call("createScope", SCOPE)
    with pytest.raises(BadRequestError, match="continuationToken"):
        await anext(pages(api, "a", token))


async def test_workflows_keep_the_index(world: Any, make_api: Any) -> None:
    api = make_api(await world.start())
    await api.setup(1, tags=pb.Tags(tag=["a", "b"]))
    await until_indexed(api)

    async def found() -> dict[str, list[str]]:
        """By list; the index has no more than that, but for what was removed from the lists."""
        by_list = {tag: await listed(api, tag) for tag in "abc"}
        _, index = await tables(world)
        assert len(world.metadata.dump_table(index)) == sum(map(len, by_list.values()))
        return by_list

    assert await found() == {"a": ["stream"], "b": ["stream"], "c": []}
    await api.call("updateStream", api.config(1, tags=pb.Tags(tag=["b", "c"])))
    assert await found() == {"a": [], "b": ["stream"], "c": ["stream"]}
    await api.call("sealStream", api.info)
    assert await found() == {"a": [], "b": ["stream"], "c": ["stream"]}
    await api.call("deleteStream", api.info)
    assert await found() == {"a": [], "b": [], "c": []}
    await api.call("createStream", api.config(1, tags=pb.Tags(tag=["a"])))
    assert await found() == {"a": ["stream"], "b": [], "c": []}


async def test_the_index_goes_with_its_scope(world: Any, make_api: Any) -> None:
    api = make_api(await world.start())
    await api.setup(1, tags=pb.Tags(tag=["a"]))
    _, index = await tables(world)
    assert index in world.metadata.dump()
    await api.call("deleteScopeRecursive", SCOPE)
    assert index not in world.metadata.dump()
    await api.setup(1)
    await until_indexed(api)
    assert await listed(api, "a") == []


async def test_an_entry_whose_stream_has_lost_the_tag_or_is_gone_is_not_shown_and_goes(
    world: Any, make_api: Any
) -> None:
    api = make_api(await world.start())
    await api.setup(1, tags=pb.Tags(tag=["a"]))
    await until_indexed(api)
    scopes, tags = world.tags()
    owner = await scopes.require_existing("scope")
    await tags.put("scope", owner, [("x", "stream"), ("x", "gone"), ("a", "gone")])
    _, index = await tables(world)
    assert len(world.metadata.dump_table(index)) == 4
    assert (await listed(api, "x"), await listed(api, "a")) == ([], ["stream"])
    assert len(world.metadata.dump_table(index)) == 1


async def test_entries_that_cannot_be_removed_are_not_shown_either(world: Any, make_api: Any) -> None:
    counting = Counting()
    api = make_api(await world.start(counting))
    await api.setup(1, tags=pb.Tags(tag=["a"]))
    await until_indexed(api)
    scopes, tags = world.tags()
    await tags.put("scope", await scopes.require_existing("scope"), [("a", "gone")])
    counting.fails = {"remove"}
    assert await listed(api, "a") == ["stream"]
    counting.fails = set()
    assert await listed(api, "a") == ["stream"]
    _, index = await tables(world)
    assert len(world.metadata.dump_table(index)) == 1


async def test_a_tag_that_comes_back_while_its_stale_entry_is_removed_stays(world: Any, make_api: Any) -> None:
    """The removal is under the version that was read before the stream was found without the tag."""
    api = make_api(await world.start())
    await api.setup(1)
    scopes, tags = world.tags()
    owner = await scopes.require_existing("scope")
    await tags.put("scope", owner, [("a", "stream")])
    remove = world.metadata.remove

    async def late(table: str, keys: Any) -> None:
        if table == tag_table("scope", owner.nonce):
            world.metadata.remove = remove
            await api.call("updateStream", api.config(1, tags=pb.Tags(tag=["a"])))
        await remove(table, keys)

    world.metadata.remove = late
    await tags.drop("scope", owner, [("a", "stream")])
    assert world.metadata.remove == remove
    assert await world.tagged("a") == ["stream"]


async def test_what_was_written_before_there_was_an_index_is_listed(world: Any, make_api: Any) -> None:
    api = make_api(await world.start())
    await api.call("createScope", SCOPE)
    await write_before_indexes(world, {"old": ("a", "b"), "plain": ()})
    assert tag_table("scope", b"") not in world.metadata.dump()
    assert await listed(api, "a") == ["old"]
    await until_indexed(api)
    assert (await listed(api, "a"), await listed(api, "b")) == (["old"], ["old"])


async def test_an_index_that_cannot_be_checked_is_not_used(world: Any, make_api: Any) -> None:
    counting = Counting()
    api = make_api(await world.start(counting))
    await api.call("createScope", SCOPE)
    await write_before_indexes(world, {"old": ("a",)})
    counting.fails = {"put"}
    for _ in range(20):
        assert await listed(api, "a") == ["old"]
    assert await world.tagged("a") == []
    counting.fails = set()
    await until_indexed(api)
    assert await listed(api, "a") == ["old"]


async def test_while_a_controller_of_an_earlier_version_may_live_no_index_is_used(world: Any, make_api: Any) -> None:
    """It writes no index; when it has gone, the index is checked again before it is used."""
    api = make_api(await world.start(**QUICK))
    await api.setup(1, tags=pb.Tags(tag=["a"]))
    await until_indexed(api)

    async def beat(number: int) -> None:
        record = InstanceRecord("earlier", number)
        await world.metadata.put(CONTROLLERS_TABLE, [Put(b"instance/earlier", encode(record), UNCONDITIONAL)])

    number = 0
    async with asyncio.timeout(120):
        while (await anext(pages(api, "a")))[1].startswith("t."):
            await beat(number := number + 1)
            await asyncio.sleep(0.001)
    await write_before_indexes(world, {"late": ("a",)})
    assert await listed(api, "a") == ["late", "stream"]
    await world.metadata.remove(CONTROLLERS_TABLE, [(b"instance/earlier", UNCONDITIONAL)])
    await until_indexed(api)
    assert await listed(api, "a") == ["late", "stream"]


async def test_only_some_scopes_are_checked_at_a_time(
    world: Any, make_api: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "TAG_INDEX_CHECKS_CONCURRENT_MAX", 0)
    api = make_api(await world.start())
    await api.setup(1, tags=pb.Tags(tag=["a"]))
    for _ in range(5):
        page, token = await anext(pages(api, "a"))
        assert (page, token[0]) == (["stream"], ".")


async def test_a_late_creation_of_an_index_leaves_none_of_a_scope_that_is_gone(world: Any, make_api: Any) -> None:
    api = make_api(await world.start())
    await api.call("createScope", SCOPE)
    scopes, tags = world.tags()
    owner = await scopes.require_existing("scope")
    await api.call("deleteScope", SCOPE)
    await tags.put("scope", owner, [("a", "stream")])
    assert tag_table("scope", owner.nonce) not in world.metadata.dump()
    await api.call("createScope", SCOPE)
    await tags.put("scope", owner, [("a", "stream")])
    assert tag_table("scope", owner.nonce) not in world.metadata.dump()


def test_keys_have_one_length() -> None:
    from tailrace.controller.metadata.tag_index import index_key

    assert {len(index_key(tag, stream)) for tag in ("a", "ä" * 200) for stream in ("s", "S" * 200)} == {KEY_BYTES}
    assert index_key("a", "x")[:16] == index_key("a", "y")[:16] != index_key("b", "x")[:16]
