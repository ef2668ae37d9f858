"""Compare the outcomes that writers saw with what a full read from the head returns. Pure: no clock, no network.

An event holds everything that the checker needs: its writer, its routing key, its number under that key, its
transaction, and a CRC32C of all of it. A routing key belongs to one writer or one transaction, and its events are
numbered from 0 in the order of writing.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from crc32c import crc32c

CHECKSUM_CHARACTERS: Final = 8


class Kind(enum.Enum):
    """What may be wrong."""

    INVENTED = "invented"
    """The event was never written, or its bytes are not those that were written."""
    LOST = "lost"
    """The event was acknowledged (or its transaction committed) and is not there."""
    TWICE = "twice"
    REORDERED = "reordered"
    GAP = "gap"
    """A later event of the key is there, this earlier one is not."""
    TORN = "torn"
    """Some events of a transaction are there, some are not."""
    SPREAD = "spread"
    """Other events lie between those of one transaction in a segment."""
    RISEN = "risen"
    """Events of a transaction that was aborted or never committed."""


class Violation(NamedTuple):
    """One broken promise."""

    kind: Kind
    about: str


class Outcome(enum.Enum):
    """What the owner of a transaction knows of it."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


class Event(NamedTuple):
    """A decoded event. ``transaction`` is empty for plain events."""

    key: str
    number: int
    transaction: str


def encode(event: Event, length_bytes: int) -> bytes:
    """The bytes of an event: checksum, then ``key:number:transaction:`` and filling up to `length_bytes` if possible.

    The filling depends on the event, so that swapped pieces of two events do not pass.
    """
    head = f"{event.key}:{event.number}:{event.transaction}:".encode()
    wanted = max(0, length_bytes - CHECKSUM_CHARACTERS - len(head))
    body = head + (head * (wanted // len(head) + 1))[:wanted]
    return b"%08x" % crc32c(body) + body


def decode(data: bytes) -> Event | None:
    """The event that `data` is; None when these bytes were never an event."""
    body = data[CHECKSUM_CHARACTERS:]
    if data[:CHECKSUM_CHARACTERS] != b"%08x" % crc32c(body):
        return None
    try:
        key, number, transaction, _ = body.split(b":", 3)
        return Event(key.decode(), int(number), transaction.decode())
    except ValueError:
        return None


@dataclass(slots=True)
class KeyRecord:
    """Events of one routing key: how many were written, which were acknowledged."""

    written: int = 0
    acknowledged: set[int] = field(default_factory=set)


@dataclass(slots=True)
class TransactionRecord:
    """A transaction: how many events of each routing key it has, and what became of it."""

    events: Counter[str] = field(default_factory=Counter)
    outcome: Outcome = Outcome.UNKNOWN


@dataclass(slots=True)
class History:
    """What was written and acknowledged. Writers and transactions record here, `check` compares."""

    keys: dict[str, KeyRecord] = field(default_factory=dict)
    transactions: dict[str, TransactionRecord] = field(default_factory=dict)

    def write(self, key: str, count: int = 1) -> range:
        """The next numbers of a key; record them before the events are handed to a client."""
        record = self.keys.setdefault(key, KeyRecord())
        numbers = range(record.written, record.written + count)
        record.written += count
        return numbers

    def acknowledge(self, key: str, numbers: Iterable[int]) -> None:
        """Note these events as acknowledged."""
        self.keys[key].acknowledged.update(numbers)

    def begin(self, transaction: str) -> TransactionRecord:
        """Add a transaction; its outcome is unknown until it is noted."""
        return self.transactions.setdefault(transaction, TransactionRecord())

    @property
    def acknowledged(self) -> int:
        """Acknowledged events outside transactions."""
        return sum(len(record.acknowledged) for record in self.keys.values())

    def check(self, segments: Sequence[Sequence[bytes]]) -> list[Violation]:
        """Everything that is wrong with a full read; `segments` are the events of each segment, older segments first.

        Later segments hold later events of a key, so the order of the segments is the order across scales.
        """
        violations: list[Violation] = []
        plain: dict[str, list[int]] = {}
        inside: dict[str, dict[str, list[int]]] = {}
        for events in segments:
            self._sort_out(events, plain, inside, violations)
        for key, record in self.keys.items():
            violations += _check_key(key, record, plain.get(key, []))
        for name, transaction in self.transactions.items():
            violations += _check_transaction(name, transaction, inside.get(name, {}))
        return violations

    def _sort_out(
        self,
        events: Sequence[bytes],
        plain: dict[str, list[int]],
        inside: dict[str, dict[str, list[int]]],
        violations: list[Violation],
    ) -> None:
        """Take the events of one segment apart, by key and by transaction."""
        ended: set[str] = set()
        before = ""
        for data in events:
            event = decode(data)
            if event is None or not self._was_written(event):
                violations.append(Violation(Kind.INVENTED, f"{data[:80]!r} ({len(data)} bytes)"))
                continue
            if event.transaction != before:
                if event.transaction in ended:
                    violations.append(Violation(Kind.SPREAD, event.transaction))
                if before:
                    ended.add(before)
                before = event.transaction
            if event.transaction:
                inside.setdefault(event.transaction, {}).setdefault(event.key, []).append(event.number)
            else:
                plain.setdefault(event.key, []).append(event.number)

    def _was_written(self, event: Event) -> bool:
        if event.transaction:
            transaction = self.transactions.get(event.transaction)
            return transaction is not None and 0 <= event.number < transaction.events[event.key]
        record = self.keys.get(event.key)
        return record is not None and 0 <= event.number < record.written


def _check_key(key: str, record: KeyRecord, found: list[int]) -> list[Violation]:
    violations = _check_order(key, found)
    there = set(found)
    lost = sorted(record.acknowledged - there)
    violations += [Violation(Kind.LOST, f"{key}:{number}") for number in lost]
    unsure = set(range(max(there, default=0))) - there - record.acknowledged
    violations += [Violation(Kind.GAP, f"{key}:{number}") for number in sorted(unsure)]
    return violations


def _check_order(name: str, found: list[int]) -> list[Violation]:
    violations = [
        Violation(Kind.TWICE, f"{name}:{number} is there {count} times")
        for number, count in Counter(found).items()
        if count > 1
    ]
    greatest = -1
    for number in found:
        if number < greatest:
            violations.append(Violation(Kind.REORDERED, f"{name}:{number} after {greatest}"))
        greatest = max(greatest, number)
    return violations


def _check_transaction(name: str, record: TransactionRecord, found: dict[str, list[int]]) -> list[Violation]:
    violations = []
    for key, numbers in found.items():
        violations += _check_order(f"{name}/{key}", numbers)
    there = sum(len(set(numbers)) for numbers in found.values())
    expected = record.events.total()
    if not there:
        if record.outcome is Outcome.COMMITTED and expected:
            violations.append(Violation(Kind.LOST, f"transaction {name}"))
    elif record.outcome is Outcome.ABORTED:
        violations.append(Violation(Kind.RISEN, f"transaction {name}: {there} events"))
    elif there < expected:
        violations.append(Violation(Kind.TORN, f"transaction {name}: {there} of {expected} events"))
    return violations
