"""How long a worker waits before it opens a container again (docs/design.md#ownership)."""

from __future__ import annotations

from tailrace.common import limits
from tailrace.common.errors import DiskFullError, FencedError, MemoryDamageError, UnavailableError


class Backoff:
    """Exponential backoff between two bounds: each pause is twice as long as the one before."""

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
        """Reset the pause when what was started ran for longer than the longest pause."""
        if duration_s > self._max_s:
            self._due_s = self._min_s


class Pauses:
    """The pauses of one container, by the reason why it does not run.

    After a cause that passes by itself the next attempt comes soon, because it costs little. Such causes are an epoch
    that was not returned, a store that does not answer, another owner that fenced the container. A container that fails
    or stops repeatedly makes its worker read the log each time, so its pauses grow.
    """

    def __init__(self) -> None:
        self._passing = Backoff(limits.CONTAINER_REOPEN_MIN_S, limits.CONTAINER_REOPEN_MAX_S)
        self._failing = Backoff(limits.CONTAINER_RESTART_MIN_S, limits.CONTAINER_RESTART_MAX_S)
        self._current = self._failing

    def not_opened(self, reason: Exception) -> None:
        """Record why an attempt to open failed."""
        passes = isinstance(reason, UnavailableError) and not isinstance(reason, DiskFullError)
        self._current = self._passing if passes else self._failing

    def stopped(self, reason: Exception, ran_s: float) -> None:
        """Record for how long the container ran, and why it stopped by itself."""
        self._passing.ran(ran_s)
        self._failing.ran(ran_s)
        self._current = self._passing if isinstance(reason, FencedError) else self._failing

    def next_s(self) -> float:
        """The pause before the next attempt."""
        return self._current.next_s()


class MemoryDamages:
    """Decides whether a container with damaged memory is recovered from its log; ``recoveries`` counts that.

    A place that differs again after a recovery is wrong in the log, too. Many places in a short time mean that the
    memory of the machine cannot be trusted.
    """

    def __init__(self) -> None:
        self._places: dict[str, None] = {}
        self.recoveries = 0

    def may_recover(self, error: MemoryDamageError, ran_s: float) -> bool:
        """Record where memory differed, and for how long the container ran; return whether a recovery may help."""
        if ran_s > limits.CONTAINER_MEMORY_DAMAGE_FORGET_S:
            self._places.clear()
        if error.place in self._places or len(self._places) >= limits.CONTAINER_MEMORY_DAMAGES_MAX:
            return False
        self._places[error.place] = None
        self.recoveries += 1
        return True
