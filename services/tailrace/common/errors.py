"""The one exception tree of Tailrace.

Every error has its form on each interface: binary protocol, gRPC, REST (docs/design.md#errors,
docs/protocol/wire.md#failure-replies)::

    TailraceError
    ├── BadRequestError                 the caller's mistake; the text names the field
    │   ├── InvalidNameError
    │   ├── InvalidSpecError
    │   ├── EpochTooHighError
    │   └── ProtocolError               the connection cannot be trusted any more
    ├── NotFoundError
    │   ├── NoSuchSegmentError
    │   ├── NoSuchScopeError
    │   ├── NoSuchStreamError
    │   ├── NoSuchTransactionError
    │   └── NoSuchReaderGroupError
    ├── AlreadyExistsError
    │   └── SegmentExistsError
    ├── ConditionFailedError            a compare did not hold; the caller reads again and decides
    │   ├── BadAttributeError
    │   ├── BadOffsetError
    │   ├── BadEventNumberError
    │   ├── TableKeyBadVersionError
    │   ├── TableKeyNotExistsError
    │   ├── TableNotEmptyError
    │   ├── NotEmptyError
    │   ├── StreamNotSealedError
    │   ├── NotTheOwnerError
    │   └── WriteConflictError
    │       └── WorkflowBusyError
    ├── SegmentSealedError
    ├── SegmentTruncatedError
    │   └── SegmentGoneError
    ├── AnswerTooLargeError             ask for less
    ├── UnsupportedError
    ├── UnauthenticatedError
    ├── PermissionDeniedError
    │   └── NotAllowedError
    ├── IllegalStateError
    │   ├── ClientClosedError
    │   └── ReinitializationRequiredError
    │   └── StreamSealedError
    └── UnavailableError                try again, perhaps elsewhere
        ├── WrongHostError
        │   └── NotOwnerError
        ├── ContainerStoppedError
        │   └── OutcomeUnknownError
        ├── ConnectionLostError
        ├── TokenExpiredError
        ├── DeadlineError
        ├── OverloadedError
        ├── DiskFullError
        ├── NoSuchBucketError
        ├── ObjectNotDeletedError
        └── FencedError
    └── DataError                       never retried, never skipped: names the place
        ├── CorruptionError
        │   └── MemoryDamageError       not stored data: a recovery from the log may have the right bytes
        ├── DataLossError
        └── FormatVersionError
    └── StartError                      a process that cannot start says why in one line
"""

from __future__ import annotations

from typing import ClassVar

# gRPC status codes by number, so that this module imports no gRPC.
GRPC_UNKNOWN = 2
GRPC_INVALID_ARGUMENT = 3
GRPC_DEADLINE_EXCEEDED = 4
GRPC_NOT_FOUND = 5
GRPC_ALREADY_EXISTS = 6
GRPC_PERMISSION_DENIED = 7
GRPC_RESOURCE_EXHAUSTED = 8
GRPC_FAILED_PRECONDITION = 9
GRPC_OUT_OF_RANGE = 11
GRPC_UNIMPLEMENTED = 12
GRPC_INTERNAL = 13
GRPC_UNAVAILABLE = 14
GRPC_DATA_LOSS = 15
GRPC_UNAUTHENTICATED = 16


class TailraceError(Exception):
    """Base of all errors of Tailrace.

    Class attributes: ``wire_code`` is the segment store reply that carries the error
    (docs/protocol/wire.md#failure-replies; None means the connection is closed without a reply), ``grpc_code`` the gRPC
    status number, ``http_status`` the REST status, ``retryable`` whether the same request may succeed later without a
    change.
    """

    wire_code: ClassVar[int | None] = None
    grpc_code: ClassVar[int] = GRPC_UNKNOWN
    http_status: ClassVar[int] = 500
    retryable: ClassVar[bool] = False


class BadRequestError(TailraceError):
    """An argument is wrong; the message names the field. gRPC UNKNOWN as the original answers.

    See docs/protocol/controller.md#errors.
    """

    wire_code: ClassVar[int | None] = 61
    http_status = 400


class InvalidNameError(BadRequestError):
    """A scope, stream, group, reader or segment name breaks the grammar of names (docs/protocol/naming.md#names)."""


class InvalidSpecError(BadRequestError):
    """A field of a Kubernetes resource is wrong: ``field`` is its path, as ``spec.scaling.target``.

    See docs/design.md#resources.
    """

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


class EpochTooHighError(BadRequestError):
    """An epoch is too far above the log's last one, ``last``: the log would have to claim all epochs between them."""

    def __init__(self, message: str, last: int = 0) -> None:
        super().__init__(message)
        self.last = last


class ProtocolError(BadRequestError):
    """The peer broke the protocol; the connection is closed.

    See docs/protocol/wire.md#frames, docs/protocol/wire.md#appends.
    """

    wire_code = None


class NotFoundError(TailraceError):
    """The named thing does not exist."""

    grpc_code = GRPC_NOT_FOUND
    http_status = 404


class NoSuchSegmentError(NotFoundError):
    """The segment does not exist (wire 53)."""

    wire_code = 53

    def __init__(self, segment: str) -> None:
        super().__init__(f"segment {segment} does not exist")
        self.segment = segment


class NoSuchScopeError(NotFoundError):
    """The scope does not exist."""


class NoSuchStreamError(NotFoundError):
    """The stream does not exist."""


class NoSuchTransactionError(NotFoundError):
    """The transaction is not known (any more)."""


class NoSuchReaderGroupError(NotFoundError):
    """The reader group does not exist."""


class AlreadyExistsError(TailraceError):
    """The thing to create exists already."""

    grpc_code = GRPC_ALREADY_EXISTS
    http_status = 409


class SegmentExistsError(AlreadyExistsError):
    """The segment exists already (wire 52)."""

    wire_code = 52

    def __init__(self, segment: str) -> None:
        super().__init__(f"segment {segment} exists already")
        self.segment = segment


class ConditionFailedError(TailraceError):
    """A condition of the request does not hold; the caller must read again before it tries again."""

    grpc_code = GRPC_FAILED_PRECONDITION
    http_status = 412


class BadAttributeError(ConditionFailedError):
    """An attribute does not have the value that the update expects (docs/design.md#write-path)."""

    wire_code = 37

    def __init__(self, segment: str, attribute_id: bytes, expected: int, actual: int) -> None:
        super().__init__(f"attribute {attribute_id.hex()} of {segment} is {actual}, not {expected}")
        self.segment = segment
        self.attribute_id = attribute_id
        self.expected = expected
        self.actual = actual


class BadOffsetError(ConditionFailedError):
    """The offset given is not the segment's length (conditional append, table offset; wire 8, 56)."""

    wire_code = 56

    def __init__(self, segment: str, expected: int, actual: int) -> None:
        super().__init__(f"offset {expected} given for {segment}, whose length is {actual}")
        self.segment = segment
        self.expected = expected
        self.actual = actual


class BadEventNumberError(ConditionFailedError):
    """A writer's event number does not follow the stored one (wire 55)."""

    wire_code = 55


class TableKeyBadVersionError(ConditionFailedError):
    """A table key has another version than the update expects (wire 82)."""

    wire_code = 82


class TableKeyNotExistsError(ConditionFailedError):
    """A versioned update or removal names a table key that does not exist (wire 81)."""

    wire_code = 81


class TableNotEmptyError(ConditionFailedError):
    """The table segment to delete is not empty (wire 80)."""

    wire_code = 80


class NotEmptyError(ConditionFailedError):
    """The scope to delete is not empty."""


class WriteConflictError(ConditionFailedError):
    """A concurrent change won; the caller may retry."""

    retryable = True


class StreamNotSealedError(ConditionFailedError):
    """A stream must be sealed before it is deleted (docs/protocol/controller.md#calls)."""


class NotTheOwnerError(ConditionFailedError):
    """The stream belongs to ``owner``, "" for none (ADR 0014)."""

    def __init__(self, stream: str, owner: str) -> None:
        super().__init__(f"stream {stream} belongs to {owner or 'no resource'}")
        self.owner = owner


class WorkflowBusyError(WriteConflictError):
    """Another change of the same kind is in progress for the same object (docs/protocol/controller.md#calls)."""


class SegmentSealedError(TailraceError):
    """The segment is sealed (wire 51)."""

    wire_code = 51
    grpc_code = GRPC_FAILED_PRECONDITION
    http_status = 412

    def __init__(self, segment: str) -> None:
        super().__init__(f"segment {segment} is sealed")
        self.segment = segment


class SegmentTruncatedError(TailraceError):
    """The offset lies before the segment's start (wire 56).

    ``read_to`` is the offset up to which a reader has read; what lies between it and ``start_offset`` is missed.
    """

    wire_code = 56
    grpc_code = GRPC_FAILED_PRECONDITION
    http_status = 412

    def __init__(self, segment: str, start_offset: int, read_to: int | None = None) -> None:
        text = f"segment {segment} starts at {start_offset}"
        if read_to is not None:
            missed = f"{start_offset - read_to} bytes from offset {read_to} to {start_offset}"
            text = f"segment {segment}: {missed} were truncated before they were read"
        super().__init__(text)
        self.segment = segment
        self.start_offset = start_offset
        self.read_to = read_to


class SegmentGoneError(SegmentTruncatedError):
    """The segment was dropped as a whole before it was read to its end: its stream was truncated past it."""

    def __init__(self, segment: str, read_to: int) -> None:
        super().__init__(segment, 2**63 - 1, read_to)
        self.args = (f"segment {segment} was dropped before it was read to its end: it was read to offset {read_to}",)


class AnswerTooLargeError(TailraceError):
    """The answer is longer than a message may be; clients do not retry it (docs/protocol/controller.md#errors)."""

    grpc_code = GRPC_OUT_OF_RANGE
    http_status = 413


class UnsupportedError(TailraceError):
    """The operation is not offered (wire 57)."""

    wire_code = 57
    grpc_code = GRPC_UNIMPLEMENTED
    http_status = 501


class UnauthenticatedError(TailraceError):
    """Credentials are missing or wrong (wire 60)."""

    wire_code = 60
    grpc_code = GRPC_UNAUTHENTICATED
    http_status = 401


class PermissionDeniedError(TailraceError):
    """The caller may not do this (wire 60)."""

    wire_code = 60
    grpc_code = GRPC_PERMISSION_DENIED
    http_status = 403


class NotAllowedError(PermissionDeniedError):
    """The operation can never succeed on this object; clients do not retry it (docs/protocol/controller.md#errors)."""


class IllegalStateError(TailraceError):
    """The object is in a state that does not allow the operation."""

    grpc_code = GRPC_INTERNAL


class StreamSealedError(IllegalStateError):
    """The stream is sealed: it takes no change but its deletion (docs/protocol/controller.md#calls)."""


class ClientClosedError(IllegalStateError):
    """The client was closed before or during the call."""

    def __init__(self, message: str = "the client is closed") -> None:
        super().__init__(message)


class ReinitializationRequiredError(IllegalStateError):
    """The reader does not belong to its group any more (reset, or declared offline): make a new reader."""


class UnavailableError(TailraceError):
    """Not now, or not here; the same request may succeed later."""

    grpc_code = GRPC_UNAVAILABLE
    http_status = 503
    retryable = True


class WrongHostError(UnavailableError):
    """The segment's container does not run here (wire 50)."""

    wire_code = 50


class NotOwnerError(WrongHostError):
    """The current container map does not assign the container to this worker (docs/design.md#ownership)."""


class ContainerStoppedError(UnavailableError):
    """The container stopped; its reason is in the message."""

    wire_code: ClassVar[int | None] = 50


class OutcomeUnknownError(ContainerStoppedError):
    """The container stopped while it wrote the operation to the log: the operation may turn out to be applied.

    It has no WrongHost reply, which means that nothing was done. The connection closes, and clients read what is
    stored.
    """

    wire_code = None


class ConnectionLostError(UnavailableError):
    """The connection ended before the answer; the outcome is unknown."""


class TokenExpiredError(UnavailableError):
    """The delegation token has expired; a client asks for a new one and tries again (wire 60 with code 1)."""

    wire_code = 60
    grpc_code = GRPC_UNAUTHENTICATED
    http_status = 401


class DeadlineError(UnavailableError):
    """No answer within the deadline; the outcome is unknown."""

    grpc_code = GRPC_DEADLINE_EXCEEDED
    http_status = 504


class OverloadedError(UnavailableError):
    """A bound is reached; a longer wait would not help."""

    grpc_code = GRPC_RESOURCE_EXHAUSTED


class DiskFullError(UnavailableError):
    """There is no space for the log; nothing was staged (docs/design.md#write-path)."""

    grpc_code = GRPC_RESOURCE_EXHAUSTED
    http_status = 507


class NoSuchBucketError(UnavailableError):
    """The bucket of the object store is missing: whether an object exists is unknown (docs/design.md#tier-2)."""


class ObjectNotDeletedError(UnavailableError):
    """The object store deletes others, but not the object ``key``, as one under retention or legal hold."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(f"object {key} cannot be deleted: {reason}")
        self.key = key


class SlowDownError(UnavailableError):
    """The object store refuses requests because there are too many."""


class FencedError(UnavailableError):
    """Another owner has taken the container or the log; ``epoch`` is the greatest epoch seen.

    See docs/design.md#tier-1.
    """

    def __init__(self, message: str, epoch: int = 0) -> None:
        super().__init__(message)
        self.epoch = epoch


class DataError(TailraceError):
    """Stored data cannot be trusted; the message names the place. Never retried, never skipped."""

    grpc_code = GRPC_DATA_LOSS


class CorruptionError(DataError):
    """A checksum, magic or structure is wrong.

    ``place`` names the file or object and the byte offset.
    """

    def __init__(self, place: str, reason: str) -> None:
        super().__init__(f"corruption in {place}: {reason}")
        self.place = place
        self.reason = reason


class MemoryDamageError(CorruptionError):
    """Bytes in memory differ from those that were written; a recovery from the log has the right ones, if stored."""


class DataLossError(DataError):
    """Something acknowledged is missing (docs/design.md#tier-1: missing at or below ``acknowledged_through``)."""


class FormatVersionError(DataError):
    """The data was written by a newer format than this program reads."""


class StartError(TailraceError):
    """The process cannot start; the message is the one line that the user sees."""
