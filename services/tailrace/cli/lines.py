"""Read lines of a file or of standard input as events, in chunks, without a thread."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from tailrace.cli.descriptors import may_block, readable
from tailrace.client.writer.append_blocks import EVENT_HEADER_BYTES
from tailrace.common import limits
from tailrace.common.errors import BadRequestError

CHUNK_BYTES: Final = 256 * limits.KIB


class LineSplitter:
    """Split bytes into lines (pure). A line is at most as long as an event."""

    def __init__(self, max_line_bytes: int = limits.WRITER_EVENT_MAX_BYTES - EVENT_HEADER_BYTES) -> None:
        self._max_line_bytes = max_line_bytes
        self._whole_lines = 0
        self._begun: list[bytes] = []
        """Parts of an incomplete line, joined only once so that long lines take linear time."""
        self._begun_bytes = 0

    def feed(self, data: bytes) -> list[bytes]:
        """Return the complete lines without their ends. Raises BadRequestError for one that is too long."""
        first, *lines = data.split(b"\n")
        self._begun.append(first)
        self._begun_bytes += len(first)
        if self._begun_bytes > self._max_line_bytes:
            raise BadRequestError(
                f"line {self._whole_lines + 1:,} is longer than {self._max_line_bytes:,} bytes, the maximum of an event"
            )
        if not lines:
            return []
        whole = b"".join(self._begun)
        self._begun = [lines.pop()]
        self._begun_bytes = len(self._begun[0])
        self._whole_lines += 1 + len(lines)
        return [whole, *lines]

    def rest(self) -> list[bytes]:
        """Return the last line if it has no end."""
        rest = b"".join(self._begun)
        self._begun, self._begun_bytes = [], 0
        return [rest] if rest else []


async def read_lines(source: Path | None) -> AsyncIterator[tuple[list[bytes], int]]:
    """Yield chunks of lines of a file (standard input when None), each with the number of bytes read.

    Raises:
        OSError: the file cannot be opened. BadRequestError: reading failed later, or a line is too long.
    """
    descriptor = _open(source) if source is not None else 0
    try:
        splitter = LineSplitter()
        waits = may_block(descriptor)
        while True:
            if waits:
                await readable(descriptor)
            try:
                data = os.read(descriptor, CHUNK_BYTES)
            except BlockingIOError:
                continue  # another process was first
            except OSError as error:
                raise BadRequestError(f"{source or 'standard input'}: {error.strerror}") from error
            if not data:
                break
            yield splitter.feed(data), len(data)
        yield splitter.rest(), 0
    finally:
        if source is not None:
            os.close(descriptor)


def _open(source: Path) -> int:
    """Open a file without waiting for the writer of a named pipe.

    Such a pipe becomes readable when a writer has come, and not before: an empty read is always its end.
    """
    descriptor = os.open(source, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if stat.S_ISDIR(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(source))
    if not may_block(descriptor):
        os.set_blocking(descriptor, True)
    return descriptor


def known_length(source: Path | None) -> int | None:
    """Return the number of bytes to read, if it is known."""
    status = os.stat(source if source is not None else 0)
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def key_of(line: bytes, field: str) -> str:
    """Return a JSON line's routing key: the value of a field (``a.b``: field b of object a). Raises BadRequestError."""
    try:
        value = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequestError(f"is not JSON: {_shown(line)}") from error
    except RecursionError as error:
        raise BadRequestError(f"has too many objects or arrays within each other: {_shown(line)}") from error
    for name in field.split("."):
        if not isinstance(value, dict) or name not in value:
            raise BadRequestError(f"has no field {field}: {_shown(line)}")
        value = value[name]
    if isinstance(value, str):
        return value
    if value is None or isinstance(value, dict | list):
        raise BadRequestError(f"has neither text nor a number in field {field}: {_shown(line)}")
    return msgspec.json.encode(value).decode()


def _shown(line: bytes) -> str:
    return repr(line[:60].decode(errors="replace"))


class Grouped(NamedTuple):
    """Valid lines by routing key, and the error of the line after them, if any."""

    groups: dict[str, list[bytes]]
    error: BadRequestError | None


def by_key(lines: list[bytes], field: str, first_number: int = 1) -> Grouped:
    """Return lines by routing key, in order within each key; keys in the order of their first line.

    Empty lines are skipped. A line without a key ends the result with an error; lines before it are valid.
    """
    groups: dict[str, list[bytes]] = {}
    for number, line in enumerate(lines, first_number):
        if not line:
            continue
        try:
            key = key_of(line, field)
        except BadRequestError as error:
            return Grouped(groups, BadRequestError(f"line {number:,} {error}"))
        groups.setdefault(key, []).append(line)
    return Grouped(groups, None)
