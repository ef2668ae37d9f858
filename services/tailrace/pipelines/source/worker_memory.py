"""Keeps the memory of Spark's Python workers near what they hold (docs/spark.md#memory)."""

from __future__ import annotations

import ctypes
import functools
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from tailrace.common.limits import MIB

if TYPE_CHECKING:
    from collections.abc import Callable

MAPPED_FROM_BYTES: Final = 6 * MIB
"""Buffers of this size, which only large events need, are given back when they are freed. Smaller ones are kept."""
ARENAS_MAX: Final = 2
"""For the thread that Spark calls, and that of the client."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8


@functools.cache
def bound_memory() -> bool:
    """Let Arrow use the allocator of the C library, and set that up; once in a process. Return whether it is glibc's.

    Arrow's own keeps what is freed for a while. By itself glibc's raises the size from which buffers are given back to
    that of the largest one that was freed, and keeps the free memory of each thread apart.
    """
    pa.set_memory_pool(pa.system_memory_pool())
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    settings = {_M_MMAP_THRESHOLD: MAPPED_FROM_BYTES, _M_TRIM_THRESHOLD: MAPPED_FROM_BYTES, _M_ARENA_MAX: ARENAS_MAX}
    return all(mallopt(name, value) == 1 for name, value in settings.items())


@functools.cache
def _malloc_trim() -> Callable[[int], int] | None:
    return getattr(ctypes.CDLL(None), "malloc_trim", None)


def give_back() -> None:
    """Give free memory back to the system: between tasks, and around events that are larger than a batch usually is."""
    trim = _malloc_trim()
    if trim is not None:
        trim(0)
