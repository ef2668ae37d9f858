"""Bytes of a query's record: vectors of docs/formats/spark.md, both ways, and damage."""

from __future__ import annotations

import dataclasses
import re
import uuid
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.common import limits
from tailrace.common.errors import BadRequestError, CorruptionError, FormatVersionError, IllegalStateError
from tailrace.pipelines.checked_record import HEADER, pack
from tailrace.pipelines.sink.query_record import (
    MAGIC,
    NO_BATCH,
    UNKNOWN,
    Pending,
    QueryRecord,
    decode,
    encode,
)

from ..damaged_records import damaged

PAGE = Path(__file__).parents[4] / "docs" / "formats" / "spark.md"
RECORDS = {
    "empty": QueryRecord("q", "s/t", incarnation=0),
    "batch 7 being committed": QueryRecord("q", "s/t", ("r1", "r2"), 6, Pending(7, (uuid.UUID(int=(1 << 96) + 2),)), 3),
}
OF_VERSION_1 = "5452535101000000221e75661096a171a3732f7492a27231a272320607c41000000001000000000000000000000002"
records = st.builds(
    QueryRecord,
    st.text(max_size=9),
    st.text(max_size=9),
    st.lists(st.text(max_size=9), max_size=3).map(tuple),
    st.integers(-1, 2**40),
    st.none() | st.builds(Pending, st.integers(0, 2**40), st.lists(st.uuids(), max_size=3).map(tuple)),
    st.integers(-1, 2**40),
    st.integers(-1, 2**40),
)


def test_the_documented_vectors() -> None:
    page = PAGE.read_text().partition("## Joins")[0]
    vectors = dict(re.findall(r"^\| ([a-z0-9 ]+) \| `([0-9a-f]+)` \|$", page, re.M))
    assert vectors.keys() == RECORDS.keys()
    for name, record in RECORDS.items():
        assert encode(record).hex() == vectors[name]
        assert decode(bytes.fromhex(vectors[name]), "vector") == record


@given(records)
def test_both_ways(record: QueryRecord) -> None:
    assert decode(encode(record), "here") == record


@given(records, st.data())
def test_damage_is_found(record: QueryRecord, data: st.DataObject) -> None:
    for bad in damaged(encode(record), data):
        with pytest.raises(CorruptionError, match="here"):
            decode(bad, "here")


def test_a_newer_version_is_refused() -> None:
    payload = encode(RECORDS["empty"])[HEADER.size :]
    newer = pack(MAGIC, 4, payload)
    with pytest.raises(FormatVersionError, match="version 4, this program reads up to 3"):
        decode(newer, "here")


def test_transactions_without_a_batch_are_damage() -> None:
    good = encode(RECORDS["batch 7 being committed"])[HEADER.size :]
    payload = good.replace(b"\x06\x07\xc4", b"\x06\xff\xc4")
    assert payload != good
    with pytest.raises(CorruptionError, match="do not fit"):
        decode(pack(MAGIC, 1, payload), "here")


def test_a_record_of_version_1_is_that_of_the_stream_that_is_there() -> None:
    """It does not say which incarnation it is of: a batch that is being committed is finished."""
    record = decode(bytes.fromhex(OF_VERSION_1), "here")
    assert record == dataclasses.replace(RECORDS["batch 7 being committed"], incarnation=UNKNOWN)
    assert record.on(3) == RECORDS["batch 7 being committed"]


def test_nothing_is_written_to_a_stream_that_was_created_again() -> None:
    record = RECORDS["batch 7 being committed"]
    assert record.on(3) == record
    again = record.on(4)
    assert (again.last_batch, again.pending, again.runs) == (NO_BATCH, None, record.runs)
    assert not again.has(6)
    with pytest.raises(IllegalStateError, match="s/t was deleted and created again"):
        again.on(3)


def test_starts_and_transactions_have_bounds() -> None:
    record = RECORDS["empty"]
    for number in range(limits.SPARK_RUNS_MAX + 5):
        record = record.started(f"run {number}")
    assert len(record.runs) == limits.SPARK_RUNS_MAX
    with pytest.raises(BadRequestError, match="coalesce"):
        record.committing(0, [uuid.UUID(int=0)] * (limits.SPARK_TRANSACTIONS_MAX + 1))
    assert len(encode(record.committing(0, [uuid.UUID(int=0)] * limits.SPARK_TRANSACTIONS_MAX))) < 1 << 19
