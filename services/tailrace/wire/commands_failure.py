"""Failure replies (docs/protocol/wire.md#failure-replies)."""

from dataclasses import dataclass
from typing import ClassVar

from tailrace.wire.command import Command
from tailrace.wire.fields import I32, I64, Text, Uuid


@dataclass(slots=True)
class WrongHost(Command):
    """The segment's container does not run here; ask the controller again."""

    CODE: ClassVar[int] = 50
    request_id: I64
    segment: Text
    correct_host: Text
    server_stack_trace: Text = ""


@dataclass(slots=True)
class SegmentIsSealed(Command):
    """The segment is sealed; ``offset`` echoes a read's offset or holds the failed event number."""

    CODE: ClassVar[int] = 51
    request_id: I64
    segment: Text
    server_stack_trace: Text = ""
    offset: I64 = -1


@dataclass(slots=True)
class SegmentAlreadyExists(Command):
    """The segment to create exists."""

    CODE: ClassVar[int] = 52
    request_id: I64
    segment: Text
    server_stack_trace: Text


@dataclass(slots=True)
class NoSuchSegment(Command):
    """The segment does not exist; ``offset`` echoes a read's offset."""

    CODE: ClassVar[int] = 53
    request_id: I64
    segment: Text
    server_stack_trace: Text = ""
    offset: I64 = -1


@dataclass(slots=True)
class InvalidEventNumber(Command):
    """The writer's stored event number is not the one expected; the connection closes after it."""

    CODE: ClassVar[int] = 55
    writer_id: Uuid
    request_id: I64
    server_stack_trace: Text = ""
    event_number: I64 = -1


@dataclass(slots=True)
class SegmentIsTruncated(Command):
    """The offset lies before ``start_offset``."""

    CODE: ClassVar[int] = 56
    request_id: I64
    segment: Text
    start_offset: I64
    server_stack_trace: Text = ""
    offset: I64 = -1


@dataclass(slots=True)
class OperationUnsupported(Command):
    """The operation is not offered."""

    CODE: ClassVar[int] = 57
    request_id: I64
    operation_name: Text
    server_stack_trace: Text = ""


@dataclass(slots=True)
class AuthTokenCheckFailed(Command):
    """``error_code`` -1 unspecified, 0 check failed, 1 token expired."""

    CODE: ClassVar[int] = 60
    request_id: I64
    server_stack_trace: Text = ""
    error_code: I32 = -1


@dataclass(slots=True)
class ErrorMessage(Command):
    """``error_code`` -1 unspecified, 0 illegal argument."""

    CODE: ClassVar[int] = 61
    request_id: I64
    segment: Text
    message: Text
    error_code: I32


@dataclass(slots=True)
class TableSegmentNotEmpty(Command):
    """The table segment to delete is not empty."""

    CODE: ClassVar[int] = 80
    request_id: I64
    segment: Text
    server_stack_trace: Text


@dataclass(slots=True)
class TableKeyDoesNotExist(Command):
    """A versioned update names a key that is absent."""

    CODE: ClassVar[int] = 81
    request_id: I64
    segment: Text
    server_stack_trace: Text


@dataclass(slots=True)
class TableKeyBadVersion(Command):
    """A key has another version."""

    CODE: ClassVar[int] = 82
    request_id: I64
    segment: Text
    server_stack_trace: Text


COMMANDS: tuple[type[Command], ...] = (
    WrongHost,
    SegmentIsSealed,
    SegmentAlreadyExists,
    NoSuchSegment,
    InvalidEventNumber,
    SegmentIsTruncated,
    OperationUnsupported,
    AuthTokenCheckFailed,
    ErrorMessage,
    TableSegmentNotEmpty,
    TableKeyDoesNotExist,
    TableKeyBadVersion,
)
