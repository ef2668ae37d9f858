"""Decide whether a record of the stream can name a segment, now or ever.

See docs/controller.md#segments-that-no-record-names.

That no record names a segment is final: numbers of segments and transactions never come again, and the record of an
epoch never changes. So it does not matter what happens between the look at the records and the deletion.
"""

from __future__ import annotations

import enum
import re
from typing import TYPE_CHECKING, Final

from tailrace.common.errors import InvalidNameError
from tailrace.common.names import SegmentName, parse_segment_name, segment_epoch, segment_number
from tailrace.controller.metadata.model import StreamState, TransactionState

if TYPE_CHECKING:
    from tailrace.controller.metadata.model import Epoch
    from tailrace.controller.metadata.records import StreamRecord

_TRANSACTION: Final = re.compile(r"#transaction\.([0-9a-f]{32})")


def name_by_controller(segment: str) -> SegmentName | None:
    """Return the parts of a name that a controller gives to a segment of a stream; None for any other name.

    Segments of tables and those for large events have other names, as have the ones that clients invent.
    """
    try:
        name = parse_segment_name(segment)
    except InvalidNameError:
        return None
    if segment != name.qualified + name.suffix or not name.scope:
        return None
    if not name.suffix:
        return name
    transaction_id = transaction_of(name)
    is_own = transaction_id is not None and int.from_bytes(transaction_id[:4], "big") == segment_epoch(name.identifier)
    return name if is_own else None


def transaction_of(name: SegmentName) -> bytes | None:
    """Return the id of the transaction whose segment it is; None for another segment."""
    match = _TRANSACTION.fullmatch(name.suffix)
    return None if match is None else bytes.fromhex(match[1])


class Fate(enum.Enum):
    """What the sweep does with a segment."""

    KEEP = "keep"
    DELETE = "delete"
    DELETE_IF_EMPTY = "delete if empty"
    """No record names it. Bytes in it contradict the records of a stream that exists: they are reported, and stay."""


def fate_of_segment(name: SegmentName, root: StreamRecord | None, first: Epoch | None, own: Epoch | None) -> Fate:
    """Decide about a segment of a stream.

    ``first`` is epoch 0 of a stream that exists, ``own`` the epoch in which the segment was created, if the stream has
    it already.
    """
    known = _by_number(name, root, first)
    if known is not None:
        return known
    # A new epoch names its new segments by its own number: those of the epochs that exist are all known.
    if own is None or any(each.identifier == name.identifier for each in own.segments):
        return Fate.KEEP
    return Fate.DELETE_IF_EMPTY


def fate_of_transaction(
    name: SegmentName, root: StreamRecord | None, first: Epoch | None, state: TransactionState | None
) -> Fate:
    """Decide about a transaction's segment; ``state`` is that of the transaction, read after ``root``."""
    transaction_id = transaction_of(name)
    if root is None or transaction_id is None or int.from_bytes(transaction_id[4:], "big") >= root.transaction_counter:
        return Fate.KEEP  # can still begin
    known = _by_number(name, root, first)
    if known is not None:
        return known
    if state is TransactionState.ABORTED:
        return Fate.DELETE
    return Fate.DELETE_IF_EMPTY if state in (None, TransactionState.COMMITTED) else Fate.KEEP


def _by_number(name: SegmentName, root: StreamRecord | None, first: Epoch | None) -> Fate | None:
    """Return the fate as far as the number in the name decides it, by the counters that outlive a stream."""
    number = segment_number(name.identifier)
    if root is None or root.state is StreamState.DELETING:
        return Fate.KEEP  # not a stream of a controller; or its workflow deletes the segments
    if number >= root.next_segment_number:
        return Fate.KEEP  # can still be given out
    if root.state is StreamState.DELETED:
        return Fate.DELETE
    if first is None:
        return Fate.KEEP
    lowest = min(each.number for each in first.segments) - first.numbers_skipped
    return Fate.DELETE if number < lowest else None  # of an earlier stream
