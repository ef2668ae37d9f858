"""Detects dead workers: a pure state machine (docs/design.md#failure-detection).

A worker lapses when its observer sees no renewal of its Lease for ``lapse_s``, over several looks. The time is the
observer's monotonic clock, from the last renewal that it saw or its last (re)connection to the API, whichever is later.
Times inside Leases are not read. A worker that lapses alone is dead. When more than half of the workers lapse together,
the cause may be the API or the observer. Then nothing is decided for one period; after it their pods are probed, and
only workers that do not answer are dead.

A worker whose address refuses connections needs no lapse: no process runs there. The observer may probe a worker that
it has not seen to renew for ``suspect_s`` (`FailureDetector.suspects`), unless more than half are silent for so long.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from tailrace.common import limits

LOOKS_MIN: Final = 3
"""Looks without a renewal that a lapse needs besides time: one old list proves nothing."""

SUSPECT_LOOKS_MIN: Final = 2
"""Looks without a renewal that a suspicion needs besides time."""

_PAST_MAX: Final = 8


@dataclass(frozen=True, slots=True)
class Renewal:
    """A renewal in a worker's Lease: ``number`` rises with each renewal of one process, the ``incarnation``."""

    incarnation: str
    number: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """Workers by state, sorted by name; each is in one state.

    - ``alive``: seen to renew since the connection began, and not lapsed.
    - ``unheard``: known, neither seen to renew nor lapsed.
    - ``held``: lapsed together with others, perhaps alive.
    - ``dead``: their containers move to other workers.
    - ``ask``: held workers whose pods must be probed now (`FailureDetector.answered`).
    """

    alive: tuple[str, ...] = ()
    unheard: tuple[str, ...] = ()
    held: tuple[str, ...] = ()
    dead: tuple[str, ...] = ()
    ask: tuple[str, ...] = ()

    @property
    def known(self) -> frozenset[str]:
        """Return all workers of the verdict."""
        return frozenset((*self.alive, *self.unheard, *self.held, *self.dead))


@dataclass(slots=True)
class _Worker:
    renewal: Renewal | None
    heard_s: float
    looks: int = 0
    """Looks since the last renewal or (re)connection."""
    confirmed: bool = False
    """A renewal was seen since the (re)connection."""
    dead: bool = False
    asked_s: float | None = None
    past: dict[str, int] = field(default_factory=dict)
    """Earlier incarnations, with the last renewal seen of each."""


class FailureDetector:
    """See the module's docstring. All times are seconds of the observer's monotonic clock."""

    def __init__(
        self,
        lapse_s: float = limits.WORKER_LEASE_LAPSE_S,
        together_s: float = limits.WORKER_LEASE_TOGETHER_S,
        suspect_s: float = limits.WORKER_LEASE_SUSPECT_S,
    ) -> None:
        self._lapse_s = lapse_s
        self._together_s = together_s
        self._suspect_s = suspect_s
        self._workers: dict[str, _Worker] = {}
        self._looked_s: float | None = None
        """Time of the last look; None before the first one and after a lost connection."""
        self._connected_s = 0.0
        self._hold_s: float | None = None
        """Since when most workers lapse together; None when they do not."""
        self._held: set[str] = set()
        """Workers that lapsed since then, in any later state."""

    def lost_contact(self) -> None:
        """Record that the API did not answer: the next look restarts the time of all workers."""
        self._looked_s = None

    def look(self, now_s: float, renewals: Mapping[str, Renewal], expected: frozenset[str] = frozenset()) -> None:
        """Take the workers' Leases as listed now; `expected`: workers that must exist, with or without a Lease.

        A pause of the observer that is as long as a lapse counts as a lost connection.
        """
        first = self._looked_s is None or now_s - self._looked_s > self._lapse_s
        for worker in self._workers.values():
            worker.looks += 1
        if first:
            self._connected_s = now_s
            self._hold_s = None
            self._held.clear()
            for worker in self._workers.values():
                worker.looks, worker.confirmed, worker.asked_s = 0, False, None
        self._looked_s = now_s
        for name in sorted(expected - renewals.keys() - self._workers.keys()):
            self._workers[name] = _Worker(None, now_s)
        for name, renewal in renewals.items():
            known = self._workers.get(name)
            if known is None:
                # New since the last look: created just now. At the first look it may be of any age.
                self._workers[name] = _Worker(renewal, now_s, confirmed=not first)
            elif _is_newer(known, renewal):
                _renewed(known, renewal, now_s, confirmed=not first)
        for name, worker in list(self._workers.items()):
            if worker.dead and name not in renewals and name not in expected:
                del self._workers[name]

    def answered(self, worker: str, now_s: float, *, alive: bool) -> None:
        """Record the outcome of probing a held worker's pod; a worker with an unknown outcome is not dead."""
        known = self._workers.get(worker)
        if known is not None and not known.dead and self._is_lapsed(known, now_s):
            known.asked_s = now_s
            known.dead = not alive

    def suspects(self, now_s: float) -> tuple[str, ...]:
        """Return silent workers that a refused connection may prove to be dead (`refused`)."""
        living = [name for name, worker in sorted(self._workers.items()) if not worker.dead]
        silent = [name for name in living if self._is_suspect(self._workers[name], now_s)]
        gone = sum(worker.dead and self._silence_s(worker, now_s) < self._lapse_s for worker in self._workers.values())
        return tuple(silent) if 2 * (len(silent) + gone) <= len(living) + gone else ()

    def refused(self, worker: str, now_s: float) -> None:
        """Record that a suspect's address refused a connection: its process and the pod's main process have ended."""
        known = self._workers.get(worker)
        if known is not None and self._is_suspect(known, now_s):
            known.dead = True

    def _is_suspect(self, worker: _Worker, now_s: float) -> bool:
        silence_s = self._silence_s(worker, now_s)
        return not worker.dead and worker.looks >= SUSPECT_LOOKS_MIN and silence_s >= self._suspect_s

    def verdict(self, now_s: float) -> Verdict:
        """Return the state of all workers; call this after each look."""
        lapsed = [name for name, worker in sorted(self._workers.items()) if self._is_lapsed(worker, now_s)]
        self._hold(lapsed, now_s)
        if self._hold_s is None:
            for name in lapsed:
                self._workers[name].dead = True
        held = [name for name in lapsed if not self._workers[name].dead]
        dead = [name for name, worker in sorted(self._workers.items()) if worker.dead]
        others = sorted(self._workers.keys() - {*held, *dead})
        return Verdict(
            alive=tuple(name for name in others if self._workers[name].confirmed),
            unheard=tuple(name for name in others if not self._workers[name].confirmed),
            held=tuple(held),
            dead=tuple(dead),
            ask=tuple(name for name in held if self._is_to_be_asked(self._workers[name], now_s)),
        )

    def _is_lapsed(self, worker: _Worker, now_s: float) -> bool:
        return not worker.dead and worker.looks >= LOOKS_MIN and self._silence_s(worker, now_s) >= self._lapse_s

    def _silence_s(self, worker: _Worker, now_s: float) -> float:
        return now_s - max(worker.heard_s, self._connected_s)

    def _hold(self, lapsed: list[str], now_s: float) -> None:
        """Update whether more than half lapse together.

        The state ends when no worker is silent any more, or when workers that were only late renew in time, so that
        fewer lapsed than it seemed.
        """
        self._held.update(lapsed)
        members = [name for name, worker in self._workers.items() if not worker.dead or name in self._held]
        late_s = self._lapse_s - self._together_s
        silent = {name for name in members if self._silence_s(self._workers[name], now_s) >= late_s}
        if not lapsed or 2 * len(silent | (self._held & set(members))) <= len(members):
            self._hold_s = None
            self._held.clear()
        elif self._hold_s is None:
            self._hold_s = now_s

    def _is_to_be_asked(self, worker: _Worker, now_s: float) -> bool:
        """Return whether to probe a worker: after one period in doubt, then once a period."""
        if self._hold_s is None or now_s - self._hold_s < self._lapse_s:
            return False
        return worker.asked_s is None or now_s - worker.asked_s >= self._lapse_s


def _is_newer(known: _Worker, renewal: Renewal) -> bool:
    """Return whether the renewal is new, and not one that an outdated list shows."""
    if known.renewal is None:
        return True
    if renewal.incarnation == known.renewal.incarnation:
        return renewal.number > known.renewal.number
    return renewal.number > known.past.get(renewal.incarnation, -1)


def _renewed(known: _Worker, renewal: Renewal, now_s: float, *, confirmed: bool) -> None:
    if known.renewal is not None and known.renewal.incarnation != renewal.incarnation:
        known.past.pop(known.renewal.incarnation, None)
        known.past[known.renewal.incarnation] = known.renewal.number
        while len(known.past) > _PAST_MAX:
            del known.past[next(iter(known.past))]
    known.renewal, known.heard_s, known.looks = renewal, now_s, 0
    known.confirmed, known.dead, known.asked_s = confirmed, False, None
