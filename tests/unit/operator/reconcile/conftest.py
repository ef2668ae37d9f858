"""What tests of the reconcile loop share."""

from __future__ import annotations


class Fixed:
    """Fixed time and fixed chance."""

    def now_ms(self) -> int:
        return 1_767_323_045_000

    def token(self, length_bytes: int) -> bytes:
        return bytes(length_bytes)

    def uniform(self) -> float:
        return 0.5
