"""Read the state of a group of the Rust, Python and Node clients; never write it.

See docs/protocol/reader-group-state.md#rust-groups.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

import cbor2

from tailrace.client.group.view import GroupView
from tailrace.common import limits, names
from tailrace.common.errors import CorruptionError, NoSuchReaderGroupError, NoSuchSegmentError

if TYPE_CHECKING:
    from tailrace.client.context import ClientContext

_CONFIG: Final = ("config", "default")
_OUTER_LENGTH_DIGITS: Final = 2


def state_table(scope: str, group: str) -> str:
    """Return the table segment that holds a group's state."""
    return names.qualified_segment_name(scope, f"{group}{names.TABLE_SUFFIX}", 0)


async def read_view(context: ClientContext, scope: str, group: str) -> GroupView:
    """Return the current view of a group.

    Raises:
        NoSuchReaderGroupError: no application created it. CorruptionError: its state has an unknown format.
    """
    table = state_table(scope, group)
    entries: dict[bytes, bytes] = {}
    position = 0
    try:
        while True:
            delta = await context.segments.table_delta(table, position, limits.TABLE_ITERATOR_RUN)
            entries.update({entry.key: entry.value for entry in delta.entries})
            if len(entries) > limits.RUST_GROUP_ENTRIES_MAX:
                raise CorruptionError(table, f"more than {limits.RUST_GROUP_ENTRIES_MAX} keys")
            if delta.reached_end or not delta.entries:
                break
            position = delta.last_position
    except NoSuchSegmentError as error:
        raise NoSuchReaderGroupError(f"reader group {scope}/{group} does not exist") from error
    return decode_view(table, entries.items())


def decode_view(place: str, entries: Iterable[tuple[bytes, bytes]]) -> GroupView:
    """Decode the newest entry of each key; tombstones stay in the table for ever and are skipped.

    Raises:
        CorruptionError: an entry has an unknown format; the message names `place`.
    """
    try:
        found = {key: value for key, value in map(_entry, entries) if value is not None}
        assigned = {inner: _assigned(value) for (outer, inner), value in found.items() if outer == "assigned_segments"}
        unassigned = {
            inner: int(value["read"]) for (outer, inner), value in found.items() if outer == "unassigned_segments"
        }
        streams = _streams(found.get(_CONFIG, {}))
        waiting = sorted(inner for (outer, inner) in found if outer == "future_segments")
    except (cbor2.CBORError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptionError(place, f"an entry of the group's state cannot be read: {error}") from error
    offsets = dict(unassigned)
    for owned in assigned.values():
        offsets.update(owned)
    return GroupView(
        streams=streams,
        offsets=offsets,
        assigned={reader: tuple(owned) for reader, owned in assigned.items()},
        free=tuple(unassigned),
        waiting=tuple(waiting),
    )


def _entry(entry: tuple[bytes, bytes]) -> tuple[tuple[str, str], Any]:
    """Return outer key, inner key and value; None for tombstones and for keys that hold only versions."""
    text, value = _loaded(entry[0]), _loaded(entry[1])
    length = int(text[:_OUTER_LENGTH_DIGITS])
    outer, inner = text[_OUTER_LENGTH_DIGITS:][:length], text[_OUTER_LENGTH_DIGITS + length :].removeprefix("/")
    if value["type_id"] in ("tombstone", "blob"):
        return (outer, inner), None
    return (outer, inner), _loaded(bytes(value["data"]))


def _loaded(data: bytes) -> Any:
    return cbor2.loads(data)


def _assigned(value: Mapping[Any, Any]) -> dict[str, int]:
    """Return offsets by segment name; the keys of the map are maps themselves."""
    return {_segment_name(key): int(offset["read"]) for key, offset in value.items()}


def _segment_name(key: Mapping[str, Any]) -> str:
    return names.qualified_segment_name(key["scope"]["name"], key["stream"]["name"], int(key["segment"]["number"]))


def _streams(config: Mapping[str, Any]) -> tuple[str, ...]:
    cuts = config.get("V1", {}).get("starting_stream_cuts", {})
    return tuple(f"{key['scope']['name']}/{key['stream']['name']}" for key in cuts)
