"""What owners of containers did, the answers that clients got, and what follows.

See docs/design.md#invariants, I1 to I7.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass, field
from typing import NamedTuple

from sim.violations import require

STALE_READ_MAX_S = 2.0
"""So long may an owner that has a successor answer reads as if it had none (docs/design.md#ownership)."""
_TOLERANCE_S = 0.01
"""A look and what follows it take some turns of the loop."""


class Opening(NamedTuple):
    """A log was opened: the first sequence that its owner could write."""

    epoch: int
    next_sequence: int
    owner: str


class Owners:
    """Who opened which container's log with which epoch, and which frames each of them knows to be durable.

    It is called from inside the servers, where nothing may be raised: `check` does that later.
    """

    def __init__(self) -> None:
        self._broken: list[str] = []
        self._memory = 0
        self.openings: defaultdict[int, list[Opening]] = defaultdict(list)
        self._taken: defaultdict[int, dict[int, str]] = defaultdict(dict)
        self._last_frame: defaultdict[int, dict[int, int]] = defaultdict(dict)

    def known(self, container: int) -> tuple[int, int]:
        """What an epoch that is asked for now must be above, and how often that was forgotten."""
        return max(self._taken[container], default=0), self._memory

    def unnamed(self, container: int, owner: str) -> None:
        """A worker got an epoch of a container that no map gave to it."""
        self._require(False, f"{owner} takes container {container}, which the map has given to others")

    def took(self, container: int, floor: int, epoch: int, owner: str, known: tuple[int, int]) -> None:
        """A worker got an epoch: no other has it, and it is above the floor and what was `known` before."""
        self._require(epoch > floor, f"{owner} got epoch {epoch} of container {container}, it must be above {floor}")
        greatest, memory = known
        if memory != self._memory:
            return
        self._require(epoch > greatest, f"{owner} got epoch {epoch} of container {container} after {greatest}")
        other = self._taken[container].setdefault(epoch, owner)
        self._require(other is owner, f"{owner} got epoch {epoch} of container {container}, which {other} has")

    def forget_epochs(self) -> None:
        """The source of epochs lost its memory: it may start from nothing, and only the logs know better."""
        self._memory += 1
        self._taken.clear()

    def opened(self, container: int, epoch: int, next_sequence: int, owner: str) -> None:
        """A log was opened. Frames that an earlier owner knows to be durable must be below `next_sequence`."""
        known = self.openings[container]
        for other in known:
            self._require(other.epoch != epoch, f"{owner} opened container {container} with the epoch of {other}")
        known.append(Opening(epoch, next_sequence, owner))
        for earlier, sequence in self._last_frame[container].items():
            self._require(
                earlier > epoch or sequence < next_sequence,
                f"{owner} opened container {container} with epoch {epoch} at frame {next_sequence}, and "
                f"epoch {earlier} had acknowledged frame {sequence}",
            )

    def acknowledged(self, container: int, epoch: int, sequence: int) -> None:
        """A frame is durable, and its owner knows it; no later owner may have begun at or before it."""
        frames = self._last_frame[container]
        frames[epoch] = max(sequence, frames.get(epoch, -1))
        for opening in self.openings[container]:
            self._require(
                opening.epoch <= epoch or sequence < opening.next_sequence,
                f"epoch {epoch} of container {container} acknowledged frame {sequence} after {opening}",
            )

    def _require(self, kept: bool, promise: str) -> None:
        if not kept:
            self._broken.append(promise)

    def check(self) -> None:
        """Raise Violation when an owner did what it may not do."""
        require(not self._broken, "; ".join(self._broken[:3]))

    def takeovers(self) -> int:
        """How often logs were opened."""
        return sum(map(len, self.openings.values()))


class Growth:
    """Figures that only grow: what was known to be durable at which time."""

    def __init__(self) -> None:
        self._times: defaultdict[str, list[float]] = defaultdict(list)
        self._values: defaultdict[str, list[int]] = defaultdict(list)

    def note(self, name: str, at_s: float, value: int) -> None:
        """From now on it is at least `value`."""
        if value > self.at(name, at_s):
            self._times[name].append(at_s)
            self._values[name].append(value)

    def at(self, name: str, at_s: float) -> int:
        """The greatest value that was noted by then."""
        place = bisect_right(self._times[name], at_s)
        return self._values[name][place - 1] if place else 0

    def check_seen(self, name: str, asked_at_s: float, value: int, who: str) -> None:
        """An answer to what was asked then may miss only what is younger than the bound on stale reads."""
        wanted = self.at(name, asked_at_s - STALE_READ_MAX_S - _TOLERANCE_S)
        require(value >= wanted, f"{who} returned {value} of {name}; {wanted} were there {STALE_READ_MAX_S} s before")


@dataclass(slots=True)
class Update:
    """A conditional update of a table's key: its count is one above that of the version that it replaces."""

    expected: int
    count: int
    value: bytes
    began_at_s: float
    ended_at_s: float = float("inf")
    version: int | None = None
    """None: it is not known whether it happened; ``REFUSED``: it did not."""


REFUSED = -(2**62)


@dataclass(slots=True)
class KeyHistory:
    """Everything that was done to one key of a table by conditional updates."""

    updates: list[Update] = field(default_factory=list)

    def check(self, name: str, found: bytes | None, version: int) -> None:
        """Linearizable: each version was replaced once, later updates have greater versions, nothing was lost."""
        done = [update for update in self.updates if update.version is not None and update.version != REFUSED]
        unsure = sum(update.version is None for update in self.updates)
        for kind, seen in (
            ("replaced", [update.expected for update in done]),
            ("given", [update.version for update in done]),
            ("counted", [update.count for update in done]),
        ):
            require(len(seen) == len(set(seen)), f"a version of {name} was {kind} twice: {sorted(map(str, seen))}")
        for one in done:
            for other in done:
                if one.ended_at_s < other.began_at_s:
                    require(
                        (one.version or 0) < (other.version or 0),
                        f"{name} got version {other.version} after it had {one.version}",
                    )
        count = int(found.split(b":")[0]) if found else 0
        require(
            len(done) <= count <= len(done) + unsure,
            f"{name} counts {count} updates, {len(done)} were acknowledged and {unsure} are not known",
        )
        require(
            not done or version >= max(update.version or 0 for update in done),
            f"{name} has version {version} at the end, which is older than an acknowledged one",
        )
        wrote = {update.value for update in self.updates if update.version != REFUSED}
        require(found is None or found in wrote, f"{name} holds {found!r}, which no client wrote")
