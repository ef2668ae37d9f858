"""Durable records: test vectors of docs/formats/controller.md, damage, versions, placement."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.common import limits
from tailrace.common.errors import CorruptionError, FormatVersionError
from tailrace.common.stream_policies import RetentionPolicy, RetentionType, ScalingPolicy, StreamConfig
from tailrace.controller.metadata import records
from tailrace.controller.metadata.metadata_store import bucket_of
from tailrace.controller.metadata.model import (
    Epoch,
    RecordedCut,
    ScaleReason,
    StreamSegment,
    StreamState,
    TruncationReason,
)
from tailrace.controller.metadata.records import (
    BucketsRecord,
    IndexedSubscriber,
    InstanceRecord,
    MarkedStream,
    OpenShard,
    PendingRecord,
    RetainedStream,
    RetentionCut,
    RetentionRecord,
    RetentionTruncation,
    Rolling,
    ScaleIntent,
    ScopeRecord,
    ScopeStreamEntry,
    StreamRecord,
    Subscriber,
    SubscribersRecord,
    TaggedStream,
    TransactionRecord,
    decode,
    encode,
)
from tailrace.controller.metadata.tag_index import index_key
from tailrace.controller.metadata.transaction_ledger import digest

PAGE = Path(__file__).resolve().parents[4] / "docs/formats/controller.md"
VECTORS = {
    name: bytes.fromhex(text.replace("\n", ""))
    for name, text in re.findall(r"Vector (\w+):.*?```text\n(.*?)```", PAGE.read_text(), re.DOTALL)
}
GROUP_ID = "11111111-2222-3333-4444-555555555555"
TRANSACTION = bytes(15) + b"\1"
RECORDS: dict[str, records.Record] = {
    "root": StreamRecord(
        incarnation=1,
        state=StreamState.SCALING,
        config=StreamConfig(
            ScalingPolicy.by_events(100, 2, 1),
            RetentionPolicy(RetentionType.SIZE, 10, 20),
            ("blue",),
            7,
            8,
        ),
        created_ms=1700000000000,
        next_segment_number=5,
        active_epoch=2,
        transaction_counter=9,
        truncation={2: 3},
        sealed_bytes=11,
        intent=ScaleIntent(
            bytes(range(8)),
            2,
            (4294967298,),
            (StreamSegment(12884901891, 0.0, 0.5), StreamSegment(12884901892, 0.5, 1.0)),
            ScaleReason.RATE,
        ),
        open_count=1,
        open_digest=digest([TRANSACTION]),
    ),
    "rolling": StreamRecord(
        incarnation=0,
        state=StreamState.ACTIVE,
        config=StreamConfig(ScalingPolicy.fixed(1)),
        created_ms=1700000000000,
        next_segment_number=3,
        active_epoch=3,
        transaction_counter=1,
        commit_batch=(bytes(16),),
        rolling=Rolling(bytes(range(8)), 1, 0),
    ),
    "epoch": Epoch(1, 1700000000001, (StreamSegment(4294967297, 0.0, 1.0),), 0, 1, reason=ScaleReason.MANUAL),
    "epoch_first": Epoch(0, 1700000000001, (StreamSegment(1002, 0.0, 1.0),), numbers_skipped=1001),
    "transaction": TransactionRecord(
        bytes(15) + b"\2", 0, bytes(8), 1700000000000, 1700000020000, 1700020000000, lease_ms=20_000
    ),
    "scope": ScopeRecord(bytes(range(8)), 1700000000000),
    "pending": PendingRecord("stream", "s", "x", "0011223344556677"),
    "instance": InstanceRecord("0011223344556677", 3, ("c.example:9090",), 1),
    "stream_entry": ScopeStreamEntry(("blue", "green"), 1, ("red",)),
    "tagged": TaggedStream("blue", "x", bytes(range(8))),
    "buckets": BucketsRecord(5, ("0011223344556677", "")),
    "retention": RetentionRecord(
        next_number=3,
        recorded=(RecordedCut(1, 1700000000000, 100), RecordedCut(2, 1700001800000, 250)),
        last=RetentionTruncation(1700001800000, TruncationReason.CONSUMPTION, 100, 40),
        applied_ms=1700001800000,
        seen_ms=1700088200000,
    ),
    "retention_cut": RetentionCut({4294967297: 250}),
    "retained": RetainedStream("s", "x"),
    "marked": MarkedStream("s", "x", 1700000000000),
    "open_shard": OpenShard((TRANSACTION,)),
    "subscribers": SubscribersRecord(index={"s/g": IndexedSubscriber(GROUP_ID, True)}),
    "subscriber": Subscriber(GROUP_ID, 2, {4294967297: 250}),
}


@pytest.mark.parametrize("name", RECORDS)
def test_vectors(name: str) -> None:
    assert encode(RECORDS[name]) == VECTORS[name]
    assert decode(type(RECORDS[name]), VECTORS[name], "place") == RECORDS[name]


def test_a_retention_set_of_earlier_versions_is_read() -> None:
    found = decode(RetentionRecord, VECTORS["retention_earlier"], "place")
    assert found == msgspec.structs.replace(RECORDS["retention"], applied_ms=0, seen_ms=0)
    found = decode(RetentionRecord, VECTORS["retention_unseen"], "place")
    assert found == msgspec.structs.replace(RECORDS["retention"], seen_ms=0)


def test_a_root_of_earlier_versions_is_read() -> None:
    assert VECTORS["root_earlier"] != VECTORS["root"]
    root = RECORDS["root"]
    assert isinstance(root, StreamRecord)
    assert isinstance(root.intent, ScaleIntent)
    earlier = msgspec.structs.replace(root, intent=msgspec.structs.replace(root.intent, reason=""))
    assert decode(StreamRecord, VECTORS["root_without_reason"], "place") == earlier
    listing = msgspec.structs.replace(earlier, open_count=0, open_digest=0, open_transactions=(TRANSACTION,))
    for name in ("root_listing", "root_earlier"):
        assert decode(StreamRecord, VECTORS[name], "place") == listing


def test_an_epoch_of_earlier_versions_leaves_out_no_numbers() -> None:
    assert decode(Epoch, VECTORS["epoch_without_skipped"], "place") == RECORDS["epoch"]


def test_an_epoch_of_earlier_versions_has_no_reason() -> None:
    expected = msgspec.structs.replace(RECORDS["epoch"], reason="")
    assert decode(Epoch, VECTORS["epoch_earlier"], "place") == expected


def test_a_transaction_of_earlier_versions_has_no_length_of_its_lease() -> None:
    expected = msgspec.structs.replace(RECORDS["transaction"], lease_ms=0)
    assert decode(TransactionRecord, VECTORS["transaction_earlier"], "place") == expected


def test_a_mark_of_earlier_versions_names_no_controller() -> None:
    assert decode(PendingRecord, VECTORS["pending_earlier"], "place") == PendingRecord("stream", "s", "x")


def test_a_controller_of_earlier_versions_keeps_no_indexes() -> None:
    found = decode(InstanceRecord, VECTORS["instance_earlier"], "place")
    assert found == InstanceRecord("0011223344556677", 3, ("c.example:9090",), indexes=0)


def test_an_entry_of_earlier_versions_has_no_tags_that_leave() -> None:
    assert decode(ScopeStreamEntry, VECTORS["stream_entry_earlier"], "place") == ScopeStreamEntry(("blue", "green"), 1)


def test_the_key_of_a_tagged_stream() -> None:
    assert f"`{index_key('blue', 'x').hex()}`" in PAGE.read_text()


def test_subscribers_of_earlier_versions_are_in_one_record() -> None:
    expected = SubscribersRecord({"s/g": Subscriber(GROUP_ID, 2, {4294967297: 250}), "s/h": Subscriber(GROUP_ID, 0)})
    assert decode(SubscribersRecord, VECTORS["subscribers_earlier"], "place") == expected


@given(st.sampled_from(sorted(RECORDS)), st.data())
def test_every_flipped_bit_is_corruption_with_its_place(name: str, data: st.DataObject) -> None:
    damaged = bytearray(VECTORS[name])
    damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(CorruptionError, match="table key"):
        decode(type(RECORDS[name]), bytes(damaged), "table key")


@pytest.mark.parametrize("length", [0, 13, 14, 20])
def test_a_record_that_was_cut_off_is_corruption(length: int) -> None:
    with pytest.raises(CorruptionError):
        decode(ScopeRecord, VECTORS["scope"][:length], "place")


def test_a_record_of_another_kind_is_corruption() -> None:
    with pytest.raises(CorruptionError, match="kind 9"):
        decode(Epoch, VECTORS["scope"], "place")


def test_a_newer_version_is_refused() -> None:
    payload = VECTORS["scope"][records.HEADER.size :]
    checksum = records._checksum(9, records.VERSION + 1, payload)
    newer = records.HEADER.pack(records.MAGIC, 9, records.VERSION + 1, len(payload), checksum) + payload
    with pytest.raises(FormatVersionError, match="version 4"):
        decode(ScopeRecord, newer, "place")


def test_only_a_root_that_earlier_programs_would_damage_has_a_new_version() -> None:
    versions = {name: vector[5] for name, vector in VECTORS.items()}
    assert (versions["root"], versions["rolling"], versions["subscribers"]) == (3, 2, 3)
    newer = {"root", "root_without_reason", "rolling", "subscribers"}
    assert {name for name, version in versions.items() if version != 1} == newer


def test_missing_fields_have_defaults_and_unknown_ones_are_skipped() -> None:
    payload = msgspec.msgpack.encode({"nonce": b"n", "created_ms": 5, "later": [1]})
    checksum = records._checksum(9, 1, payload)
    stored = records.HEADER.pack(records.MAGIC, 9, 1, len(payload), checksum) + payload
    assert decode(ScopeRecord, stored, "place") == ScopeRecord(b"n", 5)


def test_text_that_is_not_utf_8_is_corruption_although_the_checksum_matches() -> None:
    payload = encode(RECORDS["root"])[records.HEADER.size :].replace(b"blue", b"bl\xff\xff")
    checksum = records._checksum(1, 1, payload)
    stored = records.HEADER.pack(records.MAGIC, 1, 1, len(payload), checksum) + payload
    with pytest.raises(CorruptionError, match=r"corruption in table key: .*utf-8"):
        decode(StreamRecord, stored, "table key")


def test_buckets_are_stable_and_even() -> None:
    assert [bucket_of("scope", "stream"), bucket_of("a", "b"), bucket_of("_system", "_RGx")] == [46, 32, 34]
    counts = [0] * limits.METADATA_BUCKETS
    for number in range(6400):
        counts[bucket_of("scope", f"stream-{number}")] += 1
    assert min(counts) > 60
    assert max(counts) < 145
