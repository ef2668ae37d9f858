"""Attribute conditions and final values against the staged view. Pure.

See "Segment Attributes", docs/design.md#write-path.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.common import limits
from tailrace.common.errors import BadAttributeError, BadRequestError
from tailrace.segmentstore.api import (
    NULL_ATTRIBUTE,
    AttributeUpdate,
    AttributeUpdateType,
    is_core_attribute,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.segmentstore.metadata.segment import Segment

_MAX = 2**63 - 1
_REPLACE = AttributeUpdateType.REPLACE
_GREATER = AttributeUpdateType.REPLACE_IF_GREATER
_ACCUMULATE = AttributeUpdateType.ACCUMULATE


class AttributesMissingError(Exception):
    """Raised when values must be loaded from the index before the operation can be staged.

    ``attribute_ids``: all that the operation needs, also those in memory, so that one load holds all of them.
    """

    def __init__(self, attribute_ids: list[bytes]) -> None:
        super().__init__(f"some of {len(attribute_ids)} attributes are not in memory")
        self.attribute_ids = attribute_ids


def check_updates(segment: Segment, updates: Sequence[AttributeUpdate]) -> None:
    """Raise BadRequestError for updates that no state could accept.

    Raises CorruptionError when the index is damaged and as many values as memory may hold wait to be moved there.
    """
    if segment.damage is not None and len(segment.dirty) >= limits.ATTRIBUTES_IN_MEMORY_PER_SEGMENT_MAX:
        raise segment.damage.error()
    if len(updates) > limits.ATTRIBUTE_UPDATES_PER_OPERATION_MAX:
        raise BadRequestError(f"{len(updates)} attribute updates in one operation")
    if len(updates) > 1 and len({update.attribute_id for update in updates}) < len(updates):
        raise BadRequestError("an operation updates the same attribute twice")
    length = segment.attribute_key_length
    for update in updates:
        if len(update.attribute_id) != length and not is_core_attribute(update.attribute_id):
            raise BadRequestError(f"attribute id of {len(update.attribute_id)} bytes, {segment.name} has {length}")


def needed(updates: Sequence[AttributeUpdate]) -> list[bytes]:
    """Return the extended attributes whose present value matters."""
    return [
        update.attribute_id
        for update in updates
        if update.kind != _REPLACE and not is_core_attribute(update.attribute_id)
    ]


def is_missing_any(segment: Segment, updates: Sequence[AttributeUpdate]) -> bool:
    """Return whether a value that matters is not in memory, and the index may hold it."""
    if not segment.index.root_length:
        return False
    latest = segment.latest
    return any(
        update.attribute_id not in latest and update.kind != _REPLACE and not is_core_attribute(update.attribute_id)
        for update in updates
    )


def final_values(segment: Segment, updates: Sequence[AttributeUpdate], offset: int) -> list[tuple[bytes, int]]:
    """Return the final values of all updates for an operation at `offset`; stage nothing.

    ReplaceIfGreater sets an attribute that is not set, as in Pravega's implementation (docs/design.md#write-path).

    Raises:
        AttributesMissingError: load them and call again. BadAttributeError: a condition does not hold.
    """
    if is_missing_any(segment, updates):
        raise AttributesMissingError(needed(updates))
    latest = segment.latest
    result: list[tuple[bytes, int]] = []
    for key, kind, value, comparison, from_offset in updates:
        current = latest.get(key, NULL_ATTRIBUTE)
        if from_offset:
            value += offset
        if kind == _ACCUMULATE:
            value = (0 if current == NULL_ATTRIBUTE else current) + value
            if not NULL_ATTRIBUTE < value <= _MAX:
                raise BadRequestError(f"attribute {key.hex()} of {segment.name} would exceed 64 bits")
        elif kind == _GREATER:
            if current != NULL_ATTRIBUTE and value <= current:
                raise BadAttributeError(segment.name, key, value, current)
        elif kind != _REPLACE and current != comparison:
            raise BadAttributeError(segment.name, key, comparison, current)
        result.append((key, value))
    return result
