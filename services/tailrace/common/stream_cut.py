"""Stream cuts: one offset per segment, together covering the key space.

See docs/protocol/naming.md#stream-cuts, docs/protocol/server.md#retention.

A cut is a consistent position in a stream. Its order against another is decided by key ranges: for every part of the
key space, the segment created later lies after the earlier one, and within one segment the offset decides.
"""

from __future__ import annotations

import base64
import binascii
import enum
import gzip
import itertools
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from tailrace.common import limits, names
from tailrace.common.errors import BadRequestError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tailrace.common.ranges import KeyRange

UNBOUNDED_TEXT: Final = "UNBOUNDED"
FUTURE_OFFSET: Final = -1
"""Offset of a segment that the cut has not reached yet (docs/protocol/naming.md#stream-cuts)."""


@dataclass(frozen=True)
class StreamCut:
    """A position in a stream: segment id → byte offset. Compares by content; keep ``positions`` unchanged."""

    scope: str
    stream: str
    positions: Mapping[int, int]

    def __hash__(self) -> int:
        return hash((self.scope, self.stream, tuple(sorted(self.positions.items()))))

    @property
    def scoped_name(self) -> str:
        """``scope/stream``."""
        return f"{self.scope}/{self.stream}"

    def to_text(self) -> str:
        """The Java client's text form: Base64(gzip("0:scope/stream:numbers:epochs:offsets"))."""
        items = sorted(self.positions.items())
        plain = ":".join(
            (
                "0",
                self.scoped_name,
                ",".join(str(names.segment_number(identifier)) for identifier, _ in items),
                ",".join(str(names.segment_epoch(identifier)) for identifier, _ in items),
                ",".join(str(offset) for _, offset in items),
            )
        )
        return base64.b64encode(gzip.compress(plain.encode(), mtime=0)).decode()


def without_future(positions: Mapping[int, int]) -> dict[int, int]:
    """Return the positions of a cut without the segments that it has not reached, in order of id."""
    return {identifier: offset for identifier, offset in sorted(positions.items()) if offset != FUTURE_OFFSET}


def parse_stream_cut(text: str) -> StreamCut | None:
    """Read the text form; None for ``UNBOUNDED``.

    Raises:
        BadRequestError: the text is not a stream cut, or larger than allowed.
    """
    if text == UNBOUNDED_TEXT:
        return None
    if len(text) > limits.STREAM_CUT_TEXT_MAX_BYTES:
        raise BadRequestError(f"stream cut text is longer than {limits.STREAM_CUT_TEXT_MAX_BYTES} bytes")
    return _parse_plain(_unpack(text))


def _unpack(text: str) -> str:
    inflater = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
    try:
        plain = inflater.decompress(base64.b64decode(text, validate=True), limits.STREAM_CUT_PLAIN_MAX_BYTES + 1)
        decoded = plain.decode()
    except (binascii.Error, ValueError, zlib.error) as error:
        raise BadRequestError("stream cut text is not Base64 of gzipped text") from error
    if len(plain) > limits.STREAM_CUT_PLAIN_MAX_BYTES:
        raise BadRequestError(f"stream cut is larger than {limits.STREAM_CUT_PLAIN_MAX_BYTES} bytes")
    if not inflater.eof:
        raise BadRequestError("stream cut text ends too early")
    return decoded


def _parse_plain(plain: str) -> StreamCut:
    fields = plain.split(":")
    if len(fields) != 5 or fields[0] != "0":
        raise BadRequestError("stream cut is not of the form 0:scope/stream:numbers:epochs:offsets")
    scope, separator, stream = fields[1].partition("/")
    if not separator:
        raise BadRequestError("stream cut does not name scope/stream")
    names.check_scope_name(scope, internal=True)
    names.check_stream_name(stream, internal=True)
    numbers, epochs, offsets = (_integers(field) for field in fields[2:])
    if not len(numbers) == len(epochs) == len(offsets):
        raise BadRequestError("stream cut has unequal counts of numbers, epochs and offsets")
    return StreamCut(scope, stream, _checked_positions(numbers, epochs, offsets))


def _checked_positions(numbers: list[int], epochs: list[int], offsets: list[int]) -> dict[int, int]:
    positions: dict[int, int] = {}
    for number, epoch, offset in zip(numbers, epochs, offsets, strict=True):
        if not (0 <= number < 2**31 and 0 <= epoch < 2**31 and FUTURE_OFFSET <= offset < 2**63):
            raise BadRequestError(f"stream cut has an impossible position {number}.{epoch}:{offset}")
        identifier = names.segment_id(number, epoch)
        if identifier in positions:
            raise BadRequestError(f"stream cut names segment {number} of epoch {epoch} twice")
        positions[identifier] = offset
    return positions


def _integers(field: str) -> list[int]:
    if not field:
        return []
    try:
        return [int(item) for item in field.split(",")]
    except ValueError as error:
        raise BadRequestError("stream cut holds something that is not a number") from error


class CutOrder(enum.Enum):
    """The order of one cut relative to another (docs/protocol/server.md#comparing-cuts)."""

    BEFORE = "before"
    EQUAL_OR_AFTER = "equal or after"
    OVERLAPS = "overlaps"


def compare_cuts(first: Mapping[int, int], second: Mapping[int, int], ranges: Mapping[int, KeyRange]) -> CutOrder:
    """Compare two cuts of one stream; `ranges` has the key range of every segment in both.

    BEFORE: nowhere after and somewhere before. EQUAL_OR_AFTER: nowhere before. OVERLAPS: both happen.
    """
    before = after = False
    for mine, theirs in pairs_of_positions(first, second, ranges):
        before |= mine < theirs
        after |= mine > theirs
    if before and after:
        return CutOrder.OVERLAPS
    return CutOrder.BEFORE if before else CutOrder.EQUAL_OR_AFTER


class Position(NamedTuple):
    """A cut's position for some keys. Those for the same keys are in the order of the stream."""

    epoch: int
    identifier: int
    offset: int


def pairs_of_positions(
    first: Mapping[int, int], second: Mapping[int, int], ranges: Mapping[int, KeyRange]
) -> Iterator[tuple[Position, Position]]:
    """Yield the positions of two cuts at each pair of segments with common keys.

    Takes time in proportion to the number of segments; to its square when segments of one cut have common keys.
    """
    mine, theirs = _by_range(first, ranges), _by_range(second, ranges)
    if not (_is_disjoint(mine) and _is_disjoint(theirs)):
        yield from ((own, other) for at, own in mine for place, other in theirs if at.overlaps(place))
        return
    i = j = 0
    while i < len(mine) and j < len(theirs):
        (at, own), (place, other) = mine[i], theirs[j]
        if at.overlaps(place):
            yield own, other
        i, j = i + (at.high <= place.high), j + (place.high <= at.high)


def _by_range(cut: Mapping[int, int], ranges: Mapping[int, KeyRange]) -> list[tuple[KeyRange, Position]]:
    return sorted((ranges[each], Position(names.segment_epoch(each), each, offset)) for each, offset in cut.items())


def _is_disjoint(placed: Sequence[tuple[KeyRange, Position]]) -> bool:
    return not any(before.overlaps(after) for (before, _), (after, _) in itertools.pairwise(placed))
