"""Every request with extreme values in every field: an answer or the end of its connection, never a defect."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import random
import re
from typing import Any

import pytest

from tailrace.common import errors
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
BUILT_IN = r"\b(?!ConnectionError|ConnectionResetError|BrokenPipeError|TimeoutError)[A-Z]\w*(?:Error|Exception): "
OURS = {name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)}


def extreme(generator: random.Random, slot: Slot) -> Any:
    """A value that its field can carry, and that is seldom sensible."""
    bulk = generator.randbytes(generator.choice([0, 1, 8, 16, 300, 9000]))
    match slot.field:
        case fields.IntegerField() as field:
            return integer(generator, field)
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


def integer(generator: random.Random, field: fields.IntegerField) -> int:
    bits = 8 * field.min_bytes
    return generator.choice([0, 1, -1, 2, 1 << bits - 2, (1 << bits - 1) - 1, -(1 << bits - 1)])


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
        case fields.IntegerField():
            return integer(generator, field)
    return c.AttributeCondition(generator.choice([W, bytes(16)]), generator.randrange(-1, 6), number, number)


def request(generator: random.Random) -> bytes:
    """A frame of a random command; now and then with a byte of it changed."""
    kind = generator.choice(KINDS)
    frame = bytearray(codec.encode(kind(**{slot.name: extreme(generator, slot) for slot in layout_of(kind)})))
    if generator.random() < 0.1:
        frame[generator.randrange(len(frame))] = generator.randrange(256)
    return bytes(frame)


def defects(output: str) -> list[str]:
    """Lines that show a defect: a traceback, or the name of an error that is none of ours and none of a socket's."""
    found = []
    for line in output.splitlines():
        named = [match.group().removesuffix(": ") for match in re.finditer(BUILT_IN, line)]
        if "Traceback" in line or any(name not in OURS for name in named):
            found.append(line)
    return found


@pytest.fixture
def logged(capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> Any:
    """Return what was printed, logged, or left in a task that failed, since the last call."""

    def take() -> str:
        gc.collect()  # asyncio reports the failure of a task that was never asked when the task is freed
        printed, text = capsys.readouterr(), caplog.text
        caplog.clear()
        return printed.out + printed.err + text

    return take


async def storm(setting: Any, generator: random.Random) -> int:
    """Send extreme requests over many connections; return how many bytes the server answered."""
    answered_bytes = 0
    for number in range(CONNECTIONS):
        bad = await setting.connect()
        if number % 2:
            await bad.call(c.SetupAppend(1, W, SEGMENT, ""))  # some request may have deleted it
        bad.send_raw(b"".join(request(generator) for _ in range(generator.randrange(1, 12))))
        bad.writer.write_eof()
        async with asyncio.timeout(120):
            try:
                while data := await bad.reader.read(1 << 16):
                    answered_bytes += len(data)
            except ConnectionError:
                pass
        bad.close()
    await setting.until(lambda: setting.server.connections == 1)
    return answered_bytes


async def test_extreme_values_are_answered_or_close_their_connection(setting: Any, test_seed: int, logged: Any) -> None:
    good = await setting.connect()
    await good.create(SEGMENT)
    await good.create(BYSTANDER)
    await good.setup(W, BYSTANDER)
    await good.call(c.AppendBlockEnd(W, 0, b"before", 1, 1, 1))
    for table, length in ((TABLE, 0), (FIXED, 8)):
        await good.call(c.CreateTableSegment(1, table, "", False, length, 0))
    before = len(setting.authorized)
    answered_bytes = await storm(setting, random.Random(test_seed))
    reached = len(setting.authorized) - before
    print(f"{reached} requests reached a container, {answered_bytes} bytes were answered")
    assert reached > CONNECTIONS
    assert answered_bytes > 0
    assert await good.read_all(BYSTANDER) == b"before"
    assert isinstance(await good.call(c.AppendBlockEnd(W, 0, b" after", 1, 2, 1)), c.DataAppended)
    assert await good.read_all(BYSTANDER) == b"before after"
    output = logged()
    assert "connection closed" in output, "the server's lines are not among what is searched"
    assert "secret" not in output
    assert not defects(output), defects(output)[:5]
    await setting.until(lambda: setting.in_flight.outstanding_bytes == 0)
    await setting.until(lambda: setting.server.unanswered == 0)


@pytest.mark.parametrize("kind", [IndexError, LookupError, RuntimeError, MemoryError])
async def test_a_defect_would_be_seen(
    setting: Any, logged: Any, monkeypatch: pytest.MonkeyPatch, kind: type[Exception]
) -> None:
    async def fails(*_: object) -> Any:
        raise kind("planted")

    handler = HANDLERS[c.GetStreamSegmentInfo]
    monkeypatch.setitem(HANDLERS, c.GetStreamSegmentInfo, dataclasses.replace(handler, function=fails))
    client = await setting.connect()
    client.send(c.GetStreamSegmentInfo(1, SEGMENT, ""))
    await client.expect_end()
    await setting.until(lambda: setting.server.connections == 0)
    assert defects(logged())
