"""The controller's durable records and their encoding (docs/formats/controller.md; design §7, §10).

Every value in the metadata tables is an envelope around MessagePack: magic, kind, version, length, CRC32C. Fields are
encoded by name, so version N reads N-1; a newer version is refused. Each stream has one mutable root, `StreamRecord`,
which decides; everything else is immutable, or belongs to one transaction, writer or chunk.
"""

from __future__ import annotations

import struct
from typing import Any, Final, TypeVar

import msgspec
from crc32c import crc32c

from tailrace.common.errors import CorruptionError, FormatVersionError
from tailrace.common.stream_policies import StreamConfig, StreamDataRetention
from tailrace.controller.metadata.model import Epoch, StreamSegment, StreamState

# ---- workflows' intents: what a stream is in the middle of; `intent_id` is random, so equal bytes mean the same one


class CreateIntent(msgspec.Struct, frozen=True, tag="create"):
    """Create the segments of epoch 0, the scope's entry and the mark stream."""

    intent_id: bytes


class UpdateIntent(msgspec.Struct, frozen=True, tag="update"):
    """Bring segments and lists in line with the configuration, which is already in the root."""

    intent_id: bytes


class ScaleIntent(msgspec.Struct, frozen=True, tag="scale"):
    """Replace `sealed` segments of `old_epoch` by `created` ones, once no transaction holds the epoch."""

    intent_id: bytes
    old_epoch: int
    sealed: tuple[int, ...]
    created: tuple[StreamSegment, ...]


class TruncateIntent(msgspec.Struct, frozen=True, tag="truncate"):
    """Truncate at the root's cut and delete what lies before it, from `previous` (None: the beginning) on."""

    intent_id: bytes
    previous: dict[int, int] | None


class SealIntent(msgspec.Struct, frozen=True, tag="seal"):
    """Seal the active segments once no transaction is left."""

    intent_id: bytes


class DeleteIntent(msgspec.Struct, frozen=True, tag="delete"):
    """Delete every segment, the mark stream, the records and the scope's entry."""

    intent_id: bytes


Intent = CreateIntent | UpdateIntent | ScaleIntent | TruncateIntent | SealIntent | DeleteIntent


# ---- records of a stream, all in its bucket's table


class StreamRecord(msgspec.Struct, frozen=True):
    """The root of a stream: everything that decides, in one record with one version.

    Transactions are named by their 16 bytes. ``commit_queue`` is the order of the commit calls; ``commit_batch`` is
    the ordered part of it that is being merged. ``completed_next`` and ``completed_first`` count completed
    transactions ever and the first one still remembered. A deleted stream keeps its root: `incarnation`,
    `next_segment_number` and `transaction_counter` go on where they ended (naming §1). ``owner`` is whoever claimed the
    stream (ADR 0014), "" for nobody; it ends with the stream.
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

    @property
    def has_transactions(self) -> bool:
        """Whether a transaction is open or on its way to its end."""
        return bool(self.open_transactions or self.commit_queue or self.commit_batch or self.abort_queue)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is left to do for the stream."""
        return self.intent is None and not self.has_transactions


class SealedRecord(msgspec.Struct, frozen=True):
    """Final sizes of the segments that the transition to `epoch` sealed, and all sealed bytes until then.

    Sealing the stream writes one for ``active_epoch + 1``.
    """

    epoch: int
    sealed_ms: int
    sizes: dict[int, int]
    total_bytes: int


class TransactionRecord(msgspec.Struct, frozen=True):
    """One transaction until it completed; the root's lists say its state. Times are wall-clock milliseconds.

    ``nonce`` is random, so that two controllers never take each other's record for their own.
    """

    transaction_id: bytes
    epoch: int
    nonce: bytes
    created_ms: int
    expires_ms: int
    max_expires_ms: int
    writer: str = ""
    timestamp: int | None = None


class CompletedTransaction(msgspec.Struct, frozen=True):
    """What is remembered of a completed transaction; it takes the place of its `TransactionRecord`."""

    transaction_id: bytes
    committed: bool
    completed_ms: int


class CompletedChunk(msgspec.Struct, frozen=True):
    """Completed transactions in order of completion, a bounded number in each chunk."""

    transactions: tuple[CompletedTransaction, ...]


class Subscriber(msgspec.Struct, frozen=True):
    """A reader group whose position counts for retention; ``cut`` is None until it published one."""

    group_id: str
    generation: int
    cut: dict[int, int] | None = None


class SubscribersRecord(msgspec.Struct, frozen=True):
    """All subscribers of a stream by ``scope/group``."""

    subscribers: dict[str, Subscriber]


class WriterMark(msgspec.Struct, frozen=True):
    """A writer's last noted time with its position (server §4)."""

    timestamp: int
    position: dict[int, int]
    noted_ms: int
    alive: bool = True


# ---- records of scopes


class ScopeRecord(msgspec.Struct, frozen=True):
    """Entry of the table of scopes. The scope's own table is called after `nonce`, so a re-created scope is new."""

    nonce: bytes
    created_ms: int
    deleting: bool = False
    recursive: bool = False


class ScopeStreamEntry(msgspec.Struct, frozen=True):
    """A stream in its scope's table; repeats the tags so that lists by tag need no other table.

    ``incarnation`` is that of the stream listed; entries of older versions say 0.
    """

    tags: tuple[str, ...] = ()
    incarnation: int = 0


class ReaderGroupRecord(msgspec.Struct, frozen=True):
    """A reader group's stored configuration (controller §5, ReaderGroupConfiguration), given back unchanged.

    Cuts are (scope, stream, positions). ``intent``: "create", "update" or "delete" while that is going on;
    ``unsubscribe`` lists the ``scope/stream`` that the update leaves.
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


class TableRecord(msgspec.Struct, frozen=True):
    """A key-value table (naming §5). ``intent``: "create" or "delete" while that is going on.

    ``epoch`` is that of its segments' names: random, so that of a table created again under the same name they are
    others, and whoever still deletes the old ones does no harm. Tables of older versions have 0.
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
    """Says that a stream, reader group, table or scope may have work to resume; `what` is its kind."""

    what: str
    scope: str
    name: str


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
    | WriterMark
    | ScopeRecord
    | ScopeStreamEntry
    | ReaderGroupRecord
    | TableRecord
    | PendingRecord
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
}
_BY_NUMBER: Final = {number: kind for kind, number in _KINDS.items()}
VERSION: Final = 1
_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODERS: Final[dict[type[msgspec.Struct], msgspec.msgpack.Decoder[Any]]] = {
    kind: msgspec.msgpack.Decoder(kind) for kind in _KINDS
}


def encode(record: Record) -> bytes:
    """The record as it is stored."""
    kind = _KINDS[type(record)]
    payload = _ENCODER.encode(record)
    return HEADER.pack(MAGIC, kind, VERSION, len(payload), _checksum(kind, VERSION, payload)) + payload


def decode(kind: type[R], data: bytes, place: str) -> R:
    """Read a record of the kind given; `place` names table and key in errors.

    Raises:
        FormatVersionError: a newer version wrote it. CorruptionError: it is not what was written.
    """
    if len(data) < HEADER.size:
        raise CorruptionError(place, f"a record of {len(data)} bytes")
    magic, number, version, length, checksum = HEADER.unpack_from(data)
    payload = data[HEADER.size :]
    if magic != MAGIC or length != len(payload) or _checksum(number, version, payload) != checksum:
        raise CorruptionError(place, "magic, length or checksum of the record is wrong")
    if number != _KINDS[kind]:
        raise CorruptionError(place, f"record of kind {number} where {kind.__name__} belongs")
    if version > VERSION:
        raise FormatVersionError(f"{place}: record version {version}, this program reads up to {VERSION}")
    try:
        record: R = _DECODERS[kind].decode(payload)
    except msgspec.DecodeError as error:
        raise CorruptionError(place, str(error)) from error
    return record


def kind_of(data: bytes) -> type[msgspec.Struct] | None:
    """Which kind of record the stored bytes claim to be; None for something else."""
    return _BY_NUMBER.get(data[len(MAGIC)]) if len(data) >= HEADER.size and data.startswith(MAGIC) else None


def _checksum(kind: int, version: int, payload: bytes) -> int:
    return crc32c(payload, crc32c(bytes((kind, version))))
