"""The client that asks segment stores for rates: pages, failures, deadlines."""

from __future__ import annotations

from typing import Any

import pytest

from tailrace.client.connections.pool import ConnectionPool
from tailrace.client.connections.rates import RateClient
from tailrace.client.types import Endpoint
from tailrace.common import limits
from tailrace.common.errors import ConnectionLostError, DeadlineError, ProtocolError, UnavailableError, WrongHostError
from tailrace.wire import commands as c


def rate(number: int) -> c.MeasuredRate:
    return c.MeasuredRate(f"s/t/{number}.#epoch.0", number, 2, 100, 5000, [1, 2])


@pytest.fixture
def client(store: Any, pool: ConnectionPool) -> RateClient:
    def locate(container_id: int) -> Endpoint:
        if container_id == 3:
            raise UnavailableError("container 3 has no owner")
        endpoint: Endpoint = store.endpoint
        return endpoint

    return RateClient(pool, 4, locate)


async def test_pages_are_put_together(store: Any, client: RateClient) -> None:
    store.answer(c.GetSegmentRates, lambda rid: c.SegmentRates(rid, True, [rate(1), rate(5)]))
    store.answer(c.GetSegmentRates, lambda rid: c.SegmentRates(rid, True, [rate(6)]))
    store.answer(c.GetSegmentRates, lambda rid: c.SegmentRates(rid, False, []))
    assert await client.rates(2, [10, 20]) == [rate(1), rate(5), rate(6)]
    asked = [each for each in store.seen if isinstance(each, c.GetSegmentRates)]
    assert [(each.container_id, each.after, each.windows_ms) for each in asked] == [
        (2, after, [10, 20]) for after in (-1, 5, 6)
    ]


async def test_an_empty_page_ends_it(store: Any, client: RateClient) -> None:
    store.answer(c.GetSegmentRates, lambda rid: c.SegmentRates(rid, True, []))
    assert await client.rates(0, [10]) == []


async def test_failures_are_reported(store: Any, client: RateClient, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnavailableError, match="no owner"):
        await client.rates(3, [10])
    store.answer(c.GetSegmentRates, lambda rid: c.WrongHost(rid, "", "", ""))
    with pytest.raises(WrongHostError):
        await client.rates(0, [10])
    store.answer(c.GetSegmentRates, lambda rid: c.StorageFlushed(rid))
    with pytest.raises(ProtocolError):
        await client.rates(0, [10])
    store.cut(c.GetSegmentRates)
    with pytest.raises(ConnectionLostError):
        await client.rates(0, [10])
    store.rules.append(lambda command: [] if isinstance(command, c.GetSegmentRates) else None)  # silence
    monkeypatch.setattr(limits, "SCALING_RATES_DEADLINE_S", 0.05)
    with pytest.raises(DeadlineError, match="container 1 did not report"):
        await client.rates(1, [10])
