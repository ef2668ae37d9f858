"""Subscribers of a stream in table segments of a real store: as many, and as large, as a stream takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.common import limits
from tailrace.common.real_ports import SystemClock, SystemEntropy
from tailrace.common.stream_policies import ScalingPolicy, StreamConfig
from tailrace.controller.managers.subscribers import publish, subscribe, subscribers, unsubscribe
from tailrace.controller.metadata import records
from tailrace.controller.metadata.epochs import Cut
from tailrace.controller.metadata.metadata_store import TableMetadataStore
from tailrace.controller.metadata.model import StreamState
from tailrace.controller.metadata.ports import NOT_EXISTS, Put
from tailrace.controller.metadata.records import StreamRecord, Subscriber, SubscribersRecord, encode
from tailrace.controller.metadata.scope_store import ScopeStore
from tailrace.controller.metadata.stream_store import StreamKey, StreamStore
from tailrace.controller.metadata.tag_index import TagIndex
from tailrace.controller.workflows.context import ControllerConfig, WorkflowContext
from tailrace.controller.workflows.segments import SegmentOperations

from .test_metadata import real_segments

KEY = StreamKey("scope", "stream")
GROUP_ID = "11111111-2222-3333-4444-555555555555"
CUT = {segment << 32 | segment: 2**40 + segment for segment in range(1000)}


async def still_current() -> None:
    """The step that subscribes is not late."""


async def as_published(root: StreamRecord, published: Cut) -> Cut:
    """The group was not reset."""
    return published


@pytest.mark.timeout(300)
async def test_a_stream_with_as_many_subscribers_as_it_takes(tmp_path: Path) -> None:
    """They begin in one record of before, move to records of their own in one batch, and publish long cuts."""
    names = [f"scope/group-{number:04}" for number in range(limits.SUBSCRIBERS_PER_STREAM_MAX)]
    payload = records._ENCODER.encode({"subscribers": {name: Subscriber(GROUP_ID, 0) for name in names}})
    checksum = records._checksum(7, 1, payload)
    earlier = records.HEADER.pack(records.MAGIC, 7, 1, len(payload), checksum) + payload
    root = StreamRecord(0, StreamState.ACTIVE, StreamConfig(ScalingPolicy.fixed(1000)), 1000, 1000)
    async with real_segments(tmp_path) as segments:
        metadata = TableMetadataStore(segments)
        await metadata.create_table(KEY.table)
        await metadata.put(
            KEY.table, [Put(KEY.root, encode(root), NOT_EXISTS), Put(KEY.subscribers, earlier, NOT_EXISTS)]
        )
        entropy = SystemEntropy()
        scopes = ScopeStore(metadata, SystemClock(), entropy)
        context = WorkflowContext(
            store=StreamStore(metadata, entropy),
            scopes=scopes,
            tags=TagIndex(metadata, scopes, entropy),
            segments=SegmentOperations(segments),
            clock=SystemClock(),
            entropy=entropy,
            config=ControllerConfig(),
            instance="test",
        )
        together = SubscribersRecord(dict.fromkeys(names[:58], Subscriber(GROUP_ID, 0, CUT)))
        assert len(encode(together)) > limits.TABLE_VALUE_MAX_BYTES, "what one record had no room for"
        for name in names[:200]:
            await publish(context, KEY, name, Subscriber(GROUP_ID, 0), Subscriber(GROUP_ID, 0, CUT), behind=False)
        await unsubscribe(context, KEY, names[-1], GROUP_ID)
        await subscribe(context, KEY, "scope/new", GROUP_ID, 0, still_current, as_published)
        found = {name: each.cut async for name, each in subscribers(context, KEY)}
        assert list(found) == [*names[:-1], "scope/new"]
        assert list(found.values()) == [CUT] * 200 + [None] * (len(names) - 200)
