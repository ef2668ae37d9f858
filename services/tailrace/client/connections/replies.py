"""Convert failure replies of the segment store to errors (docs/protocol/wire.md#failure-replies)."""

from __future__ import annotations

from tailrace.common import limits
from tailrace.common.errors import (
    BadEventNumberError,
    BadRequestError,
    IllegalStateError,
    NoSuchSegmentError,
    PermissionDeniedError,
    ProtocolError,
    SegmentExistsError,
    SegmentSealedError,
    SegmentTruncatedError,
    TableKeyBadVersionError,
    TableKeyNotExistsError,
    TableNotEmptyError,
    TailraceError,
    TokenExpiredError,
    UnsupportedError,
    WrongHostError,
)
from tailrace.wire import commands as c


def error_of(reply: c.Command) -> TailraceError:
    """Return the error for a failure reply; a ProtocolError for other replies."""
    match reply:
        case c.WrongHost():
            reason = _first_line(reply.server_stack_trace)
            return WrongHostError(f"segment {reply.segment} is not served by this segment store{reason}")
        case c.NoSuchSegment():
            return NoSuchSegmentError(reply.segment)
        case c.SegmentAlreadyExists():
            return SegmentExistsError(reply.segment)
        case c.SegmentIsSealed():
            return SegmentSealedError(reply.segment)
        case c.SegmentIsTruncated():
            return SegmentTruncatedError(reply.segment, reply.start_offset)
        case c.InvalidEventNumber():
            return BadEventNumberError(f"event number {reply.event_number} does not follow the last stored one")
        case c.OperationUnsupported():
            return UnsupportedError(f"the segment store does not support {reply.operation_name}")
        case c.AuthTokenCheckFailed():
            if reply.error_code == 1:
                return TokenExpiredError("the delegation token has expired")
            return PermissionDeniedError("the delegation token was refused")
        case c.ErrorMessage():
            kind_of = BadRequestError if reply.error_code == 0 else IllegalStateError
            return kind_of(reply.message or f"segment {reply.segment}: unspecified error of the segment store")
        case _:
            return _table_error_of(reply)


def _first_line(trace: str) -> str:
    """Return what a segment store says besides, to be added to a message; empty when it says nothing."""
    line = "".join(filter(str.isprintable, (trace.splitlines() or [""])[0][: limits.REPLY_REASON_MAX_CHARACTERS]))
    return f": {line}" if line else ""


def _table_error_of(reply: c.Command) -> TailraceError:
    match reply:
        case c.TableSegmentNotEmpty():
            return TableNotEmptyError(f"table {reply.segment} is not empty")
        case c.TableKeyDoesNotExist():
            return TableKeyNotExistsError(f"a key to update or remove does not exist in {reply.segment}")
        case c.TableKeyBadVersion():
            return TableKeyBadVersionError(f"a key of {reply.segment} has another version")
        case _:
            return ProtocolError(f"unexpected reply {type(reply).__name__}")
