"""How long a worker waits before it opens a container again (design §9)."""

from __future__ import annotations

from tailrace.common import limits
from tailrace.common.errors import DiskFullError, FencedError, UnavailableError


class Backoff:
    """Pauses between two bounds, each twice as long as the one before."""

    def __init__(self, min_s: float, max_s: float) -> None:
        self._min_s = min_s
        self._max_s = max_s
        self._due_s = min_s

    def next_s(self) -> float:
        """The pause before the next attempt."""
        pause_s = self._due_s
        self._due_s = min(pause_s * 2, self._max_s)
        return pause_s

    def ran(self, duration_s: float) -> None:
        """What was started ran that long; longer than any pause, and the next pause is a short one again."""
        if duration_s > self._max_s:
            self._due_s = self._min_s


class Pauses:
    """The pauses of one container, by the reason why it does not run.

    What passes by itself (an epoch that was not told, a store that does not answer, another owner that fenced it) is
    tried again soon: asking costs little. A container that fails, or opens and then stops again and again, makes its
    worker read its log each time, and waits ever longer.
    """

    def __init__(self) -> None:
        self._passing = Backoff(limits.CONTAINER_REOPEN_MIN_S, limits.CONTAINER_REOPEN_MAX_S)
        self._failing = Backoff(limits.CONTAINER_RESTART_MIN_S, limits.CONTAINER_RESTART_MAX_S)
        self._current = self._failing

    def not_opened(self, reason: Exception) -> None:
        """An attempt to open it ended so."""
        passes = isinstance(reason, UnavailableError) and not isinstance(reason, DiskFullError)
        self._current = self._passing if passes else self._failing

    def stopped(self, reason: Exception, ran_s: float) -> None:
        """It ran that long and stopped by itself."""
        self._passing.ran(ran_s)
        self._failing.ran(ran_s)
        self._current = self._passing if isinstance(reason, FencedError) else self._failing

    def next_s(self) -> float:
        """The pause before the next attempt."""
        return self._current.next_s()
