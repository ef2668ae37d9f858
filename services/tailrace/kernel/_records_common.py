"""What both implementations of the scan of a log's records share."""

from __future__ import annotations

from typing import NamedTuple

RUNS_MAX = 64
"""Segments in one result of `scan_appends`."""


class AppendRun(NamedTuple):
    """Contiguous appends to one segment that stand in one payload.

    ``first_sequence``: the first one's number. ``offset``: segment offset of ``data``, which are their bytes. Appends
    with bytes have a row in four columns of the machine's own integers: ``offsets`` (int64), ``lengths``, ``crcs`` and
    ``starts``, where the data begins in the payload (all uint32).
    """

    segment_id: int
    first_sequence: int
    offset: int
    data: bytes
    offsets: bytes
    lengths: bytes
    crcs: bytes
    starts: bytes
