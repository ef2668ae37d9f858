"""Commands to bytes and back: vectors written by hand from the tables, round trips, garbage.

See docs/protocol/wire.md#frames, docs/protocol/wire.md#commands.
"""

from __future__ import annotations

from typing import Any, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.common import limits
from tailrace.common.errors import BadRequestError, ProtocolError
from tailrace.wire import codec, fields
from tailrace.wire import commands as c
from tailrace.wire.command import layout_of
from tailrace.wire.text import decode_text, encode_text

MIN = -(2**63)
W = bytes(range(16))
W_HEX = "000102030405060708090a0b0c0d0e0f"

# (command, payload in hex); the frame's header is made from the code and the payload's length.
VECTORS: list[tuple[c.Command, str]] = [
    (c.Hello(16, 5), "00000010 00000005"),
    (c.Padding(3), "000000"),
    (c.PartialEvent(b"\xaa\xbb"), "aabb"),
    (c.SetupAppend(0x0102, W, "s", ""), f"0000000000000102 {W_HEX} 000173 0000"),
    (c.AppendSetup(1, "s", W, MIN), f"0000000000000001 000173 {W_HEX} 8000000000000000"),
    (c.AppendBlock(W, b"xyz"), f"{W_HEX} 78797a"),
    (
        c.AppendBlockEnd(W, 3, b"ab", 2, 9, 7),
        f"{W_HEX} 00000003 00000002 6162 00000002 0000000000000009 0000000000000007",
    ),
    (
        c.ConditionalAppend(W, 4, 16, b"ab", 7),
        f"{W_HEX} 0000000000000004 0000000000000010 00000000 00000002 6162 0000000000000007",
    ),
    (
        c.DataAppended(W, 9, MIN, 7, 32),
        f"{W_HEX} 0000000000000009 8000000000000000 0000000000000007 0000000000000020",
    ),
    (c.ConditionalCheckFailed(W, 4, 7), f"{W_HEX} 0000000000000004 0000000000000007"),
    (
        c.ConditionalBlockEnd(W, 4, 16, b"ab", 7),
        f"{W_HEX} 0000000000000004 0000000000000010 00000002 6162 0000000000000007",
    ),
    (c.KeepAlive(), ""),
    (c.ReadSegment("s", 8, 1024, "t", 5), "000173 0000000000000008 00000400 000174 0000000000000005"),
    (
        c.SegmentRead("s", 8, True, False, b"ab", 5),
        "000173 0000000000000008 01 00 00000002 6162 0000000000000005",
    ),
    (c.GetStreamSegmentInfo(5, "s", ""), "0000000000000005 000173 0000"),
    (
        c.StreamSegmentInfo(5, "s", True, False, False, 1, 2, 3),
        "0000000000000005 000173 01 00 00 0000000000000001 0000000000000002 0000000000000003",
    ),
    (c.GetSegmentAttribute(5, "s", W, ""), f"0000000000000005 000173 {W_HEX} 0000"),
    (c.SegmentAttribute(5, MIN), "0000000000000005 8000000000000000"),
    (
        c.UpdateSegmentAttribute(5, "s", W, 1, -1, ""),
        f"0000000000000005 000173 {W_HEX} 0000000000000001 ffffffffffffffff 0000",
    ),
    (c.SegmentAttributeUpdated(5, True), "0000000000000005 01"),
    (c.CreateSegment(5, "s", 100, 1, "", 9), "0000000000000005 000173 00000064 01 0000 0000000000000009"),
    (c.SegmentCreated(5, "s"), "0000000000000005 000173"),
    (c.SealSegment(5, "s", ""), "0000000000000005 000173 0000"),
    (c.SegmentSealed(5, "s"), "0000000000000005 000173"),
    (c.DeleteSegment(5, "s", ""), "0000000000000005 000173 0000"),
    (c.SegmentDeleted(5, "s"), "0000000000000005 000173"),
    (c.UpdateSegmentPolicy(5, "s", 100, 2, ""), "0000000000000005 000173 00000064 02 0000"),
    (c.SegmentPolicyUpdated(5, "s"), "0000000000000005 000173"),
    (c.TruncateSegment(5, "s", 8, ""), "0000000000000005 000173 0000000000000008 0000"),
    (c.SegmentTruncated(5, "s"), "0000000000000005 000173"),
    (c.CreateTransientSegment(5, W, "s", ""), f"0000000000000005 {W_HEX} 000173 0000"),
    (
        c.MergeSegments(5, "a", "b", "", [c.AttributeCondition(W, 4, 1, 2)]),
        f"0000000000000005 000161 000162 0000 00000001 {W_HEX} 04 0000000000000001 0000000000000002",
    ),
    (c.SegmentsMerged(5, "a", "b", 8), "0000000000000005 000161 000162 0000000000000008"),
    (c.MergeSegmentsBatch(5, "a", ["b", "c"], ""), "0000000000000005 000161 00000002 000162 000163 0000"),
    (
        c.SegmentsBatchMerged(5, "a", [c.MergedSource("b", 8)]),
        "0000000000000005 000161 00000001 000162 0000000000000008",
    ),
    (c.FlushToStorage(2, "", 5), "00000002 0000 0000000000000005"),
    (c.StorageFlushed(5), "0000000000000005"),
    (c.ListStorageChunks("s", "", 5), "000173 0000 0000000000000005"),
    (
        c.StorageChunksListed(5, [c.ChunkInfo(1, 2, 3, "k", True)]),
        "0000000000000005 00000001 0000000000000001 0000000000000002 0000000000000003 00016b 01",
    ),
    (
        c.GetSegmentRates(2, "", 5, -1, [120, 300]),
        "00000002 0000 0000000000000005 ffffffffffffffff 00000002 0000000000000078 000000000000012c",
    ),
    (
        c.SegmentRates(5, True, [c.MeasuredRate("s", 7, 2, 100, 8, [9])]),
        "0000000000000005 01 00000001 000173 0000000000000007 02 00000064 0000000000000008 00000001 0000000000000009",
    ),
    (c.ListSegments(2, "", 5, -1), "00000002 0000 0000000000000005 ffffffffffffffff"),
    (c.SegmentsListed(5, True, 7, ["s"]), "0000000000000005 01 0000000000000007 00000001 000173"),
    (c.GetStreamBytes(2, "", 5, "s"), "00000002 0000 0000000000000005 000173"),
    (
        c.StreamBytesListed(5, True, ["s"], [7]),
        "0000000000000005 01 00000001 000173 00000001 0000000000000007",
    ),
    (c.GetTableSegmentInfo(5, "s", ""), "0000000000000005 000173 0000"),
    (
        c.TableSegmentInfo(5, "s", 1, 2, 3, 16),
        "0000000000000005 000173 0000000000000001 0000000000000002 0000000000000003 00000010",
    ),
    (c.CreateTableSegment(5, "s", "", True, 16, 9), "0000000000000005 000173 0000 01 00000010 0000000000000009"),
    (c.DeleteTableSegment(5, "s", True, ""), "0000000000000005 000173 01 0000"),
    (
        c.UpdateTableEntries(5, "s", "", [c.TableEntry(b"k", b"vv", MIN)], 6),
        "0000000000000005 000173 0000 00000001"
        " 0000000d 00000001 6b 8000000000000000 00000006 00000002 7676 0000000000000006",
    ),
    (c.TableEntriesUpdated(5, [0, 20]), "0000000000000005 00000002 0000000000000000 0000000000000014"),
    (
        c.RemoveTableKeys(5, "s", "", [c.TableKey(b"k", 3)], -1),
        "0000000000000005 000173 0000 00000001 0000000d 00000001 6b 0000000000000003 ffffffffffffffff",
    ),
    (c.TableKeysRemoved(5, "s"), "0000000000000005 000173"),
    (
        c.ReadTable(5, "s", "", [c.TableKey(b"k", MIN)]),
        "0000000000000005 000173 0000 00000001 0000000d 00000001 6b 8000000000000000",
    ),
    (
        c.TableRead(5, "s", [c.TableEntry(b"k", b"", -1)]),
        "0000000000000005 000173 00000001 0000000d 00000001 6b ffffffffffffffff 00000004 00000000",
    ),
    (
        c.ReadTableKeys(5, "s", "", 10, b"tt", b"", b"f", b"g"),
        "0000000000000005 000173 0000 0000000a 00000002 7474 00000000 00000001 66 00000001 67",
    ),
    (
        c.TableKeysRead(5, "s", [c.TableKey(b"k", 3)], b"t"),
        "0000000000000005 000173 00000001 0000000d 00000001 6b 0000000000000003 00000001 74",
    ),
    (
        c.ReadTableEntries(5, "s", "", 10),
        "0000000000000005 000173 0000 0000000a 00000000 00000000 00000000 00000000",
    ),
    (
        c.TableEntriesRead(5, "s", [c.TableEntry(b"k", b"v", 3)], b""),
        "0000000000000005 000173 00000001 0000000d 00000001 6b 0000000000000003 00000005 00000001 76 00000000",
    ),
    (c.ReadTableEntriesDelta(5, "s", "", 8, 10), "0000000000000005 000173 0000 0000000000000008 0000000a"),
    (
        c.TableEntriesDeltaRead(5, "s", [], False, True, 8),
        "0000000000000005 000173 00000000 00 01 0000000000000008",
    ),
    (c.WrongHost(5, "s", "", ""), "0000000000000005 000173 0000 0000"),
    (c.SegmentIsSealed(5, "s", "", 9), "0000000000000005 000173 0000 0000000000000009"),
    (c.SegmentAlreadyExists(5, "s", ""), "0000000000000005 000173 0000"),
    (c.NoSuchSegment(5, "s", "", 9), "0000000000000005 000173 0000 0000000000000009"),
    (c.InvalidEventNumber(W, 5, "", 9), f"{W_HEX} 0000000000000005 0000 0000000000000009"),
    (c.SegmentIsTruncated(5, "s", 8, "", 4), "0000000000000005 000173 0000000000000008 0000 0000000000000004"),
    (c.OperationUnsupported(5, "o", ""), "0000000000000005 00016f 0000"),
    (c.AuthTokenCheckFailed(5, "", 1), "0000000000000005 0000 00000001"),
    (c.ErrorMessage(5, "s", "m", 0), "0000000000000005 000173 00016d 00000000"),
    (c.TableSegmentNotEmpty(5, "s", ""), "0000000000000005 000173 0000"),
    (c.TableKeyDoesNotExist(5, "s", ""), "0000000000000005 000173 0000"),
    (c.TableKeyBadVersion(5, "s", ""), "0000000000000005 000173 0000"),
]

CODES = {
    "Hello": -127, "Padding": -1, "PartialEvent": -2, "SetupAppend": 1, "AppendSetup": 2, "AppendBlock": 3,
    "AppendBlockEnd": 4, "ConditionalAppend": 5, "DataAppended": 7, "ConditionalCheckFailed": 8, "ReadSegment": 9,
    "SegmentRead": 10, "GetStreamSegmentInfo": 11, "StreamSegmentInfo": 12, "CreateSegment": 20, "SegmentCreated": 21,
    "SealSegment": 28, "SegmentSealed": 29, "DeleteSegment": 30, "SegmentDeleted": 31, "UpdateSegmentPolicy": 32,
    "SegmentPolicyUpdated": 33, "GetSegmentAttribute": 34, "SegmentAttribute": 35, "UpdateSegmentAttribute": 36,
    "SegmentAttributeUpdated": 37, "TruncateSegment": 38, "SegmentTruncated": 39, "CreateTransientSegment": 40,
    "WrongHost": 50, "SegmentIsSealed": 51, "SegmentAlreadyExists": 52, "NoSuchSegment": 53, "InvalidEventNumber": 55,
    "SegmentIsTruncated": 56, "OperationUnsupported": 57, "MergeSegments": 58, "SegmentsMerged": 59,
    "AuthTokenCheckFailed": 60, "ErrorMessage": 61, "GetTableSegmentInfo": 68, "TableSegmentInfo": 69,
    "CreateTableSegment": 70, "DeleteTableSegment": 71, "UpdateTableEntries": 74, "TableEntriesUpdated": 75,
    "RemoveTableKeys": 76, "TableKeysRemoved": 77, "ReadTable": 78, "TableRead": 79, "TableSegmentNotEmpty": 80,
    "TableKeyDoesNotExist": 81, "TableKeyBadVersion": 82, "ReadTableKeys": 83, "TableKeysRead": 84,
    "ReadTableEntries": 85, "TableEntriesRead": 86, "TableEntriesDeltaRead": 87, "ReadTableEntriesDelta": 88,
    "ConditionalBlockEnd": 89, "MergeSegmentsBatch": 90, "SegmentsBatchMerged": 91, "KeepAlive": 100,
    "FlushToStorage": -3, "StorageFlushed": -4, "ListStorageChunks": -5, "StorageChunksListed": -6,
    "GetSegmentRates": -1001, "SegmentRates": -1002, "ListSegments": -1003, "SegmentsListed": -1004,
    "GetStreamBytes": -1005, "StreamBytesListed": -1006,
}  # fmt: skip


def name_of(command: object) -> str:
    return type(command).__name__


def test_codes_are_those_of_the_protocol() -> None:
    assert {command.__name__: code for code, command in c.COMMANDS.items()} == CODES


def test_every_command_has_a_vector() -> None:
    assert {type(command) for command, _ in VECTORS} == set(c.COMMANDS.values())


@pytest.mark.parametrize(("command", "payload"), VECTORS, ids=[name_of(command) for command, _ in VECTORS])
def test_vector(command: c.Command, payload: str) -> None:
    raw = bytes.fromhex(payload)
    frame = command.CODE.to_bytes(4, "big", signed=True) + len(raw).to_bytes(4, "big") + raw
    assert codec.encode(command) == frame
    assert codec.decode(command.CODE, memoryview(raw)) == command
    if not isinstance(command, c.Padding | c.PartialEvent | c.AppendBlock):
        assert codec.decode(command.CODE, raw + b"later fields") == command


@pytest.mark.parametrize(("command", "payload"), VECTORS, ids=[name_of(command) for command, _ in VECTORS])
def test_short_payloads_take_defaults_or_are_refused(command: c.Command, payload: str) -> None:
    raw = bytes.fromhex(payload)
    layout = layout_of(type(command))
    required = [slot.name for slot in layout if not slot.optional]
    parts: list[Any] = []
    for name in required:
        slot = next(slot for slot in layout if slot.name == name)
        slot.field.encode(getattr(command, name), parts)
    required_bytes = sum(map(len, parts))
    shortest = codec.decode(command.CODE, raw[:required_bytes])
    for name in required:
        assert getattr(shortest, name) == getattr(command, name)
    tolerant = isinstance(command, c.Padding | c.PartialEvent | c.AppendBlock)
    for cut in range(required_bytes):
        if (tolerant and cut >= 16) or isinstance(command, c.Padding | c.PartialEvent):
            codec.decode(command.CODE, raw[:cut])
            continue
        with pytest.raises(ProtocolError):
            codec.decode(command.CODE, raw[:cut])


def test_optional_integer_cut_in_the_middle_is_missing() -> None:
    raw = codec.encode(c.NoSuchSegment(5, "s", "", 9))[8:]
    assert codec.decode(53, raw[:-3]) == c.NoSuchSegment(5, "s", "", -1)


def test_empty_table_key_has_no_version() -> None:
    raw = codec.encode(c.ReadTable(5, "s", "", [c.TableKey(b"", 77)]))[8:]
    assert raw.hex() == "00000000000000050001730000000000010000000c00000000"
    assert codec.decode(78, raw) == c.ReadTable(5, "s", "", [c.TableKey(b"", c.NO_VERSION)])


def test_iterator_arguments_may_end_after_the_token() -> None:
    raw = codec.encode(c.ReadTableKeys(5, "s", "", 10, b"tok"))[8:-12]
    assert codec.decode(83, raw) == c.ReadTableKeys(5, "s", "", 10, b"tok")


@pytest.mark.parametrize(
    ("code", "payload"),
    [
        (78, "0000000000000005 000173 0000 7fffffff"),
        (78, "0000000000000005 000173 0000 ffffffff"),
        (90, "0000000000000005 000173 40000000 0000"),
        (4, f"{W_HEX} 00000000 7fffffff 00000001 0000000000000001"),
        (4, f"{W_HEX} 00000000 ffffffff 00000001 0000000000000001"),
        (5, f"{W_HEX} 0000000000000004 0000000000000010 00000001 00000000"),
        (1, f"0000000000000102 {W_HEX} ffff73 0000"),
    ],
)
def test_counts_and_lengths_are_checked_before_allocation(code: int, payload: str) -> None:
    with pytest.raises(ProtocolError):
        codec.decode(code, bytes.fromhex(payload))


@pytest.mark.parametrize(
    ("code", "head", "item", "tail"),
    [
        (78, "0000000000000005 000173 0000", "0000000c00000000", ""),
        (90, "0000000000000005 000173", "000173", "0000"),
    ],
)
def test_lists_are_short_enough_for_the_loop(code: int, head: str, item: str, tail: str) -> None:
    """A frame has room for two million empty keys, whose decoding would take seconds."""

    def payload(count: int) -> bytes:
        return bytes.fromhex(head) + count.to_bytes(4, "big") + bytes.fromhex(item) * count + bytes.fromhex(tail)

    codec.decode(code, payload(limits.WIRE_LIST_ITEMS_MAX))
    with pytest.raises(ProtocolError, match="at most"):
        codec.decode(code, payload(limits.WIRE_LIST_ITEMS_MAX + 1))


@pytest.mark.parametrize("code", [0, 6, 41, 42, 72, 73, 101, -100, 2**31 - 1])
def test_unknown_codes_are_refused(code: int) -> None:
    with pytest.raises(ProtocolError, match=str(code)):
        codec.decode(code, b"\0" * 64)


def test_values_that_do_not_fit_are_refused_by_the_encoder() -> None:
    with pytest.raises(BadRequestError):
        codec.encode(c.Hello(2**31, 5))
    with pytest.raises(BadRequestError):
        codec.encode(c.AppendBlock(b"short", b""))
    with pytest.raises(BadRequestError):
        codec.encode(c.SegmentCreated(1, "x" * 65536))
    with pytest.raises(BadRequestError):
        codec.encode(c.AppendBlock(W, bytes(codec.PAYLOAD_MAX_BYTES - 15)))
    assert len(codec.encode(c.AppendBlock(W, bytes(codec.PAYLOAD_MAX_BYTES - 16)))) == 0x00FFFFFF


def test_the_special_encoders_agree_with_the_general_one() -> None:
    assert codec.encode_data_appended(W, 9, 3, 7, 32) == codec.encode(c.DataAppended(W, 9, 3, 7, 32))
    assert codec.encode_segment_read(
        "s/é", 8, [b"ab", memoryview(b"cd")], 4, at_tail=True, end_of_segment=True, request_id=5
    ) == codec.encode(c.SegmentRead("s/é", 8, True, True, b"abcd", 5))


@pytest.mark.parametrize(
    ("text", "raw"),
    [("", ""), ("a/b", "612f62"), ("\0", "c080"), ("é", "c3a9"), ("€", "e282ac"), ("😀", "eda0bdedb880")],
)
def test_modified_utf8(text: str, raw: str) -> None:
    assert encode_text(text).hex() == raw
    assert decode_text(bytes.fromhex(raw)) == text


def test_plain_utf8_is_understood() -> None:
    assert decode_text("😀€".encode()) == "😀€"


@pytest.mark.parametrize("raw", ["ff", "c3", "eda0bd", "edb880eda0bd"])
def test_bad_text_is_refused(raw: str) -> None:
    with pytest.raises(ProtocolError):
        decode_text(bytes.fromhex(raw))


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
I64S = st.integers(MIN, 2**63 - 1)
KEYS = st.builds(c.TableKey, st.binary(min_size=1, max_size=9), I64S)
ENTRIES = st.builds(c.TableEntry, st.binary(min_size=1, max_size=9), st.binary(max_size=9), I64S)
VALUES: dict[Any, st.SearchStrategy[Any]] = {
    fields.I8: st.integers(-128, 127),
    fields.I32: st.integers(-(2**31), 2**31 - 1),
    fields.I64: I64S,
    fields.Flag: st.booleans(),
    fields.Uuid: st.binary(min_size=16, max_size=16),
    fields.Text: TEXT,
    fields.Bulk: st.binary(max_size=40),
    fields.ShortBytes: st.binary(max_size=40),
    fields.Rest: st.binary(max_size=40),
    fields.PaddingLength: st.integers(0, 40),
    fields.Event: st.binary(max_size=40),
    fields.I64List: st.lists(I64S, max_size=4),
    fields.TextList: st.lists(TEXT, max_size=4),
    fields.TableKeys: st.lists(KEYS, max_size=4),
    fields.TableEntries: st.lists(ENTRIES, max_size=4),
    fields.AttributeConditions: st.lists(
        st.builds(c.AttributeCondition, st.binary(min_size=16, max_size=16), st.integers(-128, 127), I64S, I64S),
        max_size=3,
    ),
    fields.MergedSources: st.lists(st.builds(c.MergedSource, TEXT, I64S), max_size=3),
    fields.ChunkInfos: st.lists(st.builds(c.ChunkInfo, I64S, I64S, I64S, TEXT, st.booleans()), max_size=3),
    fields.MeasuredRates: st.lists(
        st.builds(
            c.MeasuredRate,
            TEXT,
            I64S,
            st.integers(-128, 127),
            st.integers(-(2**31), 2**31 - 1),
            I64S,
            st.lists(I64S, max_size=3),
        ),
        max_size=3,
    ),
}


@st.composite
def any_command(draw: st.DrawFn) -> c.Command:
    kind = draw(st.sampled_from(sorted(c.COMMANDS.values(), key=lambda each: each.CODE)))
    hints = get_type_hints(kind, include_extras=True)
    return kind(*(draw(VALUES[hints[slot.name]]) for slot in layout_of(kind)))


@given(any_command())
def test_round_trip(command: c.Command) -> None:
    frame = codec.encode(command)
    code, length = codec.FRAME_HEADER.unpack_from(frame)
    assert (code, length) == (command.CODE, len(frame) - 8)
    assert codec.decode(code, memoryview(frame)[8:]) == command


@given(st.sampled_from(sorted(c.COMMANDS)), st.binary(max_size=200))
def test_random_payloads_are_decoded_or_refused(code: int, payload: bytes) -> None:
    try:
        command = codec.decode(code, payload)
    except ProtocolError:
        return
    assert codec.decode(code, memoryview(codec.encode(command))[8:]) == command


@given(any_command(), st.data())
def test_damaged_payloads_are_decoded_or_refused(command: c.Command, data: st.DataObject) -> None:
    payload = bytearray(codec.encode(command)[8:])
    for _ in range(data.draw(st.integers(1, 3))):
        if payload:
            payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(payload)))
    try:
        codec.decode(command.CODE, bytes(payload[:cut]))
    except ProtocolError:
        return
