"""The rows of an audit's report, and how they become Arrow batches (docs/spark-audit.md#report)."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterable

SCHEMA: Final = pa.schema(
    [
        ("what", pa.string()),
        ("container", pa.int32()),
        ("segment", pa.string()),
        ("segment_id", pa.int64()),
        ("object", pa.string()),
        ("position", pa.int64()),
        ("offset", pa.int64()),
        ("length_bytes", pa.int64()),
        ("verified_bytes", pa.int64()),
        ("refs", pa.int32()),
        ("status", pa.string()),
        ("reason", pa.string()),
        ("epoch", pa.int64()),
        ("time_ms", pa.int64()),
    ]
)
COLUMNS: Final = (
    "what string, container int, segment string, segment_id bigint, object string, position bigint, offset bigint, "
    "length_bytes bigint, verified_bytes bigint, refs int, status string, reason string, epoch bigint, time_ms bigint"
)
"""``SCHEMA`` as Spark writes it."""


class What(StrEnum):
    """What a row is about."""

    CONTAINER = "container"
    SEGMENT = "segment"
    REFERENCE = "reference"
    PENDING = "pending"
    OBJECT = "object"
    CHUNK = "chunk"
    FINDING = "finding"


class Status(StrEnum):
    """The outcome for an object, a chunk or a finding."""

    VERIFIED = "verified"
    DAMAGED = "damaged"
    MISSING = "missing"
    GAP = "gap"
    ORPHAN = "orphan"
    UNACCOUNTED = "unaccounted"
    GONE = "gone"
    PENDING = "pending"
    UNSETTLED = "unsettled"
    SNAPSHOT = "snapshot"
    LOG = "log"
    IDENTITY = "identity"
    PROBE = "probe"


CHUNK: Final = "chunk"
INDEX_PAGE: Final = "index page"
"""Status of a reference: what its bytes are."""


class Row(NamedTuple):
    """One row. Fields that do not apply are None."""

    what: What
    container: int | None = None
    segment: str | None = None
    segment_id: int | None = None
    object: str | None = None
    position: int | None = None
    offset: int | None = None
    length_bytes: int | None = None
    verified_bytes: int | None = None
    refs: int | None = None
    status: str | None = None
    reason: str | None = None
    epoch: int | None = None
    time_ms: int | None = None


def to_batch(rows: Iterable[Row]) -> pa.RecordBatch:
    """Return rows as a record batch."""
    columns = list(zip(*rows, strict=True)) or [()] * len(SCHEMA)
    return pa.record_batch(
        [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)], schema=SCHEMA
    )
