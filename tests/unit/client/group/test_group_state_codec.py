"""Bytes of reader group records: published vectors, both ways, and bad input.

See docs/protocol/reader-group-state.md#examples.
"""

import contextlib
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.client.group.state import codec
from tailrace.client.group.state import records as r
from tailrace.client.group.state.fields import COMPACT_INT, COMPACT_LONG, COMPACT_SIGNED_LONG, TEXT, Input
from tailrace.client.model import ReaderGroupConfig
from tailrace.common.errors import CorruptionError, FormatVersionError, TailraceError
from tailrace.common.ranges import KeyRange
from tailrace.common.stream_cut import StreamCut
from tailrace.common.stream_policies import StreamDataRetention

STREAM = "rgdmwpu6y0u/s"
S0 = f"{STREAM}/0.#epoch.0"
S1 = f"{STREAM}/1.#epoch.0"
S2 = f"{STREAM}/2.#epoch.1"
S3 = f"{STREAM}/3.#epoch.1"


def text(value: str) -> str:
    return f"{len(value):04x}" + value.encode().hex()


UUID_TEXT = "0e02b2c3-f47a-41cc-8372-a5670e02b2c3"
VECTORS: list[tuple[str, r.Update]] = [
    ("00 02 00 01 00 00000004 0002 7231", r.AddReader("r1")),
    ("00 03 00 01 00 00000005 0002 7232 00", r.RemoveReader("r2", {})),
    ("00 0d 00 01 00 00000000", r.RemoveOutstandingCheckpoints()),
    ("00 0b 00 01 00 00000001 01", r.UpdateCheckpointPublished(True)),
    ("00 0c 00 01 00 00000001 01", r.UpdatingConfig(True)),
    (
        f"00 08 00 01 00 0000004d {text(UUID_TEXT)} 0002 7231 01 {text(S0)} ffffffffffffffff",
        r.CheckpointReader(UUID_TEXT, "r1", {S0: -1}),
    ),
    (
        f"00 06 00 02 00 0000000c 0002 7232 0000000000000000 01 00000033 01 {text(S1)}"
        "bff0000000000000 bff0000000000000 ffffffffffffffff",
        r.UpdateDistanceToTail("r2", 0, {(S1, None): -1}),
    ),
    (
        f"00 07 00 02 00 0000006d 0002 7231 {text(S0)} 02 {text(S3)} 01 0000000000000000"
        f"{text(S2)} 02 0000000000000000 0000000000000001 01 0000007f 03"
        f"{text(S3)} 0000000000000000 3fd3333333333333 {text(S2)} 3fd3333333333333 3ff0000000000000"
        f"{text(S0)} bff0000000000000 bff0000000000000",
        r.SegmentCompleted("r1", S0, {S3: [0], S2: [0, 1]}, {S3: KeyRange(0.0, 0.3), S2: KeyRange(0.3, 1.0), S0: None}),
    ),
    (f"00 04 00 01 00 00000026 0002 7231 {text(S0)} 0000000000000040", r.ReleaseSegment("r1", S0, 64)),
    (f"00 05 00 01 00 0000001e 0002 7231 {text(S0)}", r.AcquireSegment("r1", S0)),
    ("00 09 00 01 00 00000005 0003 637031", r.CreateCheckpoint("cp1")),
    ("00 0a 00 01 00 00000005 0003 637031", r.ClearCheckpointsBefore("cp1")),
]
GROUP_ID = uuid.UUID("12345678-9abc-4def-8123-456789abcdef")
CONFIG = ReaderGroupConfig(3000, 500, {STREAM: None}, {STREAM: None}, 3, StreamDataRetention.NONE, 0, GROUP_ID)
CONFIG_BASE = f"0000000000000bb8 00000000000001f4 01 {text(STREAM)} 00 01 {text(STREAM)} 00"
CONFIG_HEX = (
    f"00 00 03 00 00000032 {CONFIG_BASE} 01 00000036 {CONFIG_BASE} 00000003"
    f"02 00000019 00 0000000000000000 {GROUP_ID.hex}"
)
INIT_HEX = (
    f"00 00 00 03 00 000000db 8093 {CONFIG_HEX} 02 {text(S0)} {0:016x} {text(S1)} {93:016x} 00"
    f"01 00000065 02 {text(S0)} bff0000000000000 bff0000000000000 {0:016x}"
    f"{text(S1)} bff0000000000000 bff0000000000000 {93:016x} 02 00000001 00"
)
INIT = r.Init(CONFIG, {(S0, None): 0, (S1, None): 93}, {}, False)


@pytest.mark.parametrize(("hex_text", "update"), VECTORS, ids=lambda item: type(item).__name__)
def test_updates_are_read_and_written_byte_for_byte(hex_text: str, update: r.Update) -> None:
    raw = bytes.fromhex(hex_text)
    assert codec.decode_update(Input(raw)) == update
    assert codec.encode_update(update) == raw


def test_item_lengths_are_those_seen_on_a_real_segment() -> None:
    assert [len(codec.encode_update(update)) for _, update in VECTORS[5:8]] == [86, 77, 250]
    record = codec.encode_batch([r.AddReader("r1")])
    assert record == bytes.fromhex("00000002 0000000d 0002000100 00000004 00027231")
    assert len(record) == 0x15
    assert len(codec.encode_batch([r.RemoveReader("r2", {})])) == 0x16
    assert len(codec.encode_batch([r.RemoveOutstandingCheckpoints()])) == 0x11


def test_initial_record_is_read_with_javas_padding_and_written_without() -> None:
    raw = bytes.fromhex("00000001" + INIT_HEX.replace(" ", ""))
    assert len(bytes.fromhex(CONFIG_HEX)) == 147
    assert codec.encode_initial(INIT) == raw
    assert codec.decode_record(raw + bytes(172)) == (True, [INIT])


def test_batches_hold_their_updates_in_order() -> None:
    updates = [update for _, update in VECTORS]
    assert codec.decode_record(codec.encode_batch(updates)) == (False, updates)


def test_an_initial_state_may_be_an_update() -> None:
    assert codec.decode_record(codec.encode_batch([INIT])) == (False, [INIT])


def test_compacted_state_round_trips() -> None:
    state = r.Compact(
        CONFIG,
        r.CheckpointState(["a", "b"], {"b": ["r1", "r2"]}, {"a": {S0: 3}, "b": {}}, {S0: 3}, True),
        {"r1": 30000, "r2": 2**63 - 1},
        {S2: [0, 1]},
        {"r1": {S0: 5}, "r2": {}},
        {S1: 7},
        {S1: 2**63 - 1},
        {S0: 4, S1: 7},
        {S0: None, S1: KeyRange(0.5, 1.0)},
        True,
    )
    assert codec.decode_record(codec.encode_initial(state)) == (True, [state])


def test_surplus_revisions_and_bytes_are_skipped_and_missing_revisions_default() -> None:
    raw = bytes.fromhex(f"00 06 00 03 00 00000010 00027232 {7:016x} deadbeef 01 00000001 00 02 00000002 ffff")
    assert codec.decode_update(Input(raw)) == r.UpdateDistanceToTail("r2", 7, {})
    old = bytes.fromhex(f"00 06 00 01 00 0000000c 00027232 {7:016x}")
    assert codec.decode_update(Input(old)) == r.UpdateDistanceToTail("r2", 7, None)


def test_segment_names_are_normalised() -> None:
    raw = bytes.fromhex(f"00 05 00 01 00 0000000a 00027231 {text('s/n/12')}")
    raw = raw[:5] + (len(raw) - 9).to_bytes(4, "big") + raw[9:]
    assert codec.decode_update(Input(raw)) == r.AcquireSegment("r1", "s/n/12.#epoch.0")


@pytest.mark.parametrize(
    ("raw", "error"),
    [
        ("", CorruptionError),
        ("00000003", CorruptionError),
        ("00000002", CorruptionError),
        ("00000002 0000000d 0002000100 00000004 000272", CorruptionError),
        ("00000002 ffffffff", CorruptionError),
        ("00000002 00000009 010d000100 00000000", FormatVersionError),
        ("00000002 00000009 000e000100 00000000", FormatVersionError),
        ("00000002 00000009 000d010100 00000000", FormatVersionError),
        ("00000002 00000009 000d000101 00000000", CorruptionError),
        ("00000002 00000004 00020000", CorruptionError),
        ("00000002 0000000d 0002000100 00000004 0002c328", CorruptionError),
        ("00000002 0000000f 0005000100 00000006 00027231 0000", CorruptionError),
        ("00000002 0000000e 0003000100 00000005 00027232 7f", CorruptionError),
    ],
)
def test_bad_records_are_refused(raw: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        codec.decode_record(bytes.fromhex(raw))


@given(st.binary(max_size=200))
def test_arbitrary_bytes_raise_only_our_errors(raw: bytes) -> None:
    with contextlib.suppress(TailraceError):
        codec.decode_record(b"\0\0\0\2" + raw)


def test_client_objects() -> None:
    position = r.Position({S1: 93}, {S1: None})
    raw = bytes.fromhex(
        f"00 00 02 00 0000001d 01 {text(S1)} 405d 01 0000002b 01 {text(S1)} bff0000000000000 bff0000000000000"
    )
    assert codec.POSITION.encode(position) == raw
    assert codec.POSITION.decode(raw) == position
    ended = r.Position({"a/b/2.#epoch.1": -1}, {"a/b/2.#epoch.1": KeyRange(0.25, 0.5)})
    assert codec.POSITION.encode(ended).hex().startswith("000002000000001901000e")
    assert "fffffffffffffffe" in codec.POSITION.encode(ended).hex()
    assert codec.POSITION.decode(codec.POSITION.encode(ended)) == ended
    cut = StreamCut("a", "b", {(1 << 32) + 2: -1})
    assert codec.STREAM_CUT.encode(cut) == bytes.fromhex("00 01 01 00 0000000f 0003612f62 01 c000000100000002 80")
    assert codec.STREAM_CUT.decode(codec.STREAM_CUT.encode(cut)) == cut
    old = bytes.fromhex("00 00 01 00 00000008 0003612f62 01 00 3f")
    assert codec.STREAM_CUT.decode(old) == StreamCut("a", "b", {0: 63})


def test_checkpoint_holds_inlined_cuts() -> None:
    checkpoint = r.Checkpoint("cp1", {STREAM: StreamCut("rgdmwpu6y0u", "s", {0: 117, 1: 93})})
    raw = bytes.fromhex(
        f"00 00 01 00 00000033 0003637031 01 {text(STREAM)} 00 01 01 00 00000016 {text(STREAM)} 02 00 2075 01 205d"
    )
    assert codec.CHECKPOINT.encode(checkpoint) == raw
    assert codec.CHECKPOINT.decode(raw) == checkpoint


@given(st.integers(0, 2**30 - 1), st.integers(-1, 2**62 - 3), st.integers(-(2**61), 2**61 - 1), st.text(max_size=30))
def test_primitives_round_trip(small: int, long: int, signed: int, string: str) -> None:
    string = string.encode("utf-16-le", "replace").decode("utf-16-le")
    out = bytearray()
    kinds = (COMPACT_INT, COMPACT_LONG, COMPACT_SIGNED_LONG, TEXT)
    for kind, value in zip(kinds, (small, long, signed, string), strict=True):
        kind.write(out, value)
    source = Input(bytes(out))
    assert [kind.read(source) for kind in kinds] == [small, long, signed, string]
    assert source.position == source.end


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0, "00"), (127, "7f"), (128, "8080"), (16383, "bfff"), (16384, "c0004000"), (2**30 - 1, "ffffffff")],
)
def test_compact_integer_sizes(value: int, expected: str) -> None:
    out = bytearray()
    COMPACT_INT.write(out, value)
    assert out.hex() == expected
