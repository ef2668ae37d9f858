"""What the pure-Python twins share: a contiguous buffer as a flat view of bytes, and the range check."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Buffer


def byte_view(data: Buffer, *, writable: bool = False) -> memoryview:
    """A one-dimensional view of the buffer's bytes.

    Raises TypeError for what is no buffer, BufferError for one that is not contiguous or, if asked, not writable.
    """
    view = memoryview(data)
    if not view.c_contiguous:
        raise BufferError("the buffer is not contiguous")
    if writable and view.readonly:
        raise BufferError("the buffer is not writable")
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")


def check_range(start: int, end: int, length_bytes: int) -> None:
    """Raises ValueError unless ``0 <= start <= end <= length_bytes``."""
    if not 0 <= start <= end <= length_bytes:
        raise ValueError(f"range {start}..{end} is outside of a buffer of {length_bytes} bytes")
