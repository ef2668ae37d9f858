"""Whether the map has been calm for so long that containers may move for balance alone (design §9, ADR 0009).

A move costs the clients of a container an interruption. Right after a failure its containers are being recovered, and
those who work with them have just waited; a worker that is back early gets its share when all that is over.
"""

from __future__ import annotations

from tailrace.common import limits

Accepting = frozenset[tuple[str, str]]
"""Workers that take containers, each with its incarnation: one that was started again recovers what it has."""


class RebalanceGate:
    """Pure; all times are seconds of one monotonic clock. ``calm_s``: how long nothing may have happened."""

    def __init__(self, calm_s: float) -> None:
        self._calm_s = calm_s
        self._restless_at_s = 0.0
        self._accepting: Accepting | None = None
        self._uneven_at_s: float | None = None

    def saw(self, now_s: float, accepting: Accepting, *, placed: bool, uneven: bool) -> None:
        """What a step of the placer found.

        `placed`: it had containers to place that no living worker has; `uneven`: some could move for balance alone.
        """
        if placed or accepting != self._accepting:
            self._restless_at_s = now_s
        self._accepting = accepting
        if not uneven:
            self._uneven_at_s = None
        elif self._uneven_at_s is None:
            self._uneven_at_s = now_s

    def may_balance(self, now_s: float, *, held: bool) -> bool:
        """Whether containers may move now; `held`: each is held by the worker that is to have it, as far as is known.

        Somebody who does not take what is assigned to it is waited for up to ``limits.PLACER_UNHELD_MAX_S``; workers
        that come and go without end up to ``limits.PLACER_UNEVEN_MAX_S``, as they may have more than they can bear.
        """
        if self._uneven_at_s is not None and now_s - self._uneven_at_s >= limits.PLACER_UNEVEN_MAX_S:
            return True
        calm_s = now_s - self._restless_at_s
        return calm_s >= self._calm_s and (held or calm_s >= self._calm_s + limits.PLACER_UNHELD_MAX_S)
