"""What clients sent, the answers they got, and what readers must see. Pure.

See docs/design.md#invariants: I1 to I6, I10.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from sim.violations import require
from tailrace.client.model import SegmentRange
from tailrace.common.names import segment_epoch, segment_number


@dataclass
class Sent:
    """A transaction: its events by routing key, and the answers that its owner got. Times are the loop's seconds."""

    name: str
    events: list[tuple[str, bytes]]
    committed: bool | None = None
    """What it ended as; None: unknown."""
    asked_s: float = 0.0
    epoch: int = 0
    """The epoch in which it began."""
    answered_s: float | None = None
    """When its owner knew that it is committed; None: it never did, or not before others."""

    @property
    def content(self) -> list[bytes]:
        """The events alone."""
        return [event for _, event in self.events]

    def precedes(self, other: Sent) -> bool:
        """Whether its owner knew it committed before the other's commit was asked for.

        Of two that wait to be merged, that of an earlier epoch comes first, see docs/protocol/server.md#transactions.
        """
        if self.answered_s is None or self.epoch > other.epoch:
            return False
        return other.committed is True and self.answered_s <= other.asked_s


@dataclass
class Ledger:
    """What was written to one stream, from its creation to its deletion."""

    name: str
    written: dict[str, list[bytes]] = field(default_factory=lambda: defaultdict(list))
    transactions: list[Sent] = field(default_factory=list)
    released: set[bytes] = field(default_factory=set)
    """What may be missing from the stream, since it was read before the stream was truncated."""

    def event(self, key: str, size: int) -> bytes:
        """The next event of a key; it counts as written."""
        event = f"{self.name}:{key}:{len(self.written[key])}:".encode() + b"x" * size
        self.written[key].append(event)
        return event

    def transaction(self, number: int, keys: Sequence[str], size: int) -> Sent:
        """A transaction with an event for each of the keys, in that order."""
        name = f"{self.name}.txn{number}"
        events = [(key, f"{name}:{key}:{index}:".encode() + b"x" * size) for index, key in enumerate(keys)]
        sent = Sent(name, events)
        self.transactions.append(sent)
        return sent

    @property
    def expected_events(self) -> int:
        """How many events readers will see, as far as is known."""
        committed = sum(len(sent.events) for sent in self.transactions if sent.committed)
        return sum(map(len, self.written.values())) + committed

    def check_read(self, events: Sequence[bytes]) -> None:
        """Everything was given to the readers of a group, once and in order."""
        self._check(events, set(), "read by the group")

    def check_stored(self, pieces: Sequence[Sequence[bytes]]) -> None:
        """Everything that was not truncated is stored; `pieces` are the segments' events, older epochs first."""
        flat = [event for piece in pieces for event in piece]
        self._check(flat, self.released, "stored")
        for piece in pieces:
            self._check_contiguous(piece)

    # -- parts

    def _check(self, events: Sequence[bytes], excused: set[bytes], what: str) -> None:
        what = f"{what} ({self.name})"
        place = {event: index for index, event in enumerate(events)}
        require(len(place) == len(events), f"{len(events) - len(place)} events were {what} twice")
        known = {event for events in self.written.values() for event in events}
        in_transactions = {event for sent in self.transactions for event in sent.content}
        require(place.keys() <= known | in_transactions, f"events were {what} that no client wrote")
        lost = known - place.keys() - excused
        require(not lost, f"{len(lost)} events were not {what}, as {min(lost, default=b'')[:40]!r}")
        for key, written in self.written.items():
            mine = [place[event] for event in written if event in place]
            require(mine == sorted(mine), f"events of {key} were {what} out of order")
        for sent in self.transactions:
            self._check_whole(sent, place, excused, what)
        self._check_commit_order(place, what)
        self._check_one_order(place, what)

    @staticmethod
    def _check_whole(sent: Sent, place: Mapping[bytes, int], excused: set[bytes], what: str) -> None:
        seen = [event in place or event in excused for event in sent.content]
        require(all(seen) or not any(seen), f"{sent.name} was {what} in part: {seen}")
        require(
            sent.committed is None or any(seen) == sent.committed,
            f"{sent.name} ended with committed = {sent.committed}, and was {what}: {any(seen)}",
        )
        for key in {key: None for key, _ in sent.events}:
            mine = [place[event] for own, event in sent.events if own == key and event in place]
            require(mine == sorted(mine), f"events of {key} in {sent.name} were {what} out of order")

    def _check_commit_order(self, place: Mapping[bytes, int], what: str) -> None:
        """Of two transactions that were committed one after the other, readers of a key see the first one first."""
        for first in self.transactions:
            for second in self.transactions:
                if not first.precedes(second):
                    continue
                for key in {key: None for key, _ in first.events}:
                    earlier = [place[event] for own, event in first.events if own == key and event in place]
                    later = [place[event] for own, event in second.events if own == key and event in place]
                    require(
                        not earlier or not later or max(earlier) < min(later),
                        f"{second.name}, committed after {first.name}, was {what} before it for {key}",
                    )

    def _check_one_order(self, place: Mapping[bytes, int], what: str) -> None:
        """Readers of any two keys see the same one of two transactions first."""
        places: list[tuple[str, dict[str, int]]] = []
        for sent in self.transactions:
            mine = {key: place[event] for key, event in sent.events if event in place}
            places.append((sent.name, mine))
        for (one, first), (other, second) in itertools.combinations(places, 2):
            orders = {first[key] < second[key] for key in first.keys() & second.keys()}
            require(len(orders) < 2, f"{one} and {other} were {what} in both orders")

    def _check_contiguous(self, piece: Sequence[bytes]) -> None:
        """A transaction's events lie next to each other in a segment."""
        owner = {event: sent.name for sent in self.transactions for event in sent.content}
        left: set[str] = set()
        before = ""
        for event in piece:
            now = owner.get(event, "")
            if now == before:
                continue
            require(now not in left, f"other events lie between those of {now}")
            if before:
                left.add(before)
            before = now


def covers_key_space(ranges: Iterable[tuple[float, float]]) -> bool:
    """Whether the ranges lie side by side from 0 to 1."""
    end = 0.0
    for low, high in sorted(ranges):
        if low != end or high <= low:
            return False
        end = high
    return end == 1.0


def check_epochs(epochs: Sequence[Sequence[SegmentRange]]) -> dict[int, tuple[float, float]]:
    """Every epoch covers the key space, and only duplicates share a number; the ranges of all segments by id."""
    ranges: dict[int, tuple[float, float]] = {}
    numbers: dict[int, tuple[float, float]] = {}
    for epoch, segments in enumerate(epochs):
        require(covers_key_space(segment.key_range for segment in segments), f"epoch {epoch} does not cover [0, 1)")
        for segment in segments:
            identifier = segment.identifier
            require(segment_epoch(identifier) <= epoch, f"epoch {epoch} has a segment of epoch {identifier >> 32}")
            require(
                segment_epoch(identifier) == epoch or identifier in ranges, f"epoch {epoch} has a segment of its past"
            )
            number = segment_number(identifier)
            owned = numbers.setdefault(number, segment.key_range)
            require(owned == segment.key_range, f"segments of the number {number} have different key ranges")
            own = (segment.key_range.low, segment.key_range.high)
            require(ranges.setdefault(identifier, own) == own, f"segment {identifier} changed its range")
    return ranges


def check_cut(cut: Mapping[int, int], ranges: Mapping[int, tuple[float, float]], what: str) -> None:
    """A cut that was handed out covers the key space exactly (I10)."""
    require(set(cut) <= set(ranges), f"{what} names segments that the stream never had")
    require(covers_key_space(ranges[identifier] for identifier in cut), f"{what} does not cover [0, 1): {dict(cut)}")
