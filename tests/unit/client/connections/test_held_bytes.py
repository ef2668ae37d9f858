"""The client that asks containers what streams hold: pages and failures."""

from __future__ import annotations

from typing import Any

import pytest

from tailrace.client.connections.held_bytes import HeldBytesClient
from tailrace.client.connections.pool import ConnectionPool
from tailrace.client.types import Endpoint
from tailrace.common import limits
from tailrace.common.errors import DeadlineError, ProtocolError, UnavailableError, WrongHostError
from tailrace.wire import commands as c


@pytest.fixture
def source(store: Any, pool: ConnectionPool) -> HeldBytesClient:
    def locate(container_id: int) -> Endpoint:
        if container_id == 3:
            raise UnavailableError("container 3 has no owner")
        endpoint: Endpoint = store.endpoint
        return endpoint

    return HeldBytesClient(pool, 4, locate)


async def test_pages_follow_each_other(store: Any, source: HeldBytesClient) -> None:
    store.answer(c.GetStreamBytes, lambda rid: c.StreamBytesListed(rid, True, ["s/a", "s/b"], [1, 2]))
    store.answer(c.GetStreamBytes, lambda rid: c.StreamBytesListed(rid, False, ["s/c"], [3]))
    assert await source.page(2, "") == ([("s/a", 1), ("s/b", 2)], "s/b")
    assert await source.page(2, "s/b") == ([("s/c", 3)], None)
    asked = [each for each in store.seen if isinstance(each, c.GetStreamBytes)]
    assert [(each.container_id, each.after) for each in asked] == [(2, ""), (2, "s/b")]


@pytest.mark.parametrize("streams", [[], ["s/a"], ["s/b"]])
async def test_a_page_that_does_not_advance_is_the_last(
    store: Any, source: HeldBytesClient, streams: list[str]
) -> None:
    store.answer(c.GetStreamBytes, lambda rid: c.StreamBytesListed(rid, True, streams, [1] * len(streams)))
    assert await source.page(0, "s/b") == ([(stream, 1) for stream in streams], None)


async def test_failures_are_reported(store: Any, source: HeldBytesClient, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnavailableError, match="no owner"):
        await source.page(3, "")
    store.answer(c.GetStreamBytes, lambda rid: c.WrongHost(rid, "", "", ""))
    with pytest.raises(WrongHostError):
        await source.page(0, "")
    for reply in (c.StorageFlushed(0), c.StreamBytesListed(0, False, ["s/a", "s/b"], [1])):
        store.answer(c.GetStreamBytes, lambda rid, reply=reply: _with(reply, rid))
        with pytest.raises(ProtocolError):
            await source.page(0, "")
    store.rules.append(lambda command: [] if isinstance(command, c.GetStreamBytes) else None)  # silence
    monkeypatch.setattr(limits, "HELD_BYTES_DEADLINE_S", 0.05)
    with pytest.raises(DeadlineError):
        await source.page(1, "")


def _with(reply: Any, request_id: int) -> Any:
    reply.request_id = request_id
    return reply
