"""The grammar of names, and the arithmetic of segment ids (docs/protocol/naming.md#names)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tailrace.common import limits
from tailrace.common.errors import InvalidNameError, NotAllowedError

if TYPE_CHECKING:
    import uuid
    from collections.abc import Sequence

INTERNAL_SCOPE: Final = "_system"
MARK_PREFIX: Final = "_MARK"
READER_GROUP_PREFIX: Final = "_RG"
TABLE_SUFFIX: Final = "_kvtable"

USER_NAME_PATTERN: Final = r"[A-Za-z0-9.\-]*[A-Za-z0-9\-][A-Za-z0-9.\-]*"
"""Names that users may give to scopes, streams, groups, readers and tables; the resources' schemas use it too.

Not only dots: in URLs and paths `.` and `..` mean other places.
"""

_USER_NAME: Final = re.compile(USER_NAME_PATTERN)
_ANY_NAME: Final = re.compile("_?" + USER_NAME_PATTERN)
_QUALIFIED: Final = re.compile(
    r"(?:(?P<scope>[^/]+)/)?(?P<stream>[^/]+)/(?P<number>\d{1,10})(?:\.#epoch\.(?P<epoch>\d{1,10}))?"
    r"(?P<suffix>#transaction\.[0-9a-f]{32}|#transient\.[0-9a-f]{32}\.[0-9a-f]{32})?"
)
_SEGMENT_NAME: Final = re.compile(r"[A-Za-z0-9._\-#$]+(?:/[A-Za-z0-9._\-#$]+)*")


def _check(kind: str, name: str, pattern: re.Pattern[str], max_length: int) -> str:
    if len(name) > max_length:
        raise InvalidNameError(f"{kind} name is {len(name)} characters long, at most {max_length} are allowed")
    if name and not name.strip("."):
        raise InvalidNameError(f"{kind} name {name[:80]!r} consists of dots only")
    if not pattern.fullmatch(name):
        raise InvalidNameError(f"{kind} name {name[:80]!r} may only hold letters, digits, '.' and '-'")
    return name


def check_scope_name(name: str, *, internal: bool = False) -> str:
    """Return `name` if it is a valid scope name (one leading "_" only if `internal`), else raise InvalidNameError."""
    return _check("scope", name, _ANY_NAME if internal else _USER_NAME, limits.SCOPE_NAME_MAX_LENGTH)


def check_not_internal(scope: str) -> None:
    """Raise NotAllowedError when the scope is the server's own, in which clients create nothing."""
    if scope == INTERNAL_SCOPE:
        raise NotAllowedError(f"scope {scope} is internal: clients create nothing in it")


def check_stream_name(name: str, *, internal: bool = False) -> str:
    """Return `name` if it is a valid stream name (one leading "_" only if `internal`), else raise InvalidNameError."""
    length = limits.INTERNAL_NAME_MAX_LENGTH if internal else limits.STREAM_NAME_MAX_LENGTH
    return _check("stream", name, _ANY_NAME if internal else _USER_NAME, length)


def check_entity_name(kind: str, name: str) -> str:
    """Return `name` if it is valid for a reader group, reader, writer or table, else raise InvalidNameError."""
    return _check(kind, name, _USER_NAME, limits.STREAM_NAME_MAX_LENGTH)


def check_segment_name(name: str) -> str:
    """Return `name` if it may name a segment on the wire, else raise InvalidNameError."""
    if len(name) <= limits.SEGMENT_NAME_MAX_BYTES and _SEGMENT_NAME.fullmatch(name):
        return name  # a character is a byte
    if not name or len(name.encode("utf-8", "surrogatepass")) > limits.SEGMENT_NAME_MAX_BYTES:
        raise InvalidNameError(f"segment name is empty or longer than {limits.SEGMENT_NAME_MAX_BYTES} bytes")
    raise InvalidNameError(f"segment name {name[:80]!r} has characters that are not allowed")


def segment_id(number: int, epoch: int) -> int:
    """Return the 64-bit id of a segment: creation epoch in the upper half, number in the lower."""
    return (epoch << 32) | number


def segment_number(identifier: int) -> int:
    """Return the number half of a segment id."""
    return identifier & 0xFFFFFFFF


def segment_epoch(identifier: int) -> int:
    """Return the epoch half of a segment id."""
    return (identifier >> 32) & 0xFFFFFFFF


def qualified_segment_name(scope: str, stream: str, identifier: int) -> str:
    """Return ``<scope>/<stream>/<number>.#epoch.<epoch>``."""
    return f"{scope}/{stream}/{segment_number(identifier)}.#epoch.{segment_epoch(identifier)}"


def transaction_segment_name(parent: str, transaction: uuid.UUID) -> str:
    """Return the segment of a transaction's events; `parent` carries the *transaction's* epoch.

    See docs/protocol/naming.md#names.
    """
    return f"{parent}#transaction.{transaction.int:032x}"


def transient_segment_name(parent: str, writer: uuid.UUID, random_part: uuid.UUID) -> str:
    """Return the name of a short-lived segment for a large event; only the server makes such names."""
    return f"{parent}#transient.{writer.int:032x}.{random_part.int:032x}"


def is_internal_segment(name: str) -> bool:
    """Return whether the segment belongs to the server's scope, or to a stream that the server or a group made.

    So: controllers' tables, states of reader groups, watermarks.
    """
    return name.startswith("_") or "/_" in name


def is_transient_segment(name: str) -> bool:
    """Return whether the name is one that `transient_segment_name` makes."""
    return "#transient." in name


def is_transaction_segment(name: str) -> bool:
    """Return whether the name is one that `transaction_segment_name` makes."""
    return "#transaction." in name


@dataclass(frozen=True, slots=True)
class SegmentName:
    """A parsed segment name."""

    scope: str
    stream: str
    identifier: int
    suffix: str = ""

    @property
    def qualified(self) -> str:
        """Return the full name without a transaction or transient suffix."""
        return qualified_segment_name(self.scope, self.stream, self.identifier)


def parse_segment_name(name: str) -> SegmentName:
    """Parse ``scope/stream/N.#epoch.E`` (legacy ``scope/stream/N`` and ``stream/N`` are epoch 0).

    See docs/protocol/naming.md#names.

    Raises:
        InvalidNameError: the text is not such a name.
    """
    match = _QUALIFIED.fullmatch(name)
    if match is None:
        raise InvalidNameError(f"{name[:120]!r} is not a segment name")
    identifier = segment_id(int(match["number"]), int(match["epoch"] or 0))
    return SegmentName(match["scope"] or "", match["stream"], identifier, match["suffix"] or "")


def container_key(name: str) -> str:
    """Return the part of a segment name that decides its container: without epoch, transaction and transient parts.

    It takes time in proportion to the length of the name.
    """
    name = name.partition("#transaction.")[0].partition("#transient.")[0]
    before, separator, epoch = name.rpartition(".#epoch.")
    return before if separator and epoch.isdecimal() else name


def some_of(names: Sequence[str]) -> str:
    """Return some of the names and how many more there are, for a message."""
    shown = ", ".join(names[: limits.NAMES_SHOWN_MAX])
    more = len(names) - limits.NAMES_SHOWN_MAX
    return f"{shown} and {more} more" if more > 0 else shown
