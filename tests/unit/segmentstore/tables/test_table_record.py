"""Format of table records: test vectors of docs/formats/tables.md, damage, versions."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.common import limits
from tailrace.common.errors import CorruptionError, FormatVersionError
from tailrace.kernel import crc32c
from tailrace.segmentstore.tables.layout import FixedKeyLayout, HashLayout, sha256_bucket
from tailrace.segmentstore.tables.record import (
    HEADER_BYTES,
    NO_CHAIN,
    OWN_OFFSET,
    Record,
    decode_record,
    encode_record,
)
from tailrace.segmentstore.tables.service import TableService
from tailrace.segmentstore.tables.types import TableEntry

DOCUMENT = Path(__file__).parents[4] / "docs" / "formats" / "tables.md"
TABLE = "scope/table/0"


def vectors() -> dict[str, bytes]:
    text = DOCUMENT.read_text(encoding="utf-8")
    found = re.findall(r"Vector ([a-z]+):[^`]*(?:`[^`\n]*`[^`]*)*```text\n(.*?)```", text, re.DOTALL)
    return {name: bytes.fromhex("".join(body.split())) for name, body in found}


@pytest.mark.parametrize(
    ("name", "record"),
    [
        ("entry", Record(b"key", b"value", 0, 0, NO_CHAIN, False)),
        ("copy", Record(b"k", b"", 1000, 3000, 2000, True)),
        ("tombstone", Record(b"k", None, 77, 77, NO_CHAIN, False)),
    ],
)
def test_documented_records(name: str, record: Record) -> None:
    version = OWN_OFFSET if record.version == record.offset else record.version
    data = encode_record(record.key, record.value, version, record.chain, shared=record.shared)
    assert data == vectors()[name]
    assert decode_record(data, record.offset, TABLE) == record
    assert record.length == len(data)


def test_documented_bucket() -> None:
    assert sha256_bucket(b"key") == vectors()["bucket"] == hashlib.sha256(b"key").digest()[:16]


def test_no_attribute_of_a_table_is_a_core_attribute() -> None:
    core = b"\x80" + bytes(15)
    assert HashLayout(lambda _: core).attribute_id(b"k") == b"\x81" + bytes(15)
    assert FixedKeyLayout(16).attribute_id(core) == core + b"\0"
    assert FixedKeyLayout(17).attribute_id(core + b"\0") == core + b"\0"


@given(
    key=st.binary(min_size=1, max_size=40),
    value=st.one_of(st.none(), st.binary(max_size=60)),
    version=st.integers(OWN_OFFSET, 2**63 - 1),
    chain=st.integers(NO_CHAIN, 2**62),
    shared=st.booleans(),
    rest=st.binary(max_size=9),
)
def test_records_round_trip(
    key: bytes, value: bytes | None, version: int, chain: int, shared: bool, rest: bytes
) -> None:
    data = encode_record(key, value, version, chain, shared=shared)
    expected = Record(key, value, 123 if version == OWN_OFFSET else version, 123, chain, shared)
    assert decode_record(data + rest, 123, TABLE) == expected


@given(bit=st.integers(0, 8 * (HEADER_BYTES + 8) - 1))
def test_every_flipped_bit_is_corruption_with_its_place(bit: int) -> None:
    data = bytearray(encode_record(b"key", b"value", OWN_OFFSET, NO_CHAIN, shared=False))
    data[bit // 8] ^= 1 << (bit % 8)
    with pytest.raises((CorruptionError, FormatVersionError), match="scope/table/0, table record at 9"):
        decode_record(bytes(data), 9, TABLE)


@pytest.mark.parametrize("length", [0, 1, HEADER_BYTES - 1, HEADER_BYTES, HEADER_BYTES + 7])
def test_record_cut_short_is_corruption(length: int) -> None:
    data = encode_record(b"key", b"value", OWN_OFFSET, NO_CHAIN, shared=False)
    with pytest.raises(CorruptionError, match="table record at 9"):
        decode_record(data[:length], 9, TABLE)


@pytest.mark.parametrize(
    ("position", "value"),
    [
        (2, b"\x04"),
        (2, b"\x01"),
        (3, (8193).to_bytes(2, "big")),
        (5, (limits.TABLE_VALUE_MAX_BYTES + 1).to_bytes(4, "big")),
    ],
)
def test_well_summed_nonsense_is_corruption(position: int, value: bytes) -> None:
    data = bytearray(encode_record(b"key", b"value", OWN_OFFSET, NO_CHAIN, shared=False))
    data[position : position + len(value)] = value
    data[25:29] = crc32c(bytes(data[29:]), crc32c(bytes(data[:25]))).to_bytes(4, "big")
    with pytest.raises(CorruptionError, match="not a table record"):
        decode_record(bytes(data), 9, TABLE)


def test_newer_format_is_refused() -> None:
    data = bytearray(encode_record(b"key", b"value", OWN_OFFSET, NO_CHAIN, shared=False))
    data[1] = 2
    with pytest.raises(FormatVersionError, match="format 2"):
        decode_record(bytes(data), 9, TABLE)


async def test_damaged_segment_is_reported_and_never_served(model_container: Any) -> None:
    model = model_container()
    await TableService(model).create_table(TABLE, 0)
    await TableService(model).update(TABLE, [TableEntry(b"a", b"1"), TableEntry(b"b", b"2")])
    model.segments[TABLE].data[-1] ^= 1
    place = "scope/table/0, table record at 31"
    cold = TableService(model)
    assert await cold.get(TABLE, [b"a"]) == [TableEntry(b"a", b"1", 0)]
    for call in (
        cold.get(TABLE, [b"b"]),
        cold.iterate_keys(TABLE, 10, b"", b"", b""),
        cold.update(TABLE, [TableEntry(b"b", b"3")]),
        cold.compact(TABLE),
    ):
        with pytest.raises(CorruptionError, match=place):
            await call
    # A position that a client gives is its own fault first; one that the scan comes to is not.
    model.segments[TABLE].data[0] ^= 1
    with pytest.raises(CorruptionError):
        await TableService(model).compact(TABLE)


@pytest.mark.parametrize("chain", [0, 31, 10_000, -2, -(2**63)])
async def test_chain_that_does_not_go_back_is_corruption(model_container: Any, chain: int) -> None:
    model = model_container()
    tables = TableService(model)
    await tables.create_table(TABLE, 0)
    await tables.update(TABLE, [TableEntry(b"a", b"1"), TableEntry(b"b", b"2")])
    offset = 0 if chain == 0 else 31
    key = b"a" if chain == 0 else b"b"
    model.segments[TABLE].data[offset : offset + 31] = encode_record(key, b"2", OWN_OFFSET, chain, shared=True)
    with pytest.raises(CorruptionError, match=f"table record at {offset}"):
        await TableService(model).get(TABLE, [key])


async def test_index_that_leads_to_a_tombstone_is_corruption(model_container: Any) -> None:
    model = model_container()
    tables = TableService(model)
    await tables.create_table(TABLE, 0)
    await tables.update(TABLE, [TableEntry(b"a", b"1")])
    tombstone = encode_record(b"a", None, OWN_OFFSET, NO_CHAIN, shared=False)
    model.segments[TABLE].data[: len(tombstone)] = tombstone
    with pytest.raises(CorruptionError, match="tombstone"):
        await TableService(model).get(TABLE, [b"a"])
