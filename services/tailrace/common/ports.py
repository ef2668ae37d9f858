"""Ports for time and randomness, so that the deterministic simulator can run everything (docs/design.md#testing).

Monotonic time is always ``asyncio.get_running_loop().time()``; these ports add wall-clock time and random bytes.
"""

from __future__ import annotations

import uuid
from typing import Protocol


class Clock(Protocol):
    """Wall-clock time."""

    def now_ms(self) -> int:
        """Return milliseconds since 1970-01-01 UTC; they may jump, so callers only record and roughly compare them."""
        ...


class Entropy(Protocol):
    """Randomness."""

    def token(self, length_bytes: int) -> bytes:
        """Return unpredictable bytes."""
        ...

    def uniform(self) -> float:
        """Return a float in [0, 1), for jitter and spreading."""
        ...


def new_uuid(entropy: Entropy) -> uuid.UUID:
    """Return a random (version 4) UUID."""
    return uuid.UUID(bytes=entropy.token(16), version=4)
