"""The client that lists the segments of containers: pages and failures."""

from __future__ import annotations

from typing import Any

import pytest

from tailrace.client.connections.listing import SegmentLister
from tailrace.client.connections.pool import ConnectionPool
from tailrace.client.types import Endpoint
from tailrace.common import limits
from tailrace.common.errors import DeadlineError, ProtocolError, UnavailableError, WrongHostError
from tailrace.wire import commands as c


@pytest.fixture
def lister(store: Any, pool: ConnectionPool) -> SegmentLister:
    def locate(container_id: int) -> Endpoint:
        if container_id == 3:
            raise UnavailableError("container 3 has no owner")
        endpoint: Endpoint = store.endpoint
        return endpoint

    return SegmentLister(pool, 4, locate)


async def test_pages_follow_each_other(store: Any, lister: SegmentLister) -> None:
    store.answer(c.ListSegments, lambda rid: c.SegmentsListed(rid, True, 5, ["a", "b"]))
    store.answer(c.ListSegments, lambda rid: c.SegmentsListed(rid, False, 7, ["c"]))
    assert await lister.page(2, -1) == (["a", "b"], 5)
    assert await lister.page(2, 5) == (["c"], None)
    asked = [each for each in store.seen if isinstance(each, c.ListSegments)]
    assert [(each.container_id, each.after) for each in asked] == [(2, -1), (2, 5)]


async def test_a_page_that_does_not_advance_is_the_last(store: Any, lister: SegmentLister) -> None:
    store.answer(c.ListSegments, lambda rid: c.SegmentsListed(rid, True, 5, []))
    assert await lister.page(0, 5) == ([], None)


async def test_failures_are_reported(store: Any, lister: SegmentLister, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnavailableError, match="no owner"):
        await lister.page(3, -1)
    store.answer(c.ListSegments, lambda rid: c.WrongHost(rid, "", "", ""))
    with pytest.raises(WrongHostError):
        await lister.page(0, -1)
    store.answer(c.ListSegments, lambda rid: c.StorageFlushed(rid))
    with pytest.raises(ProtocolError):
        await lister.page(0, -1)
    store.rules.append(lambda command: [] if isinstance(command, c.ListSegments) else None)  # silence
    monkeypatch.setattr(limits, "SEGMENT_LIST_DEADLINE_S", 0.05)
    with pytest.raises(DeadlineError):
        await lister.page(1, -1)
