"""What a checkpoint or an operation holds behind a valid checksum is data or a DataError, never another exception."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tailrace.common.errors import CorruptionError
from tailrace.segmentstore.api import SegmentKind
from tailrace.segmentstore.metadata import checkpoint, fields
from tailrace.segmentstore.metadata import operations as ops
from tailrace.segmentstore.metadata.fields import ChunkRef
from tailrace.segmentstore.metadata.segment import Segment
from tailrace.segmentstore.metadata.state import ContainerState, MergedSource

SEQUENCE = 9
NO_KINDS = [-1, -(2**63)]


def a_state(chunks: Sequence[ChunkRef] = ()) -> ContainerState:
    state = ContainerState(3)
    state.epoch, state.committed_sequence = 2, SEQUENCE
    segment = Segment(4, "scope/stream/0.#epoch.0", SegmentKind.TABLE, 0, 1000)
    segment.chunks._refs = list(chunks)
    segment.length = 8
    state.add_segment(segment)
    state.merged["scope/stream/old"] = MergedSource(5, 4, 0, 8, 1000)
    return state


def load(body: bytes) -> ContainerState:
    state = ContainerState(3)
    checkpoint.load(state, SEQUENCE, body, "here")
    return state


def test_a_whole_checkpoint_is_loaded() -> None:
    state = load(checkpoint.encode(a_state([ChunkRef("c3/a", 0, 0, 8)])))
    assert state.by_name["scope/stream/0.#epoch.0"].kind is SegmentKind.TABLE
    assert state.resolve(5) == (4, 0)


def pending(body: bytes) -> list[str]:
    return checkpoint.pending_deletes(3, SEQUENCE, body, "here")


def test_the_objects_to_delete_are_read_without_a_state() -> None:
    state = a_state([ChunkRef("c3/a", 0, 0, 8)])
    assert pending(checkpoint.encode(state)) == []
    state.pending_deletes = dict.fromkeys(["c3/b", "c3/c"])
    body = checkpoint.encode(state)
    assert pending(body) == list(load(body).pending_deletes) == ["c3/b", "c3/c"]
    with pytest.raises(CorruptionError, match="corruption in here"):
        pending(body[:-1])
    with pytest.raises(CorruptionError, match="corruption in here"):
        pending(body + b"x")


def test_an_object_key_that_is_not_utf_8_is_corruption() -> None:
    body = checkpoint.encode(a_state([ChunkRef("c3/a", 0, 0, 8)])).replace(b"c3/a", b"c3/\xff")
    with pytest.raises(CorruptionError, match="corruption in here: object key is not UTF-8"):
        load(body)


def test_overlapping_references_are_corruption() -> None:
    refs = [ChunkRef("a", 0, 0, 8), ChunkRef("b", 0, 7, 8)]
    with pytest.raises(CorruptionError, match="corruption in here: chunk references overlap at 7"):
        load(checkpoint.encode(a_state(refs)))


@pytest.mark.parametrize("kind", NO_KINDS)
def test_a_negative_kind_of_a_segment_is_corruption(kind: int) -> None:
    body = checkpoint.encode(a_state())
    kinds = (4).to_bytes(8, "big") + (1).to_bytes(8, "big")
    assert body.count(kinds) == 1
    with pytest.raises(CorruptionError, match=f"kind {kind} does not exist"):
        load(body.replace(kinds, (4).to_bytes(8, "big") + kind.to_bytes(8, "big", signed=True)))


@pytest.mark.parametrize("kind", NO_KINDS)
def test_a_negative_kind_of_a_created_segment_is_corruption(kind: int) -> None:
    writer = fields.Writer()
    writer.u8(ops.FORMAT_VERSION)
    writer.i64(4, kind, 0, 1000)
    writer.text("scope/stream/0")
    writer.attributes([])
    with pytest.raises(CorruptionError, match=f"kind {kind} does not exist"):
        ops.decode(ops.OperationType.CREATE, writer.done(), "here")


def test_a_kind_with_unknown_flags_is_kept() -> None:
    created = ops.Create(4, "scope/stream/0", SegmentKind(0x101), 0, 1000, [])
    assert ops.decode(ops.OperationType.CREATE, created.encode(), "here") == created


def test_merges_in_a_circle_are_corruption() -> None:
    state = a_state()
    state.merged["scope/stream/older"] = MergedSource(6, 5, 0, 8, 1000)
    state.merged["scope/stream/old"] = MergedSource(5, 6, 0, 8, 1000)
    with pytest.raises(CorruptionError, match=r"corruption in here: merges of segment 5 form a circle"):
        load(checkpoint.encode(state))


def test_a_merge_of_a_segment_into_itself_is_corruption() -> None:
    state = a_state()
    with pytest.raises(CorruptionError, match="does not fit: merge of segment 4 into itself"):
        state.apply(SEQUENCE + 1, ops.Merge(4, 4, 8, 8, 1000, []))
