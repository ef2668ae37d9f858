"""Handlers of requests on segments, one per command.

See docs/protocol/wire.md#read-commands, docs/protocol/wire.md#segment-commands, docs/protocol/wire.md#admin-commands,
docs/protocol/wire.md#replies.
"""

from __future__ import annotations

import asyncio
import heapq
import uuid
from typing import TYPE_CHECKING, Final

from tailrace.common import limits, names
from tailrace.common.auth import AccessLevel
from tailrace.common.errors import (
    BadAttributeError,
    BadRequestError,
    NoSuchSegmentError,
    OverloadedError,
    UnsupportedError,
)
from tailrace.common.ports import new_uuid
from tailrace.segmentstore.api import (
    CREATION_TIME,
    EVENT_COUNT,
    NULL_ATTRIBUTE,
    ROLLOVER_SIZE,
    SCALE_POLICY_RATE,
    SCALE_POLICY_TYPE,
    AttributeUpdate,
    AttributeUpdateType,
    SegmentKind,
    is_core_attribute,
)
from tailrace.segmentstore.server.calls import Begun, Call, Handler, confirmed
from tailrace.segmentstore.server.context import scope_of
from tailrace.wire import commands as c
from tailrace.wire.codec import encode_segment_read

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.segmentstore.api import ReadResult, SegmentContainer
    from tailrace.wire.command import Command

_READ_MIN_BYTES: Final = 8
_SCALE_TYPES: Final = (0, 1, 2)
_CONDITION_KINDS: Final = (AttributeUpdateType.REPLACE, AttributeUpdateType.REPLACE_IF_EQUALS)


async def read_segment(call: Call, command: c.ReadSegment) -> bytes:
    """Read; at the tail the reply waits for data without a deadline (docs/protocol/wire.md#reads)."""
    if command.offset < 0:
        raise BadRequestError(f"offset {command.offset} is negative")
    outbox = call.outbox
    assert outbox is not None, "reads that wait come over a connection"
    length = min(limits.READ_REPLY_MAX_BYTES, max(_READ_MIN_BYTES, command.suggested_length))
    while True:
        # A peer that takes no replies causes no reads: those that it sends one after the other begin one by one.
        expected_bytes = min(length, call.container.available(command.segment, command.offset))
        await outbox.room(expected_bytes)
        if expected_bytes > limits.SEND_GATHER_BYTES:
            await call.context.large_replies.begin()
            await outbox.room(expected_bytes)  # another read of this peer may have begun meanwhile
        with outbox.reserved(expected_bytes):
            result = await call.container.read(command.segment, command.offset, length, wait=True)
        # It may have waited at the tail, and the peer may have stopped taking replies: then it is read again later.
        if result.length <= expected_bytes or not outbox.is_full(result.length):
            return _read_reply(call, command, result)


def _read_reply(call: Call, command: c.ReadSegment, result: ReadResult) -> bytes:
    call.context.account(scope_of(command.segment), result.length, 0)
    return encode_segment_read(
        command.segment,
        command.offset,
        result.data,
        result.length,
        at_tail=result.at_tail,
        end_of_segment=result.end_of_segment,
        request_id=command.request_id,
    )


async def get_info(call: Call, command: c.GetStreamSegmentInfo) -> Command:
    """Return the properties of a segment."""
    info = await call.container.info(command.segment)
    return c.StreamSegmentInfo(
        command.request_id,
        command.segment,
        True,
        info.sealed,
        False,
        info.last_modified_ms,
        info.length,
        info.start_offset,
    )


async def get_attribute(call: Call, command: c.GetSegmentAttribute) -> Command:
    """Return the stored value of any attribute, NULL_ATTRIBUTE when it is not set.

    See docs/protocol/wire.md#attributes.
    """
    values = await call.container.get_attributes(command.segment, (command.attribute_id,))
    return c.SegmentAttribute(command.request_id, values.get(command.attribute_id, NULL_ATTRIBUTE))


async def refuse_table(container: SegmentContainer, segment: str) -> None:
    """Raise UnsupportedError for a table segment: its bytes and attributes are its entries and their index.

    For a missing segment the operation itself raises the error.
    """
    try:
        info = await container.info(segment)
    except NoSuchSegmentError:
        return
    if info.kind.is_table:
        raise UnsupportedError(f"{segment} is a table segment: only table commands change it")


def refuse_core_attribute(attribute_id: bytes) -> None:
    """Raise BadRequestError for an attribute that only the server sets."""
    if is_core_attribute(attribute_id):
        raise BadRequestError(f"attribute {attribute_id.hex()} belongs to the server; clients cannot set it")


async def update_attribute(call: Call, command: c.UpdateSegmentAttribute) -> Command:
    """Compare and set an attribute; a mismatch is a reply, not an error (docs/protocol/wire.md#replies)."""
    refuse_core_attribute(command.attribute_id)
    await refuse_table(call.container, command.segment)
    update = AttributeUpdate(
        command.attribute_id, AttributeUpdateType.REPLACE_IF_EQUALS, command.new_value, command.expected_value
    )
    try:
        await call.container.update_attributes(command.segment, (update,))
    except BadAttributeError:
        return c.SegmentAttributeUpdated(command.request_id, False)
    return c.SegmentAttributeUpdated(command.request_id, True)


async def create_segment(call: Call, command: c.CreateSegment) -> Command:
    """Create a stream or transaction segment with its scale policy and rollover size."""
    begun = await begin_create(call, command)
    await begun.durable
    return begun.reply


async def begin_create(call: Call, command: c.CreateSegment) -> Begun:
    """Stage what `create_segment` does."""
    _check_policy(command.scale_type, command.target_rate)
    attributes = [
        (CREATION_TIME, call.context.clock.now_ms()),
        (SCALE_POLICY_TYPE, command.scale_type),
        (SCALE_POLICY_RATE, command.target_rate),
    ]
    if command.rollover_size_bytes > 0:
        attributes.append((ROLLOVER_SIZE, command.rollover_size_bytes))
    created = await call.container.begin_create(command.segment, attributes=attributes)
    return Begun(created, c.SegmentCreated(command.request_id, command.segment))


def _check_policy(scale_type: int, target_rate: int) -> None:
    if scale_type not in _SCALE_TYPES:
        raise BadRequestError(f"scaleType {scale_type} is not one of {_SCALE_TYPES}")
    if target_rate < 0:
        raise BadRequestError(f"targetRate {target_rate} is negative")


async def update_policy(call: Call, command: c.UpdateSegmentPolicy) -> Command:
    """Set the scale policy."""
    _check_policy(command.scale_type, command.target_rate)
    updates = (
        AttributeUpdate(SCALE_POLICY_TYPE, AttributeUpdateType.REPLACE, command.scale_type),
        AttributeUpdate(SCALE_POLICY_RATE, AttributeUpdateType.REPLACE, command.target_rate),
    )
    await call.container.update_attributes(command.segment, updates)
    return c.SegmentPolicyUpdated(command.request_id, command.segment)


async def create_transient(call: Call, command: c.CreateTransientSegment) -> Command:
    """Create a segment that lives until it is merged or the connection closes; the reply carries its name.

    See docs/protocol/wire.md#appends.
    """
    if len(call.transients) >= limits.TRANSIENT_SEGMENTS_PER_CONNECTION_MAX:
        raise OverloadedError(f"more than {limits.TRANSIENT_SEGMENTS_PER_CONNECTION_MAX} transient segments")
    name = names.transient_segment_name(
        command.parent_segment, uuid.UUID(bytes=command.writer_id), new_uuid(call.context.entropy)
    )
    names.check_segment_name(name)
    # Recorded before it exists, so that it is deleted even if the connection closes meanwhile.
    call.transients[name] = call.container
    attributes = ((CREATION_TIME, call.context.clock.now_ms()),)
    await call.container.create_segment(name, kind=SegmentKind.TRANSIENT, attributes=attributes)
    return c.SegmentCreated(command.request_id, name)


async def seal_segment(call: Call, command: c.SealSegment) -> Command:
    """Seal."""
    await call.container.seal(command.segment)
    return c.SegmentSealed(command.request_id, command.segment)


async def truncate_segment(call: Call, command: c.TruncateSegment) -> Command:
    """Drop the bytes before an offset."""
    await refuse_table(call.container, command.segment)
    await call.container.truncate(command.segment, command.truncation_offset)
    await confirmed(call.container)  # there may have been nothing to truncate
    return c.SegmentTruncated(command.request_id, command.segment)


async def delete_segment(call: Call, command: c.DeleteSegment) -> Command:
    """Delete."""
    await call.container.delete(command.segment)
    call.transients.pop(command.segment, None)
    return c.SegmentDeleted(command.request_id, command.segment)


async def merge_segments(call: Call, command: c.MergeSegments) -> Command:
    """Merge a transaction or transient segment, if the attributes are as expected (docs/protocol/wire.md#replies)."""
    updates = []
    for condition in command.attribute_updates:
        if condition.kind not in _CONDITION_KINDS:
            raise BadRequestError(f"attribute update of type {condition.kind} in a merge")
        refuse_core_attribute(condition.attribute_id)
        kind = AttributeUpdateType(condition.kind)
        updates.append(AttributeUpdate(condition.attribute_id, kind, condition.new_value, condition.old_value))
    try:
        length = await _merge(call, command.target, command.source, updates)
    except BadAttributeError:
        return c.SegmentAttributeUpdated(command.request_id, False)
    return c.SegmentsMerged(command.request_id, command.target, command.source, length)


async def merge_batch(call: Call, command: c.MergeSegmentsBatch) -> Command:
    """Merge several sources in order; one that is missing counts as merged (docs/protocol/wire.md#replies)."""
    for number, source in enumerate(command.sources, 1):
        if number % limits.MERGE_SOURCES_PER_TURN == 0:
            await asyncio.sleep(0)
        await _check_source(call, command.target, source)
    lengths = await call.container.merge_batch(command.target, command.sources)
    for source in command.sources:
        call.transients.pop(source, None)
    await confirmed(call.container)  # all of them may be missing
    merged = [c.MergedSource(*item) for item in zip(command.sources, lengths, strict=True)]
    return c.SegmentsBatchMerged(command.request_id, command.target, merged)


async def _check_source(call: Call, target: str, source: str) -> None:
    names.check_segment_name(source)
    if call.context.registry.container_for(source) is not call.container:
        raise BadRequestError(f"source {source} and target {target} are in different containers")
    await refuse_table(call.container, target)
    await refuse_table(call.container, source)


async def _merge(call: Call, target: str, source: str, updates: Sequence[AttributeUpdate]) -> int:
    await _check_source(call, target, source)
    events = await _event_count(call, source)
    counted = (*updates, AttributeUpdate(EVENT_COUNT, AttributeUpdateType.ACCUMULATE, events))
    result = await call.container.merge(target, source, counted)
    call.transients.pop(source, None)
    return result.target_length


async def _event_count(call: Call, source: str) -> int:
    """Return how many events a merge adds. A transient segment holds one large event, in any number of writes."""
    if names.is_transient_segment(source):
        return 1
    try:
        info = await call.container.info(source)
    except NoSuchSegmentError:
        return 0  # missing or merged already; the merge knows which
    return max(0, info.core_attributes.get(EVENT_COUNT, 0))


async def flush_to_storage(call: Call, command: c.FlushToStorage) -> Command:
    """Move everything of the container to Tier 2 (administration)."""
    await call.container.flush_to_storage()
    return c.StorageFlushed(command.request_id)


async def list_chunks(call: Call, command: c.ListStorageChunks) -> Command:
    """List the chunks of a segment (administration)."""
    chunks = await call.container.list_chunks(command.segment)
    listed = [
        c.ChunkInfo(
            chunk.length_bytes,
            chunk.length_bytes if chunk.exists else 0,
            chunk.start_offset,
            chunk.object_key,
            chunk.exists,
        )
        for chunk in chunks
    ]
    return c.StorageChunksListed(command.request_id, listed)


async def measure_rates(call: Call, command: c.GetSegmentRates) -> Command:
    """Return how fast segments with a rate policy are written (docs/controller.md#automatic-scaling)."""
    await call.context.large_replies.begin()  # it looks at all segments of the container
    measured, has_more = call.container.measure_rates(command.windows_ms, command.after)
    rates = [
        c.MeasuredRate(
            each.name,
            each.segment_id,
            each.scale_type,
            each.target_rate,
            round(1000 * each.age_s),
            [round(1000 * rate) for rate in each.rates],
        )
        for each in measured
    ]
    return c.SegmentRates(command.request_id, has_more, rates)


async def list_segments(call: Call, command: c.ListSegments) -> Command:
    """Return names of the container's segments (docs/controller.md#segments-that-no-record-names)."""
    await call.context.large_replies.begin()  # it looks at all segments of the container
    found, has_more = call.container.list_segments(command.after)
    last = found[-1][0] if found else command.after
    return c.SegmentsListed(command.request_id, has_more, last, [name for _, name in found])


async def list_stream_bytes(call: Call, command: c.GetStreamBytes) -> Command:
    """Return what the container's streams hold in Tier 2 (docs/controller.md#bytes-that-streams-hold)."""
    measured = await call.container.stream_bytes(limits.STREAM_BYTES_FRESH_S)
    await call.context.large_replies.begin()  # it looks at all streams of the container
    names = heapq.nsmallest(limits.STREAM_BYTES_PER_REPLY_MAX + 1, (name for name in measured if name > command.after))
    has_more = len(names) > limits.STREAM_BYTES_PER_REPLY_MAX
    del names[limits.STREAM_BYTES_PER_REPLY_MAX :]
    return c.StreamBytesListed(command.request_id, has_more, names, [measured[name].held_bytes for name in names])


def _names_bytes(_: Command) -> int:
    return limits.SEGMENTS_PER_REPLY_MAX * limits.SEGMENT_NAME_MAX_BYTES


def _chunks_bytes(_: Command) -> int:
    return limits.READ_REPLY_MAX_BYTES  # some 20,000 chunks, more than can be looked for before the deadline


HANDLERS: Final[dict[type[Command], Handler]] = {
    c.ReadSegment: Handler(read_segment, waits=True),
    c.GetStreamSegmentInfo: Handler(get_info),
    c.GetSegmentAttribute: Handler(get_attribute),
    c.UpdateSegmentAttribute: Handler(update_attribute, changes=True),
    c.CreateSegment: Handler(create_segment, changes=True, begin=begin_create),
    c.UpdateSegmentPolicy: Handler(update_policy, changes=True),
    c.CreateTransientSegment: Handler(create_transient, segment_field="parent_segment", changes=True),
    c.SealSegment: Handler(seal_segment, changes=True),
    c.TruncateSegment: Handler(truncate_segment, changes=True),
    c.DeleteSegment: Handler(delete_segment, changes=True),
    c.MergeSegments: Handler(merge_segments, segment_field="target", changes=True),
    c.MergeSegmentsBatch: Handler(merge_batch, segment_field="target", level=AccessLevel.READ_UPDATE, changes=True),
    c.FlushToStorage: Handler(
        flush_to_storage, segment_field="", level=AccessLevel.READ_UPDATE, waits=True, changes=True
    ),
    c.ListStorageChunks: Handler(list_chunks, reply_bytes=_chunks_bytes),
    c.GetSegmentRates: Handler(measure_rates, segment_field="", reply_bytes=_names_bytes),
    c.ListSegments: Handler(list_segments, segment_field="", reply_bytes=_names_bytes),
    c.GetStreamBytes: Handler(list_stream_bytes, segment_field="", reply_bytes=_names_bytes),
}
