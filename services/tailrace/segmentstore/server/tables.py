"""Handlers of requests on table segments, one per command.

See docs/protocol/wire.md#table-commands, docs/protocol/wire.md#replies, docs/protocol/wire.md#tables.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tailrace.common import limits
from tailrace.common.errors import BadRequestError
from tailrace.segmentstore.server.calls import Call, Handler, confirmed
from tailrace.wire import commands as c

if TYPE_CHECKING:
    from tailrace.wire.command import Command


async def create_table(call: Call, command: c.CreateTableSegment) -> Command:
    """Create a table segment; key length 0 is the hash layout."""
    if not 0 <= command.key_length <= limits.ATTRIBUTE_KEY_MAX_BYTES:
        raise BadRequestError(f"keyLength {command.key_length} is not in 0..{limits.ATTRIBUTE_KEY_MAX_BYTES}")
    await call.tables.create_table(command.segment, command.key_length)
    return c.SegmentCreated(command.request_id, command.segment)


async def delete_table(call: Call, command: c.DeleteTableSegment) -> Command:
    """Delete a table segment."""
    await call.tables.delete_table(command.segment, command.must_be_empty)
    return c.SegmentDeleted(command.request_id, command.segment)


async def get_table_info(call: Call, command: c.GetTableSegmentInfo) -> Command:
    """Return the properties of a table segment."""
    info = await call.tables.info(command.segment)
    return c.TableSegmentInfo(
        command.request_id, command.segment, info.start_offset, info.length, info.entry_count, info.key_length
    )


async def update_entries(call: Call, command: c.UpdateTableEntries) -> Command:
    """Insert or update entries atomically."""
    for entry in command.entries:
        _check_key(entry.key)
        if len(entry.value) > limits.TABLE_VALUE_MAX_BYTES:
            raise BadRequestError(f"a value of {len(entry.value)} bytes, at most {limits.TABLE_VALUE_MAX_BYTES}")
    versions = await call.tables.update(command.segment, command.entries, command.table_segment_offset)
    if not versions:
        await confirmed(call.container)
    return c.TableEntriesUpdated(command.request_id, versions)


async def remove_keys(call: Call, command: c.RemoveTableKeys) -> Command:
    """Remove keys atomically."""
    for key in command.keys:
        _check_key(key.key)
    if not await call.tables.remove(command.segment, command.keys, command.table_segment_offset):
        await confirmed(call.container)
    return c.TableKeysRemoved(command.request_id, command.segment)


async def read_table(call: Call, command: c.ReadTable) -> Command:
    """Read the entries of some keys; a missing one has version -1 and an empty value."""
    for key in command.keys:
        _check_key(key.key)
    found = await call.tables.get(command.segment, [key.key for key in command.keys])
    entries = [
        entry if entry is not None else c.TableEntry(key.key, b"", c.NOT_EXISTS)
        for key, entry in zip(command.keys, found, strict=True)
    ]
    return c.TableRead(command.request_id, command.segment, entries)


async def read_keys(call: Call, command: c.ReadTableKeys) -> Command:
    """Return one page of keys and the token of the next page."""
    keys, token = await call.tables.iterate_keys(
        command.segment,
        _limit(command.suggested_key_count),
        command.continuation_token,
        command.from_key,
        command.to_key,
    )
    return c.TableKeysRead(command.request_id, command.segment, keys, token)


async def read_entries(call: Call, command: c.ReadTableEntries) -> Command:
    """Return one page of entries and the token of the next page."""
    entries, token = await call.tables.iterate_entries(
        command.segment,
        _limit(command.suggested_entry_count),
        command.continuation_token,
        command.from_key,
        command.to_key,
    )
    return c.TableEntriesRead(command.request_id, command.segment, entries, token)


async def read_delta(call: Call, command: c.ReadTableEntriesDelta) -> Command:
    """Return the entries written since a position."""
    if command.from_position < 0:
        raise BadRequestError(f"fromPosition {command.from_position} is negative")
    delta = await call.tables.delta(command.segment, command.from_position, _limit(command.suggested_entry_count))
    return c.TableEntriesDeltaRead(
        command.request_id,
        command.segment,
        list(delta.entries),
        delta.should_clear,
        delta.reached_end,
        delta.last_position,
    )


def _check_key(key: bytes) -> None:
    if not 0 < len(key) <= limits.TABLE_KEY_MAX_BYTES:
        raise BadRequestError(f"a key of {len(key)} bytes, 1 to {limits.TABLE_KEY_MAX_BYTES} are allowed")


def _limit(suggested: int) -> int:
    return min(max(1, suggested), limits.TABLE_ITERATE_ITEMS_MAX)


def _read_bytes(command: c.ReadTable) -> int:
    return min(limits.FRAME_MAX_BYTES, len(command.keys) * (limits.TABLE_KEY_MAX_BYTES + limits.TABLE_VALUE_MAX_BYTES))


def _page_bytes(_: Command) -> int:
    return limits.TABLE_REPLY_MAX_BYTES


HANDLERS: Final[dict[type[Command], Handler]] = {
    c.CreateTableSegment: Handler(create_table, changes=True),
    c.DeleteTableSegment: Handler(delete_table, changes=True),
    c.GetTableSegmentInfo: Handler(get_table_info),
    c.UpdateTableEntries: Handler(update_entries, copies=3, changes=True),  # entries, their records, the log's frames
    c.RemoveTableKeys: Handler(remove_keys, changes=True),
    c.ReadTable: Handler(read_table, reply_bytes=_read_bytes),
    c.ReadTableKeys: Handler(read_keys, reply_bytes=_page_bytes),
    c.ReadTableEntries: Handler(read_entries, reply_bytes=_page_bytes),
    c.ReadTableEntriesDelta: Handler(read_delta, reply_bytes=_page_bytes),
}
