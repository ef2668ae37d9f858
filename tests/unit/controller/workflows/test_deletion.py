"""The deletion of streams that remember many transactions."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from tailrace.common import limits
from tailrace.common.errors import ConnectionLostError
from tailrace.controller.metadata.stream_store import StreamKey
from tailrace.rpc import controller_pb2 as pb

KEY = StreamKey("scope", "stream")
TRANSACTIONS = 40


@pytest.fixture
async def sealed(api: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Calls to a controller with a sealed stream that remembers many chunks of transactions."""
    monkeypatch.setattr(limits, "COMPLETED_TRANSACTIONS_PER_CHUNK", 2)
    monkeypatch.setattr(limits, "WORKFLOW_BACKOFF_INITIAL_S", 0.001)
    monkeypatch.setattr(limits, "WORKFLOW_BACKOFF_MAX_S", 0.002)
    await api.setup(1)
    begun = [await api.begin() for _ in range(TRANSACTIONS)]
    await asyncio.gather(*(api.commit(each.txnId) for each in begun))
    assert (await api.call("sealStream", api.info)).status == pb.UpdateStreamStatus.SUCCESS
    return api


def records(world: Any) -> list[bytes]:
    """The keys of the stream's records."""
    return [key for key in world.metadata.dump_table(KEY.table) if key == KEY.root or key.startswith(KEY.root + b"/")]


async def test_a_step_that_fails_loses_no_progress(sealed: Any, world: Any) -> None:
    """Each third removal of transactions fails, as each step did that had no time for all of them."""
    removals = 0
    real = world.metadata.remove

    async def remove(table: str, keys: Sequence[tuple[bytes, int]]) -> None:
        nonlocal removals
        if any(key.startswith(b"scope/stream/t/") for key, _ in keys):
            removals += 1
            if removals % 3 == 0:
                raise ConnectionLostError("call lost")
        await real(table, keys)

    world.metadata.remove = remove
    deleted = await sealed.call("deleteStream", sealed.info)
    assert deleted.status == pb.DeleteStreamStatus.SUCCESS
    assert records(world) == [KEY.root]


async def test_two_controllers_delete_it_together(sealed: Any, world: Any, make_api: Any) -> None:
    other = make_api(await world.start(seed=2))
    answers = await asyncio.gather(*(api.call("deleteStream", api.info) for api in (sealed, other)))
    assert [answer.status for answer in answers] == [pb.DeleteStreamStatus.SUCCESS] * 2
    assert records(world) == [KEY.root]
    root = await other.controller.services.core.context.store.load(KEY)
    assert (root.completed_first, root.completed_next) == (0, 0)
