"""Objects as the loop last heard of them."""

from __future__ import annotations

import asyncio

from harness.localobjects import NAMESPACE, CountingObjects, Idle
from sim import SimWorld
from tailrace_operator.kube.objects import READER_GROUPS, STREAMS
from tailrace_operator.reconcile.keys import Key
from tailrace_operator.reconcile.known_objects import KnownObjects
from tailrace_operator.reconcile.loop import ReconcileLoop

from .conftest import Fixed


def test_what_is_known_comes_from_the_api_server_until_the_first_list_and_then_from_the_watch() -> None:
    async def main() -> None:
        objects = CountingObjects()
        one = objects.make(READER_GROUPS, "one", {})
        objects.make(READER_GROUPS, "of-others", {}, namespace="elsewhere")
        loop = ReconcileLoop(objects, None, Fixed(), Fixed())
        loop.add(Idle(READER_GROUPS))

        async def known() -> list[str]:
            return [each["metadata"]["name"] for each in await loop.list_known(READER_GROUPS, NAMESPACE)]

        assert await known() == ["one"]
        loop.on_event(READER_GROUPS, None, one)
        objects.make(READER_GROUPS, "two", {})
        assert sorted(await known()) == ["one", "two"], "events alone need not be all"
        assert objects.lists[READER_GROUPS.plural] == 2
        work = asyncio.ensure_future(loop.run(loop.kinds))
        await asyncio.sleep(1)
        before = objects.lists[READER_GROUPS.plural]
        assert sorted(await known()) == ["one", "two"]
        loop.on_event(READER_GROUPS, "DELETED", one)
        loop.on_event(READER_GROUPS, "ADDED", objects.make(READER_GROUPS, "three", {}))
        assert sorted(await known()) == ["three", "two"]
        assert objects.lists[READER_GROUPS.plural] == before == 3
        work.cancel()
        await asyncio.wait([work])

    with SimWorld(1) as world:
        world.run(main())


def test_known_objects_are_found_by_kind_and_namespace() -> None:
    known = KnownObjects()
    keys = [Key(kind.plural, place, name) for kind in (STREAMS, READER_GROUPS) for place in "ab" for name in "xy"]
    for key in keys:
        known.put(key, {"is": key})
    known.put(keys[0], {"is": "new"})
    assert (len(known), known.count(STREAMS.plural)) == (8, 4)
    assert known.get(keys[0]) == {"is": "new"}
    assert [each["is"] for each in known.of(READER_GROUPS.plural, "b")] == keys[6:]
    assert [key for key, _ in known.items(READER_GROUPS.plural)] == keys[4:]
    assert [key for key, _ in known.items()] == keys
    assert [known.remove(key) for key in (keys[0], keys[0], keys[1])] == [True, False, True]
    assert (keys[0] in known, keys[2] in known) == (False, True)
    assert not known.of(STREAMS.plural, "a")
    assert known.count(STREAMS.plural) == 2
