"""Every request with extreme values in every field: an answer or the end of its connection, never a defect."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from tailrace.segmentstore.server.requests import HANDLERS
from tailrace.wire import codec, fields
from tailrace.wire import commands as c
from tailrace.wire.command import Slot, layout_of

W = bytes(range(16))
SEGMENT = "scope/stream/0.#epoch.0"
TABLE = "scope/table_kvtable/0.#epoch.0"
FIXED = "scope/fixed_kvtable/0.#epoch.0"
BYSTANDER = "scope/bystander/0.#epoch.0"
NAMES = (SEGMENT, TABLE, FIXED, "scope/none/0.#epoch.0", "", "a\nb", "../../x", "é" * 600, SEGMENT + "#transient.")
APPENDS = (c.SetupAppend, c.AppendBlock, c.AppendBlockEnd, c.ConditionalAppend, c.ConditionalBlockEnd)
KINDS = [*HANDLERS, *APPENDS, *APPENDS, c.KeepAlive, c.Padding]
CONNECTIONS = 120


def extreme(generator: random.Random, slot: Slot) -> Any:
    """A value that its field can carry, and that is seldom sensible."""
    bulk = generator.randbytes(generator.choice([0, 1, 8, 16, 300, 9000]))
    match slot.field:
        case fields.IntegerField() as field:
            bits = 8 * field.min_bytes
            return generator.choice([0, 1, -1, 2, 1 << bits - 2, (1 << bits - 1) - 1, -(1 << bits - 1)])
        case fields.FlagField():
            return generator.random() < 0.5
        case fields.UuidField():
            return generator.choice([W, bytes(16), generator.randbytes(16), b"\x80" + bytes(15)])
        case fields.TextField():
            return generator.choice(["", "a.b.c", "\r\nsecret"] if slot.name == "token" else NAMES)
        case fields.PaddingField():
            return len(bulk)
        case fields.ListField() as field:
            return [item(generator, field.item, bulk) for _ in range(generator.randrange(4))]
    return bulk


def item(generator: random.Random, field: fields.Field, bulk: bytes) -> Any:
    number = generator.choice([0, 1, -1, 2**63 - 1, -(2**63)])
    key = generator.choice([b"", b"k", b"key-0001", b"x" * 9000])
    match field:
        case fields.TableKeyField():
            return c.TableKey(key, number)
        case fields.TableEntryField():
            return c.TableEntry(key, bulk, number)
        case fields.TextField():
            return generator.choice(NAMES)
    return c.AttributeCondition(generator.choice([W, bytes(16)]), generator.randrange(-1, 6), number, number)


def request(generator: random.Random) -> bytes:
    """A frame of a random command; now and then with a byte of it changed."""
    kind = generator.choice(KINDS)
    frame = bytearray(codec.encode(kind(**{slot.name: extreme(generator, slot) for slot in layout_of(kind)})))
    if generator.random() < 0.1:
        frame[generator.randrange(len(frame))] = generator.randrange(256)
    return bytes(frame)


async def test_extreme_values_are_answered_or_close_their_connection(
    setting: Any, test_seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    generator = random.Random(test_seed)
    good = await setting.connect()
    await good.create(SEGMENT)
    await good.create(BYSTANDER)
    await good.setup(W, BYSTANDER)
    await good.call(c.AppendBlockEnd(W, 0, b"before", 1, 1, 1))
    for table, length in ((TABLE, 0), (FIXED, 8)):
        await good.call(c.CreateTableSegment(1, table, "", False, length, 0))
    for number in range(CONNECTIONS):
        bad = await setting.connect()
        if number % 2:
            await bad.call(c.SetupAppend(1, W, SEGMENT, ""))  # some request may have deleted it
        bad.send_raw(b"".join(request(generator) for _ in range(generator.randrange(1, 12))))
        bad.writer.write_eof()
        async with asyncio.timeout(20):
            try:
                while await bad.reader.read(1 << 16):
                    continue
            except ConnectionError:
                pass
        bad.close()
    await setting.until(lambda: setting.server.connections == 1)
    assert await good.read_all(BYSTANDER) == b"before"
    assert isinstance(await good.call(c.AppendBlockEnd(W, 0, b" after", 1, 2, 1)), c.DataAppended)
    assert await good.read_all(BYSTANDER) == b"before after"
    output = capsys.readouterr().out
    assert "secret" not in output
    for line in output.splitlines():
        # A defect is logged with the name of its exception; what the peer did wrong is told in words.
        assert "Traceback" not in line
        assert not any(f"{error}: " in line for error in ("TypeError", "KeyError", "ValueError", "OverflowError")), line
        assert "AssertionError" not in line
        assert "AttributeError" not in line
    await setting.until(lambda: setting.in_flight.outstanding_bytes == 0)
    await setting.until(lambda: setting.server.unanswered == 0)
