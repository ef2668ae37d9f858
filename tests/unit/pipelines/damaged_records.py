"""Damage to the bytes of a record, as `tailrace.pipelines.checked_record` must find it."""

from __future__ import annotations

from hypothesis import strategies as st


def damaged(whole: bytes, data: st.DataObject) -> tuple[bytes, ...]:
    """A record with one bit flipped, cut off there, and with a byte too many."""
    at = data.draw(st.integers(0, 8 * len(whole) - 1))
    flipped = bytearray(whole)
    flipped[at // 8] ^= 1 << at % 8
    return bytes(flipped), whole[: at // 8], whole + b"x"
