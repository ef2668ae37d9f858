"""Native hot paths: checksums, frames, records of a log, cache blocks, pages of the B+Tree. Imports nothing of ours.

Each module exists twice under the same tests: ``_x.pyx`` in Cython and its twin ``_x_py.py`` in pure Python, which also
holds the documentation of both. ``TAILRACE_PURE=1`` in the environment selects the twins, once, at import. There is no
silent fall-back: without the extensions and without that variable the import fails.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tailrace.kernel._cache_common import (
    BLOCK_BYTES,
    BUFFER_BYTES,
    CacheFullError,
    CacheSnapshot,
    blocks_needed,
)
from tailrace.kernel._records_common import AppendRun

PURE = os.environ.get("TAILRACE_PURE", "") == "1"

if TYPE_CHECKING or PURE:
    from tailrace.kernel._btree_py import find_exact, lookup_many, merge, search
    from tailrace.kernel._cache_py import BlockCache, CacheView
    from tailrace.kernel._crc_py import crc32c, crc32c_combine, is_zero, zero_sectors
    from tailrace.kernel._frames_py import gather_events, pack_events, scan_frames, split_events, split_events_bytes
    from tailrace.kernel._records_py import LastAttributes, scan_appends, skip_records
else:
    try:
        from tailrace.kernel._btree import find_exact, lookup_many, merge, search
        from tailrace.kernel._cache import BlockCache, CacheView
        from tailrace.kernel._crc import crc32c, crc32c_combine, is_zero, zero_sectors
        from tailrace.kernel._frames import gather_events, pack_events, scan_frames, split_events, split_events_bytes
        from tailrace.kernel._records import LastAttributes, scan_appends, skip_records
    except ModuleNotFoundError as error:
        raise ImportError(
            f"the native kernel is not built ({error.name} is missing): run `make setup`, or set TAILRACE_PURE=1"
        ) from error

__all__ = [
    "BLOCK_BYTES",
    "BUFFER_BYTES",
    "PURE",
    "AppendRun",
    "BlockCache",
    "CacheFullError",
    "CacheSnapshot",
    "CacheView",
    "LastAttributes",
    "blocks_needed",
    "crc32c",
    "crc32c_combine",
    "find_exact",
    "gather_events",
    "is_zero",
    "lookup_many",
    "merge",
    "pack_events",
    "scan_appends",
    "scan_frames",
    "search",
    "skip_records",
    "split_events",
    "split_events_bytes",
    "zero_sectors",
]
