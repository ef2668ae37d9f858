"""Maps errors to replies of the protocol; pure.

See docs/protocol/wire.md#failure-replies, docs/protocol/wire.md#replies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tailrace.common import limits
from tailrace.common.errors import BadOffsetError, DataError, SegmentTruncatedError, TailraceError
from tailrace.wire import commands as c

if TYPE_CHECKING:
    from collections.abc import Callable

_ILLEGAL_ARGUMENT: Final = 0
_TOKEN_CHECK_FAILED: Final = 0


class Failure:
    """A failed request, with the fields that its reply echoes.

    ``offset`` is the requested offset of a read and -1 otherwise, ``operation`` the request's name.
    """

    __slots__ = ("error", "offset", "operation", "request_id", "segment")

    def __init__(self, error: TailraceError, request_id: int, segment: str, operation: str, offset: int = -1) -> None:
        self.error = error
        self.request_id = request_id
        # The error names the segment at fault, which may be another one than the request's first: a merge's source.
        self.segment = getattr(error, "segment", segment) or segment
        self.operation = operation
        self.offset = offset


def failure_reply(failure: Failure) -> c.Command | None:
    """Return the reply to a failed request; None when the connection must close without a reply."""
    if isinstance(failure.error, DataError):
        # Only this segment is in doubt; a closed connection would stop the others that share it.
        reason = str(failure.error)[: limits.REPLY_REASON_MAX_CHARACTERS]
        return c.WrongHost(failure.request_id, failure.segment, "", reason)
    code = failure.error.wire_code
    make = _REPLIES.get(code) if code is not None else None
    return make(failure) if make is not None else None


def _truncated(failure: Failure) -> c.Command | None:
    # For a table offset that does not match, the reply carries the segment's length as its start
    # (docs/protocol/wire.md#failure-replies).
    error = failure.error
    if isinstance(error, SegmentTruncatedError):
        start_offset = error.start_offset
    elif isinstance(error, BadOffsetError):
        start_offset = error.actual
    else:
        return None
    return c.SegmentIsTruncated(failure.request_id, failure.segment, start_offset, "", failure.offset)


_REPLIES: Final[dict[int, Callable[[Failure], c.Command | None]]] = {
    37: lambda f: c.SegmentAttributeUpdated(f.request_id, False),
    50: lambda f: c.WrongHost(f.request_id, f.segment, "", ""),
    51: lambda f: c.SegmentIsSealed(f.request_id, f.segment, "", f.offset),
    52: lambda f: c.SegmentAlreadyExists(f.request_id, f.segment, ""),
    53: lambda f: c.NoSuchSegment(f.request_id, f.segment, "", f.offset),
    56: _truncated,
    57: lambda f: c.OperationUnsupported(f.request_id, f.operation, ""),
    60: lambda f: c.AuthTokenCheckFailed(f.request_id, "", _TOKEN_CHECK_FAILED),
    61: lambda f: c.ErrorMessage(f.request_id, f.segment, str(f.error), _ILLEGAL_ARGUMENT),
    80: lambda f: c.TableSegmentNotEmpty(f.request_id, f.segment, ""),
    81: lambda f: c.TableKeyDoesNotExist(f.request_id, f.segment, ""),
    82: lambda f: c.TableKeyBadVersion(f.request_id, f.segment, ""),
}
