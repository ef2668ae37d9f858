"""The real clock and the real entropy; nothing else in the product reads them."""

from __future__ import annotations

import os
import random
import time


class SystemClock:
    """Wall clock of the machine."""

    def now_ms(self) -> int:
        """Return milliseconds since 1970-01-01 UTC."""
        return time.time_ns() // 1_000_000


class SystemEntropy:
    """Entropy of the operating system."""

    def token(self, length_bytes: int) -> bytes:
        """Return unpredictable bytes from the kernel."""
        return os.urandom(length_bytes)

    def uniform(self) -> float:
        """Return a float in [0, 1)."""
        return random.random()
