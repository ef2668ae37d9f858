"""Which workers are gone: failure detection as a pure state machine (design §9).

A worker lapses when its observer has seen no renewal of its Lease for ``lapse_s`` of the observer's own monotonic time,
counted from the later of the last renewal that it saw and its own (re)connection to the API, and over several looks. No
time inside a Lease is read. A worker that lapses alone is dead. When more than half of the workers lapse together, it
may as well be the API or the observer: nothing is decided for one period, then their pods are asked, and only who does
not answer is dead.

A worker whose address refuses connections needs no lapse: nothing runs there. Who was not seen to renew for
``suspect_s`` may be asked (`FailureDetector.suspects`), unless more than half of the workers are silent for so long.
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
    """What a worker's Lease shows: ``number`` rises with each renewal of one process, the ``incarnation``."""

    incarnation: str
    number: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """Workers by state, each in one of them, in order of their names.

    ``alive``: a renewal was seen since the connection began, and none is due. ``unheard``: known, and neither seen to
    renew nor lapsed. ``held``: lapsed together, perhaps not dead. ``dead``: to be given up. ``ask``: those of the held
    whose pods are to be asked now (`FailureDetector.answered`).
    """

    alive: tuple[str, ...] = ()
    unheard: tuple[str, ...] = ()
    held: tuple[str, ...] = ()
    dead: tuple[str, ...] = ()
    ask: tuple[str, ...] = ()

    @property
    def known(self) -> frozenset[str]:
        """All of them."""
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
    """Incarnations before the present one, with the last renewal that was seen of each."""


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
        """The last look; None: there was none yet, or the connection was lost since."""
        self._connected_s = 0.0
        self._hold_s: float | None = None
        """Since when most workers lapse together; None: they do not."""
        self._held: set[str] = set()
        """Who lapsed since then, whatever became of it."""

    def lost_contact(self) -> None:
        """The API did not answer: with the next answer, everybody's time begins anew."""
        self._looked_s = None

    def look(self, now_s: float, renewals: Mapping[str, Renewal], expected: frozenset[str] = frozenset()) -> None:
        """The workers' Leases as they were listed now; `expected`: workers that there must be, with a Lease or without.

        A pause of the observer as long as a lapse is a lost connection, too.
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
                # New since the last look: somebody made it just now. At the first look it may be as old as can be.
                self._workers[name] = _Worker(renewal, now_s, confirmed=not first)
            elif _is_newer(known, renewal):
                _hear(known, renewal, now_s, confirmed=not first)
        for name, worker in list(self._workers.items()):
            if worker.dead and name not in renewals and name not in expected:
                del self._workers[name]

    def answered(self, worker: str, now_s: float, *, alive: bool) -> None:
        """What came of asking a held worker's pod; none that cannot be told is dead."""
        known = self._workers.get(worker)
        if known is not None and not known.dead and self._is_lapsed(known, now_s):
            known.asked_s = now_s
            known.dead = not alive

    def suspects(self, now_s: float) -> tuple[str, ...]:
        """Who is silent, may be dead, and may be found to be so by asking (`refused`)."""
        living = [name for name, worker in sorted(self._workers.items()) if not worker.dead]
        silent = [name for name in living if self._is_suspect(self._workers[name], now_s)]
        gone = sum(worker.dead and self._silence_s(worker, now_s) < self._lapse_s for worker in self._workers.values())
        return tuple(silent) if 2 * (len(silent) + gone) <= len(living) + gone else ()

    def refused(self, worker: str, now_s: float) -> None:
        """A suspect's address refused a connection: its process, and the pod's that stands in for it, have ended."""
        known = self._workers.get(worker)
        if known is not None and self._is_suspect(known, now_s):
            known.dead = True

    def _is_suspect(self, worker: _Worker, now_s: float) -> bool:
        silence_s = self._silence_s(worker, now_s)
        return not worker.dead and worker.looks >= SUSPECT_LOOKS_MIN and silence_s >= self._suspect_s

    def verdict(self, now_s: float) -> Verdict:
        """What is known now; to be asked after each look."""
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
        """Whether more than half lapse together.

        What began as such ends when none of them is silent any more, or when those that were only late renew in time:
        then fewer lapsed than it looked like.
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
        """Each after one period in doubt, and then once a period."""
        if self._hold_s is None or now_s - self._hold_s < self._lapse_s:
            return False
        return worker.asked_s is None or now_s - worker.asked_s >= self._lapse_s


def _is_newer(known: _Worker, renewal: Renewal) -> bool:
    """Whether it is a renewal, and not what an old list shows."""
    if known.renewal is None:
        return True
    if renewal.incarnation == known.renewal.incarnation:
        return renewal.number > known.renewal.number
    return renewal.number > known.past.get(renewal.incarnation, -1)


def _hear(known: _Worker, renewal: Renewal, now_s: float, *, confirmed: bool) -> None:
    if known.renewal is not None and known.renewal.incarnation != renewal.incarnation:
        known.past.pop(known.renewal.incarnation, None)
        known.past[known.renewal.incarnation] = known.renewal.number
        while len(known.past) > _PAST_MAX:
            del known.past[next(iter(known.past))]
    known.renewal, known.heard_s, known.looks = renewal, now_s, 0
    known.confirmed, known.dead, known.asked_s = confirmed, False, None
