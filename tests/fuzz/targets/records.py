"""Records of the controller's tables behind a right checksum."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tailrace.common.errors import CorruptionError, FormatVersionError
from tailrace.common.stream_policies import RetentionPolicy, RetentionType, ScalingPolicy, StreamConfig
from tailrace.controller.metadata import records
from tailrace.controller.metadata.model import Epoch, StreamSegment, StreamState

DOCUMENTED = (CorruptionError, FormatVersionError)
KINDS = list(records._KINDS)


def run(data: bytes) -> None:
    """The first byte chooses the kind, the second is the version; the rest is the payload."""
    number, version, payload = data[0] if data else 0, data[1] if len(data) > 1 else 0, data[2:]
    kind = KINDS[number % len(KINDS)]
    code = records._KINDS[kind]
    checksum = records._checksum(code, version, payload)
    header = records.HEADER.pack(records.MAGIC, code, version, len(payload), checksum)
    decoded: Any = records.decode(kind, header + payload, "fuzz")
    records.encode(decoded)


def seeds() -> Iterator[bytes]:
    config = StreamConfig(
        ScalingPolicy.by_events(100, 2, 1), RetentionPolicy(RetentionType.SIZE, 10, 20), ("blue",), 7, 8
    )
    segment = StreamSegment(4294967297, 0.0, 1.0)
    for record in (
        records.StreamRecord(
            incarnation=1,
            state=StreamState.SCALING,
            config=config,
            created_ms=1000,
            next_segment_number=5,
            active_epoch=2,
            truncation={2: 3},
            intent=records.ScaleIntent(bytes(8), 2, (1,), (segment,)),
        ),
        Epoch(1, 1000, (segment,), 0, 1),
        records.TransactionRecord(bytes(16), 0, bytes(8), 1000, 2000, 3000),
        records.ScopeRecord(bytes(8), 1000),
        records.SubscribersRecord(index={"s/g": records.IndexedSubscriber("id", True)}),
        records.Subscriber("id", 1, {4294967297: 7}),
        records.OpenShard((bytes(16),)),
        records.ScopeStreamEntry(("blue",), 1, ("red",)),
        records.TaggedStream("blue", "x", bytes(8)),
    ):
        stored = records.encode(record)
        yield bytes([KINDS.index(type(record)), records.VERSION]) + stored[records.HEADER.size :]
