"""Requests for a container that is to be opened here wait for it, within bounds (docs/design.md#ownership)."""

from __future__ import annotations

from typing import Any

import pytest

from tailrace.common import limits
from tailrace.wire import commands as c

SEGMENT = "scope/stream/0.#epoch.0"
W = b"w" * 16
LONG_S = 3600.0
SHORT_S = 0.01


@pytest.fixture
async def client(model: Any) -> Any:
    client = await model.connect()
    await client.create(SEGMENT)
    await client.setup(W, SEGMENT)
    client.send(c.AppendBlockEnd(W, 0, b"x", 1, 1, 5))
    await client.receive()
    return client


async def test_writers_and_readers_wait_until_it_is_open(
    model: Any, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "PENDING_CONTAINER_TIMEOUT_S", LONG_S)
    pending = model.registry.pending
    pending.begin(0)
    client.send(
        c.SetupAppend(1, W, SEGMENT, ""),
        c.GetStreamSegmentInfo(2, SEGMENT, ""),
        c.ReadSegment(SEGMENT, 0, 100, "", 3),
    )
    await client.expect_silence()
    pending.end(0)
    found = [await client.receive() for _ in range(3)]
    assert c.AppendSetup(1, SEGMENT, W, 1) in found
    assert {type(reply) for reply in found} == {c.AppendSetup, c.StreamSegmentInfo, c.SegmentRead}
    client.send(c.AppendBlockEnd(W, 0, b"y", 1, 2, 6))
    assert isinstance(await client.receive(), c.DataAppended)


async def test_changes_do_not_wait(model: Any, client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """They would be applied after the client that asked for them may have given up."""
    monkeypatch.setattr(limits, "PENDING_CONTAINER_TIMEOUT_S", LONG_S)
    model.registry.pending.begin(0)
    assert await client.call(c.SealSegment(1, SEGMENT, "")) == c.WrongHost(1, SEGMENT, "", "")
    model.registry.pending.end(0)
    assert await client.call(c.SealSegment(2, SEGMENT, "")) == c.SegmentSealed(2, SEGMENT)


async def test_they_wait_no_longer_than_their_timeout(model: Any, client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PENDING_CONTAINER_TIMEOUT_S", SHORT_S)
    model.registry.pending.begin(0)
    assert await client.call(c.SetupAppend(1, W, SEGMENT, "")) == c.WrongHost(1, SEGMENT, "", "")
    assert await client.call(c.GetStreamSegmentInfo(2, SEGMENT, "")) == c.WrongHost(2, SEGMENT, "", "")


async def test_only_so_many_wait_and_none_that_is_large(
    model: Any, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "PENDING_CONTAINER_TIMEOUT_S", LONG_S)
    monkeypatch.setattr(limits, "PENDING_CONTAINER_REQUESTS_MAX", 1)
    model.registry.pending.begin(0)
    client.send(c.SetupAppend(1, W, SEGMENT, ""))
    assert await client.call(c.GetStreamSegmentInfo(2, SEGMENT, "")) == c.WrongHost(2, SEGMENT, "", "")
    monkeypatch.setattr(limits, "PENDING_CONTAINER_REQUESTS_MAX", 2)
    monkeypatch.setattr(limits, "PENDING_CONTAINER_REQUEST_MAX_BYTES", 8)
    assert await client.call(c.GetStreamSegmentInfo(3, SEGMENT, "")) == c.WrongHost(3, SEGMENT, "", "")
    model.registry.pending.end(0)
    assert await client.receive() == c.AppendSetup(1, SEGMENT, W, 1)


async def test_who_waited_and_is_gone_leaves_nothing(model: Any, client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PENDING_CONTAINER_TIMEOUT_S", LONG_S)
    monkeypatch.setattr(limits, "PENDING_CONTAINER_REQUESTS_MAX", 1)
    model.registry.pending.begin(0)
    client.send(c.SetupAppend(1, W, SEGMENT, ""))
    await client.expect_silence()
    client.close()
    await model.until(lambda: model.server.unanswered == 0)
    other = await model.connect()
    other.send(c.GetStreamSegmentInfo(2, SEGMENT, ""))
    await other.expect_silence()
    model.registry.pending.end(0)
    await other.expect(c.StreamSegmentInfo)
