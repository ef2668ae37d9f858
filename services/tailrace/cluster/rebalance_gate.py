"""Decides when containers may move for balance alone (docs/design.md#ownership, ADR 0009).

A move interrupts the clients of a container. Right after a failure containers recover, and their clients have just
waited. So a worker that returns early gets its share only after a period without failures.
"""

from __future__ import annotations

from tailrace.common import limits

Accepting = frozenset[tuple[str, str]]
"""Workers that take containers, each with its incarnation: a restarted worker recovers its containers first."""


class RebalanceGate:
    """Opens after ``delay_s`` without a change of the workers. Pure; times are seconds of one monotonic clock."""

    def __init__(self, delay_s: float) -> None:
        self._delay_s = delay_s
        self._changed_at_s = 0.0
        self._accepting: Accepting | None = None
        self._uneven_at_s: float | None = None

    def observe(self, now_s: float, accepting: Accepting, *, placed: bool, uneven: bool) -> None:
        """Record what a step of the placer found.

        `placed`: it placed containers that no living worker had. `uneven`: some could move for balance alone.
        """
        if placed or accepting != self._accepting:
            self._changed_at_s = now_s
        self._accepting = accepting
        if not uneven:
            self._uneven_at_s = None
        elif self._uneven_at_s is None:
            self._uneven_at_s = now_s

    def may_balance(self, now_s: float, *, held: bool) -> bool:
        """Return whether containers may move now; `held`: every worker is known to hold its assigned containers.

        The gate waits up to ``limits.PLACER_UNHELD_MAX_S`` longer for a worker that does not take its containers. It
        opens after ``limits.PLACER_UNEVEN_MAX_S`` in any case: workers that restart repeatedly may be overloaded.
        """
        if self._uneven_at_s is not None and now_s - self._uneven_at_s >= limits.PLACER_UNEVEN_MAX_S:
            return True
        quiet_s = now_s - self._changed_at_s
        return quiet_s >= self._delay_s and (held or quiet_s >= self._delay_s + limits.PLACER_UNHELD_MAX_S)
