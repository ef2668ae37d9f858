"""Define and encode the controller's durable records.

See docs/formats/controller.md, docs/design.md#controller-metadata, docs/design.md#controller.

Every value in the metadata tables is MessagePack in an envelope of magic, kind, version, length and CRC32C. Fields are
encoded by name, so version N reads N-1; a newer version is refused. Each stream has one mutable root, `StreamRecord`,
that holds all decisions. Other records are immutable, or belong to one transaction, writer or chunk.
"""

from __future__ import annotations

import struct
from typing import Any, Final, TypeVar

import msgspec
from crc32c import crc32c

from tailrace.common.errors import CorruptionError, FormatVersionError
from tailrace.common.stream_policies import StreamConfig, StreamDataRetention
from tailrace.controller.metadata.model import Epoch, RecordedCut, StreamSegment, StreamState, TruncationReason

# ---- intents: the workflow that a stream runs; `intent_id` is random, so equal bytes are the same intent


class CreateIntent(msgspec.Struct, frozen=True, tag="create"):
    """Create the segments of epoch 0, the scope's entry and the mark stream."""

    intent_id: bytes


class UpdateIntent(msgspec.Struct, frozen=True, tag="update"):
    """Apply the root's new configuration to segments and lists."""

    intent_id: bytes


class ScaleIntent(msgspec.Struct, frozen=True, tag="scale"):
    """Replace `sealed` segments of `old_epoch` by `created` ones, when no commit pass is running.

    ``reason`` is a `ScaleReason`, "" in intents of an earlier version.
    """

    intent_id: bytes
    old_epoch: int
    sealed: tuple[int, ...]
    created: tuple[StreamSegment, ...]
    reason: str = ""


class TruncateIntent(msgspec.Struct, frozen=True, tag="truncate"):
    """Truncate at the root's cut and delete segments before it, from `previous` (None: the beginning) on.

    ``reason`` is a `TruncationReason`.
    """

    intent_id: bytes
    previous: dict[int, int] | None
    reason: str = TruncationReason.MANUAL


class SealIntent(msgspec.Struct, frozen=True, tag="seal"):
    """Seal the active segments when all transactions have completed."""

    intent_id: bytes


class DeleteIntent(msgspec.Struct, frozen=True, tag="delete"):
    """Delete every segment, the mark stream, the records and the scope's entry."""

    intent_id: bytes


Intent = CreateIntent | UpdateIntent | ScaleIntent | TruncateIntent | SealIntent | DeleteIntent


# ---- records of a stream, all in its bucket's table


class Rolling(msgspec.Struct, frozen=True):
    """A commit pass that rolls over a scale (docs/controller.md#commits-that-roll-over-a-scale).

    The batch's transactions have the key ranges of `transaction_epoch`; the epoch that was active is `old_epoch`. The
    pass ends with two more epochs: a duplicate of the former, then one of the latter. ``intent_id`` is random.
    ``refused`` holds the transactions of the batch that turned out to be impossible to merge, once they are merged.
    """

    intent_id: bytes
    old_epoch: int
    transaction_epoch: int
    refused: tuple[bytes, ...] = ()

    @property
    def merged_epoch(self) -> int:
        """Return the number of the epoch into whose segments the transactions merge."""
        return self.old_epoch + 1

    @property
    def new_epoch(self) -> int:
        """Return the number of the epoch that is active afterwards."""
        return self.old_epoch + 2


class StreamRecord(msgspec.Struct, frozen=True):
    """The root of a stream: all its decisions, in one record with one version.

    Transactions are named by their 16 bytes. ``open_count`` of them are open, which `OpenShard` records list;
    ``open_digest`` changes with each of them. ``open_transactions`` holds those that a program before version 3 opened,
    until the next change of one. ``commit_queue`` is in the order of the commit calls; ``commit_batch`` is
    its part that is being merged; ``rolling`` is there when that part rolls over a scale. ``completed_next`` counts all
    completed transactions; ``completed_first`` is the first one that is still remembered. A deleted stream keeps its
    root, so that a stream of the same name continues `incarnation`, `next_segment_number` and `transaction_counter`
    (docs/protocol/naming.md#names). ``owner`` is the resource that claimed the stream (ADR 0014), "" for none; a new
    stream of the name has none.
    """

    incarnation: int
    state: StreamState
    config: StreamConfig
    created_ms: int
    next_segment_number: int
    active_epoch: int = 0
    transaction_counter: int = 0
    truncation: dict[int, int] | None = None
    sealed_bytes: int = 0
    intent: Intent | None = None
    open_transactions: tuple[bytes, ...] = ()
    commit_queue: tuple[bytes, ...] = ()
    commit_batch: tuple[bytes, ...] = ()
    abort_queue: tuple[bytes, ...] = ()
    completed_next: int = 0
    completed_first: int = 0
    writers: tuple[str, ...] = ()
    owner: str = ""
    rolling: Rolling | None = None
    open_count: int = 0
    open_digest: int = 0

    @property
    def has_open(self) -> bool:
        """Return whether a transaction is open."""
        return bool(self.open_count or self.open_transactions)

    @property
    def has_transactions(self) -> bool:
        """Return whether a transaction has not completed."""
        return bool(self.has_open or self.commit_queue or self.commit_batch or self.abort_queue)

    @property
    def is_idle(self) -> bool:
        """Return whether the stream has no work."""
        return self.intent is None and not self.has_transactions


class OpenShard(msgspec.Struct, frozen=True):
    """Some of a stream's open transactions, by their numbers (docs/controller.md#open-transactions)."""

    transactions: tuple[bytes, ...] = ()


class SealedRecord(msgspec.Struct, frozen=True):
    """Final sizes of the segments that the transition to `epoch` sealed, and the sum of all sealed bytes.

    Sealing the stream writes one for ``active_epoch + 1``.
    """

    epoch: int
    sealed_ms: int
    sizes: dict[int, int]
    total_bytes: int


class TransactionRecord(msgspec.Struct, frozen=True):
    """One transaction until it completes. The root's lists hold its state. Times are wall-clock milliseconds.

    ``nonce`` is random, so that a controller never takes another controller's record for its own. ``lease_ms`` is the
    length of the lease that ``expires_ms`` ends; 0 in records of versions that did not store it. Each renewal makes
    ``expires_ms`` greater, by 1 at least, so that it differs from those before.
    """

    transaction_id: bytes
    epoch: int
    nonce: bytes
    created_ms: int
    expires_ms: int
    max_expires_ms: int
    writer: str = ""
    timestamp: int | None = None
    lease_ms: int = 0


class CompletedTransaction(msgspec.Struct, frozen=True):
    """The outcome of a completed transaction; replaces its `TransactionRecord`."""

    transaction_id: bytes
    committed: bool
    completed_ms: int


class CompletedChunk(msgspec.Struct, frozen=True):
    """Completed transactions in order of completion, a bounded number in each chunk."""

    transactions: tuple[CompletedTransaction, ...]


class Subscriber(msgspec.Struct, frozen=True):
    """A reader group whose position holds back retention; ``cut`` is None until it published one.

    ``published_ms`` is when it did; 0 for a cut that an earlier version stored.
    """

    group_id: str
    generation: int
    cut: dict[int, int] | None = None
    published_ms: int = 0


class IndexedSubscriber(msgspec.Struct, frozen=True, array_like=True):
    """A subscriber in the index: the id of its group, and whether it has published a cut.

    Controllers of an earlier version read both; here only the version of the index counts.
    """

    group_id: str
    published: bool


class SubscribersRecord(msgspec.Struct, frozen=True):
    """The subscribers of a stream by ``scope/group``.

    ``index`` names them; each is in a `Subscriber` of its own. Programs before version 3 stored all of them in
    ``subscribers``; ``index`` is None then.
    """

    subscribers: dict[str, Subscriber] = {}
    index: dict[str, IndexedSubscriber] | None = None


class RetentionTruncation(msgspec.Struct, frozen=True):
    """A truncation by the stream's policy: when, why, and the bytes before the cut, of which it freed some."""

    truncated_ms: int
    reason: str
    before_bytes: int
    freed_bytes: int


class RetentionRecord(msgspec.Struct, frozen=True):
    """A stream's retention set, oldest first, and what retention did last. Each cut is in a `RetentionCut`.

    ``next_number`` is that of the next cut. ``applied_ms`` is the time of the last round without an error. ``seen_ms``
    is one that was too far from it, which a later round is to confirm; 0: there is none.
    """

    next_number: int = 0
    recorded: tuple[RecordedCut, ...] = ()
    last: RetentionTruncation | None = None
    applied_ms: int = 0
    seen_ms: int = 0


class RetentionCut(msgspec.Struct, frozen=True):
    """A cut of the retention set."""

    cut: dict[int, int]


class RetainedStream(msgspec.Struct, frozen=True):
    """Lists a stream that may have a retention policy, for the job that applies it."""

    scope: str
    stream: str


class MarkedStream(msgspec.Struct, frozen=True):
    """Lists a stream that may have writers' marks, for the job that writes watermarks."""

    scope: str
    stream: str
    listed_ms: int


class WriterMark(msgspec.Struct, frozen=True):
    """A writer's last noted time with its position (docs/protocol/server.md#watermarks)."""

    timestamp: int
    position: dict[int, int]
    noted_ms: int
    alive: bool = True


# ---- records of scopes


class ScopeRecord(msgspec.Struct, frozen=True):
    """Entry of the table of scopes. `nonce` names the scope's own table, so a scope created again has a new table."""

    nonce: bytes
    created_ms: int
    deleting: bool = False
    recursive: bool = False


class ScopeStreamEntry(msgspec.Struct, frozen=True):
    """A stream in its scope's table. Repeats the tags, by which lists by tag are decided.

    ``incarnation`` is that of the listed stream; entries of older versions have 0. ``leaving`` are tags that the stream
    has no more and that its scope's index of tags may still have.
    """

    tags: tuple[str, ...] = ()
    incarnation: int = 0
    leaving: tuple[str, ...] = ()


class TaggedStream(msgspec.Struct, frozen=True):
    """An entry of a scope's index of tags: the stream may have the tag; its entry in the scope's table decides.

    ``nonce`` is random, because each write must differ from an earlier equal one.
    """

    tag: str
    stream: str
    nonce: bytes


class ReaderGroupRecord(msgspec.Struct, frozen=True):
    """A reader group's configuration (docs/protocol/controller.md#messages), returned unchanged.

    Cuts are (scope, stream, positions). ``intent``: "create", "update" or "delete" while that workflow runs;
    ``unsubscribe`` lists the ``scope/stream`` that an update removes. ``state_incarnation``: while the group is being
    created, which incarnation of its state stream that may create; None: any, in records of older versions.
    """

    group_id: str
    generation: int
    retention: StreamDataRetention
    refresh_time_ms: int
    automatic_checkpoint_interval_ms: int
    max_outstanding_checkpoints: int
    rollover_size_bytes: int
    starting_cuts: tuple[tuple[str, str, dict[int, int]], ...]
    ending_cuts: tuple[tuple[str, str, dict[int, int]], ...]
    intent: str = ""
    unsubscribe: tuple[str, ...] = ()
    state_incarnation: int | None = None


class TableRecord(msgspec.Struct, frozen=True):
    """A key-value table. ``intent``: "create" or "delete" while that workflow runs.

    See docs/protocol/naming.md#key-value-tables.

    ``epoch`` is a random part of its segments' names. A table that is created again under the same name has other
    segments, so a late deletion of the old ones does no harm. Tables of older versions have 0.
    """

    nonce: bytes
    partitions: int
    primary_key_length: int
    secondary_key_length: int
    rollover_size_bytes: int
    created_ms: int
    intent: str = ""
    epoch: int = 0


class PendingRecord(msgspec.Struct, frozen=True):
    """Lists a stream, reader group, table or scope that may have work to resume; `what` is its kind.

    ``instance`` is the controller that runs the work; empty in records of versions before there were instances.
    """

    what: str
    scope: str
    name: str
    instance: str = ""


class InstanceRecord(msgspec.Struct, frozen=True):
    """A running controller. ``beat`` rises with each of its heartbeats; ``endpoints`` are ``host:port`` for clients.

    ``indexes`` is 1 when its workflow steps keep the indexes of tags, and 0 of earlier versions.
    """

    instance: str
    beat: int
    endpoints: tuple[str, ...] = ()
    indexes: int = 0


class BucketsRecord(msgspec.Struct, frozen=True):
    """The instance that owns each bucket, by the bucket's number; ``epoch`` rises with each assignment."""

    epoch: int
    owners: tuple[str, ...]


# ---- encoding

MAGIC: Final = b"TRCM"
HEADER: Final = struct.Struct(">4sBBII")
"""Magic, kind, version, payload length, CRC32C of kind, version and payload."""

Record = (
    StreamRecord
    | Epoch
    | SealedRecord
    | TransactionRecord
    | CompletedTransaction
    | CompletedChunk
    | SubscribersRecord
    | Subscriber
    | OpenShard
    | WriterMark
    | ScopeRecord
    | ScopeStreamEntry
    | TaggedStream
    | ReaderGroupRecord
    | TableRecord
    | PendingRecord
    | InstanceRecord
    | BucketsRecord
    | RetentionRecord
    | RetentionCut
    | RetainedStream
    | MarkedStream
)
R = TypeVar("R", bound=msgspec.Struct)

_KINDS: Final[dict[type[msgspec.Struct], int]] = {
    StreamRecord: 1,
    Epoch: 2,
    SealedRecord: 3,
    TransactionRecord: 4,
    CompletedTransaction: 5,
    CompletedChunk: 6,
    SubscribersRecord: 7,
    WriterMark: 8,
    ScopeRecord: 9,
    ScopeStreamEntry: 10,
    ReaderGroupRecord: 11,
    TableRecord: 12,
    PendingRecord: 13,
    InstanceRecord: 14,
    BucketsRecord: 15,
    RetentionRecord: 16,
    RetentionCut: 17,
    RetainedStream: 18,
    MarkedStream: 19,
    Subscriber: 20,
    OpenShard: 21,
    TaggedStream: 22,
}
_BY_NUMBER: Final = {number: kind for kind, number in _KINDS.items()}
VERSION: Final = 3
"""The newest version. A record has the version of the first programs that would not damage it (`_version_of`)."""
_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODERS: Final[dict[type[msgspec.Struct], msgspec.msgpack.Decoder[Any]]] = {
    kind: msgspec.msgpack.Decoder(kind) for kind in _KINDS
}


def encode(record: Record) -> bytes:
    """Return the stored form of a record."""
    kind = _KINDS[type(record)]
    version = _version_of(record)
    payload = _ENCODER.encode(record)
    return HEADER.pack(MAGIC, kind, version, len(payload), _checksum(kind, version, payload)) + payload


def _version_of(record: Record) -> int:
    """Return the version of a record: earlier programs refuse it, where they would drop what it holds."""
    match record:
        case StreamRecord() if record.open_count:
            return 3
        case StreamRecord() if record.rolling is not None:
            return 2
        case SubscribersRecord() if record.index is not None:
            return 3
        case _:
            return 1


def decode(kind: type[R], data: bytes, place: str) -> R:
    """Decode a record of a kind; `place` names table and key in errors.

    Raises:
        FormatVersionError: a newer version wrote it. CorruptionError: the bytes are damaged.
    """
    if len(data) < HEADER.size:
        raise CorruptionError(place, f"the record has {len(data)} bytes, less than its header")
    magic, number, version, length, checksum = HEADER.unpack_from(data)
    payload = data[HEADER.size :]
    if magic != MAGIC or length != len(payload) or _checksum(number, version, payload) != checksum:
        raise CorruptionError(place, "magic, length or checksum of the record is wrong")
    if number != _KINDS[kind]:
        raise CorruptionError(place, f"the record has kind {number}, expected {kind.__name__}")
    if version > VERSION:
        raise FormatVersionError(
            f"{place}: the record has version {version}, this program reads up to {VERSION}; upgrade it"
        )
    try:
        record: R = _DECODERS[kind].decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CorruptionError(place, str(error)) from error
    return record


def kind_of(data: bytes) -> type[msgspec.Struct] | None:
    """Return the kind that the stored bytes name; None when they are not a record."""
    return _BY_NUMBER.get(data[len(MAGIC)]) if len(data) >= HEADER.size and data.startswith(MAGIC) else None


def _checksum(kind: int, version: int, payload: bytes) -> int:
    return crc32c(payload, crc32c(bytes((kind, version))))
