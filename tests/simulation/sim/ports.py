"""The Clock and Entropy ports under simulation."""

from __future__ import annotations

import asyncio
import random

EPOCH_MS = 1_700_000_000_000


class SimClock:
    """Wall clock of one machine: virtual time plus a skew that jumps (`SimWorld.jump_clock`)."""

    def __init__(self, loop: asyncio.AbstractEventLoop, skew_ms: int = 0) -> None:
        self._loop = loop
        self.skew_ms = skew_ms

    def now_ms(self) -> int:
        """See Clock.now_ms."""
        return EPOCH_MS + int(self._loop.time() * 1000) + self.skew_ms


class SimEntropy:
    """Random bytes of the seed."""

    def __init__(self, source: random.Random) -> None:
        self._random = source

    def token(self, length_bytes: int) -> bytes:
        """See Entropy.token."""
        return self._random.randbytes(length_bytes)

    def uniform(self) -> float:
        """See Entropy.uniform."""
        return self._random.random()
