"""Writes of large objects past the page cache (docs/design.md#objects-in-a-folder)."""

from __future__ import annotations

import errno
import fcntl
import os
from typing import TYPE_CHECKING, Final

import structlog

from tailrace.storage.aligned_copies import ALIGNMENT_BYTES, AlignedCopy

if TYPE_CHECKING:
    from pathlib import Path

_log = structlog.get_logger()
_REFUSALS: Final = frozenset({errno.EINVAL, errno.ENOTSUP})
"""Errors of a file system that writes through its cache alone, or asks for another alignment."""


class DirectWrites:
    """Writes files below a folder with O_DIRECT, as long as its file system takes that. Threads may use it at a time.

    The kernel then copies nothing and takes no pages for what is hardly read from memory again.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._refused = False

    def write(self, descriptor: int, data: bytes | AlignedCopy) -> None:
        """Fill an empty file; a sync is left to the caller.

        Of an aligned copy, whole pages go past the cache. The last bytes and other data go through it.
        """
        view, written = data.view() if isinstance(data, AlignedCopy) else memoryview(data), 0
        if isinstance(data, AlignedCopy) and not self._refused:
            written = self._write_pages(descriptor, view[: len(view) // ALIGNMENT_BYTES * ALIGNMENT_BYTES])
        while written < len(view):
            written += os.pwrite(descriptor, view[written:], written)

    def _write_pages(self, descriptor: int, pages: memoryview) -> int:
        """Return how many bytes were written."""
        flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
        written = 0
        try:
            fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_DIRECT)
            while written < len(pages) and written % ALIGNMENT_BYTES == 0:
                written += os.pwrite(descriptor, pages[written:], written)
        except OSError as error:
            if error.errno not in _REFUSALS:
                raise
            self._refuse(error)
        finally:
            fcntl.fcntl(descriptor, fcntl.F_SETFL, flags)
        return written

    def _refuse(self, error: OSError) -> None:
        if not self._refused:
            self._refused = True
            _log.info("direct_writes_refused", folder=str(self._folder), reason=error.strerror)
