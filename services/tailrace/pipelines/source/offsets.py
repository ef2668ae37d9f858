"""Positions in streams, as the offsets of a streaming query (docs/spark.md#offsets). Pure.

Spark keeps them as JSON in the checkpoint: ``{"scope/stream": {"segment id": offset}}``, keys in order. For each stream
it is a stream cut: what lies before it was read. A segment that was read to its end has its length, not −1. Spark keeps
where a batch ends, and the next one begins there. So the end of a query's first batch has also where that begins, as
``"from"``: head and tail move until it is repeated.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from tailrace.client.model import StreamName
from tailrace.common.errors import BadRequestError
from tailrace.common.stream_cut import without_future

if TYPE_CHECKING:
    from collections.abc import Sequence

Positions: TypeAlias = dict[StreamName, dict[int, int]]
"""For each stream, segment ids with the offset where the next event begins."""

_FROM: Final = "from"
"""No stream has such a name: all have a slash."""


def to_offset(positions: Positions, begin: Positions | None = None) -> dict[str, Any]:
    """Return positions as a value for JSON, the same text for equal positions.

    ``begin`` is where the first batch of a query begins, which ends at the positions, and for that beginning itself.
    """
    offset: dict[str, Any] = {
        str(stream): {str(identifier): offset for identifier, offset in sorted(cut.items())}
        for stream, cut in sorted(positions.items())
    }
    return offset if begin is None else {**offset, _FROM: to_offset(begin)}


def from_offset(offset: object, streams: Sequence[StreamName] | None) -> Positions:
    """Return the positions of an offset, which must be of these streams; None: of any.

    Segments that were not reached (−1) are left out: older versions wrote the cut of the option ``start`` unchanged.

    Raises:
        BadRequestError: it is not an offset of this source, or is one of other streams.
    """
    if not isinstance(offset, Mapping):
        raise BadRequestError("the checkpoint has no offset of this source")
    positions: Positions = {}
    for name, cut in offset.items():
        if name == _FROM:
            continue
        stream = StreamName.parse(str(name))
        if not isinstance(cut, Mapping):
            raise BadRequestError(f"the checkpoint has no position in {stream}")
        try:
            positions[stream] = without_future({int(identifier): int(each) for identifier, each in cut.items()})
        except (TypeError, ValueError) as error:
            raise BadRequestError(f"the checkpoint has no position in {stream}: {error}") from error
    if streams is not None and set(positions) != set(streams):
        theirs, ours = (", ".join(map(str, sorted(each))) for each in (positions, streams))
        raise BadRequestError(f"the checkpoint is of {theirs}, the query reads {ours}: use another checkpoint folder")
    return positions


def begin_of(offset: Mapping[str, Any], streams: Sequence[StreamName] | None) -> Positions | None:
    """Return where the first batch begins that ends at an offset; None for later batches. Raises as `from_offset`."""
    return from_offset(offset[_FROM], streams) if _FROM in offset else None
