"""The record of a query that writes a stream: its bytes, and which run may write which batch. Pure.

docs/formats/spark.md describes the bytes, docs/spark-sink.md#exactly-once the rules.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import msgspec

from tailrace.common import limits
from tailrace.common.errors import BadRequestError, CorruptionError, IllegalStateError
from tailrace.pipelines.checked_record import pack, unpack

if TYPE_CHECKING:
    from collections.abc import Sequence

MAGIC: Final = b"TRSQ"
VERSION: Final = 3
NO_BATCH: Final = -1
UNKNOWN: Final = -1
"""The incarnation in records of version 1, and the rows in those before version 3."""


@dataclass(frozen=True)
class Pending:
    """The batch that is being committed, and its transactions in the order in which they become visible."""

    batch: int
    transactions: tuple[uuid.UUID, ...]


@dataclass(frozen=True)
class QueryRecord:
    """What is known of a query: its starts in their order, its last complete batch, and the batch being committed.

    ``last_batch`` is NO_BATCH before the first one. ``incarnation`` is that of the stream. ``rows`` are those of the
    batch being committed, or else of the last complete one.
    """

    query: str
    stream: str
    runs: tuple[str, ...] = ()
    last_batch: int = NO_BATCH
    pending: Pending | None = None
    incarnation: int = UNKNOWN
    rows: int = UNKNOWN

    def on(self, incarnation: int) -> QueryRecord:
        """Return the record for that incarnation of the stream; it has no batch of an earlier one.

        Raises:
            IllegalStateError: the stream was deleted and created again since.
        """
        if self.incarnation > incarnation:
            raise IllegalStateError(f"{self.stream} was deleted and created again: this run of {self.query} ends")
        if self.incarnation in (incarnation, UNKNOWN):
            return replace(self, incarnation=incarnation)
        return replace(self, incarnation=incarnation, last_batch=NO_BATCH, pending=None, rows=UNKNOWN)

    def started(self, run: str) -> QueryRecord:
        """Return the record with `run` as the newest start. Raises IllegalStateError: a later start has taken over."""
        if self.runs and self.runs[-1] == run:
            return self
        if run in self.runs:
            raise IllegalStateError(
                f"query {self.query} was started again elsewhere, and writes {self.stream} from there: this run ends"
            )
        return replace(self, runs=(*self.runs, run)[-limits.SPARK_RUNS_MAX :])

    def has(self, batch: int) -> bool:
        """Return whether `batch` is the last complete one.

        Raises:
            IllegalStateError: a later batch is complete; the query's checkpoint is older than what it has written.
        """
        if batch < self.last_batch:
            raise IllegalStateError(
                f"query {self.query} has written batch {self.last_batch} to {self.stream}, and now comes with batch "
                f"{batch}: its checkpoint is an old copy. Start it with its newest checkpoint, or with a new one"
            )
        return batch == self.last_batch

    def check_repeated(self, rows: int) -> None:
        """Check that rows may be those of the last complete batch once more.

        Raises:
            IllegalStateError: there are more than it has; the checkpoint was copied before that batch was planned.
        """
        if rows > self.rows != UNKNOWN:
            raise IllegalStateError(
                f"query {self.query} has written batch {self.last_batch} to {self.stream} with {self.rows} rows, and "
                f"now comes with {rows}: its checkpoint is an old copy, or a repeated batch has other rows. "
                "Start it with its newest checkpoint, or once with unresolved=keep (the batch counts as written)"
            )

    def committing(self, batch: int, transactions: Sequence[uuid.UUID], rows: int = UNKNOWN) -> QueryRecord:
        """Return the record with a batch to commit. Raises BadRequestError: too many transactions."""
        assert self.pending is None
        assert batch > self.last_batch
        if len(transactions) > limits.SPARK_TRANSACTIONS_MAX:
            raise BadRequestError(
                f"batch {batch} has {len(transactions)} partitions with rows, at most {limits.SPARK_TRANSACTIONS_MAX} "
                "are possible: write fewer with coalesce()"
            )
        return replace(self, pending=Pending(batch, tuple(transactions)), rows=rows)

    def committed(self) -> QueryRecord:
        """Return the record after the pending batch is visible."""
        assert self.pending is not None
        return replace(self, last_batch=self.pending.batch, pending=None)

    def given_up(self) -> QueryRecord:
        """Return the record without the pending batch, of which nothing is visible."""
        assert self.pending is not None
        return replace(self, pending=None, rows=UNKNOWN)


class _Payload(msgspec.Struct, frozen=True, array_like=True):
    query: str
    stream: str
    runs: tuple[str, ...]
    last_batch: int
    pending_batch: int
    transactions: bytes
    incarnation: int = UNKNOWN
    rows: int = UNKNOWN


_DECODER: Final = msgspec.msgpack.Decoder(_Payload)


def encode(record: QueryRecord) -> bytes:
    """Return the bytes of a record."""
    pending = record.pending or Pending(NO_BATCH, ())
    payload = msgspec.msgpack.encode(
        _Payload(
            record.query,
            record.stream,
            record.runs,
            record.last_batch,
            pending.batch,
            b"".join(each.bytes for each in pending.transactions),
            record.incarnation,
            record.rows,
        )
    )
    return pack(MAGIC, VERSION, payload)


def decode(data: bytes, place: str) -> QueryRecord:
    """Return the record of stored bytes.

    Raises:
        CorruptionError: they are damaged. FormatVersionError: a newer program wrote them.
    """
    found = unpack(MAGIC, VERSION, data, place, _DECODER)
    ids = found.transactions
    if len(ids) % 16 or (found.pending_batch < 0 and ids):
        raise CorruptionError(place, "the transactions of the record do not fit its batch")
    transactions = tuple(uuid.UUID(bytes=ids[at : at + 16]) for at in range(0, len(ids), 16))
    pending = Pending(found.pending_batch, transactions) if found.pending_batch >= 0 else None
    return QueryRecord(found.query, found.stream, found.runs, found.last_batch, pending, found.incarnation, found.rows)
