"""Reader groups from the command line: who reads what, and what a dead or silent reader keeps from others."""

from __future__ import annotations

import asyncio
import re
import time

import cbor2
import httpx

from tailrace.cli.groups import LOOK_EVERY_S, STILL_AFTER_S, Holders
from tailrace.client import Client, ScalingPolicy, StreamConfig, StreamName, group_config
from tailrace.client.group.rust import state_table
from tailrace.client.types import TableEntry
from tailrace.common.stream_cut import parse_stream_cut
from tailrace.common.stream_policies import StreamDataRetention

LINE_DEADLINE_S = 120.0
EVENT_BYTES = 8 + 3
"""What an event of three characters takes in a segment."""


async def write(client: Client, stream: StreamName, *events: str) -> None:
    async with client.writer(stream) as writer:
        for event in events:
            await writer.write_event(event.encode(), "key")


def test_a_group_is_shown_reset_and_deleted(cli, scope: str) -> None:
    stream = f"{scope}/s"
    cli.ok("stream", "create", stream)
    cli.ok("write", stream, text="one\ntwo\nsix\n")
    assert cli.value("group", "list", scope) == []
    assert cli.ok("read", stream, "--group", "mine", "--idle", "60s", "--limit", "1") == "one\n"
    assert cli.ok("group", "list", scope) == "mine\n"
    found = cli.value("group", "info", scope, "mine")
    assert (found["retention"], found["generation"], found["readers"]) == ("none", 0, [])
    assert found["unread_bytes"] == 2 * EVENT_BYTES
    (shown,) = found["streams"]
    assert (shown["stream"], shown["published"]) == (stream, None)
    cut = parse_stream_cut(shown["position"])
    assert cut is not None
    assert dict(cut.positions) == {0: EVENT_BYTES}
    assert found["free"] == {f"{stream}/0.#epoch.0": EVENT_BYTES}
    text = cli.ok("group", "info", scope, "mine")
    assert "no reader is online" in text
    assert f"{2 * EVENT_BYTES}" in text

    cli.ok("group", "reset", scope, "mine", "--to", "head")
    assert cli.value("group", "info", scope, "mine")["generation"] == 1
    reading = ("read", stream, "--group", "mine", "--idle", "60s", "--limit")
    assert cli.ok(*reading, "3") == "one\ntwo\nsix\n"
    cli.ok("group", "reset", scope, "mine", "--to", shown["position"])
    assert cli.ok(*reading, "2") == "two\nsix\n"
    cli.ok("group", "reset", scope, "mine", "--to", "head")
    cli.ok("group", "reset", scope, "mine", "--to", "tail")
    assert re.search(r"│ +0 │", cli.ok("group", "info", scope, "mine")), "nothing is unread"
    assert cli.ok("read", stream, "--group", "mine", "--idle", "1s") == ""
    cli.ok("group", "delete", scope, "mine")
    assert cli.ok("group", "list", scope) == ""


def test_events_that_were_truncated_before_they_were_read_are_named(cli, scope: str) -> None:
    stream = f"{scope}/cut"
    cli.ok("stream", "create", stream)
    cli.ok("write", stream, text="one\ntwo\nsix\n")
    assert cli.ok("read", stream, "--group", "mine", "--idle", "60s", "--limit", "1") == "one\n"
    cli.ok("stream", "truncate", stream, "tail")
    cli.ok("write", stream, text="ten\n")
    ended = cli.run("read", stream, "--group", "mine", "--idle", "60s", "--limit", "1")
    assert (ended.returncode, ended.stdout) == (0, "ten\n")
    missed = f"{2 * EVENT_BYTES} bytes from offset {EVENT_BYTES} to {3 * EVENT_BYTES}"
    assert ended.stderr == (
        f"tailrace: events are missed: segment {stream}/0.#epoch.0: {missed} were truncated before they were read; "
        f"of stream {stream} {2 * EVENT_BYTES} bytes in all: the group was at {{0.#epoch.0: {EVENT_BYTES}}}, "
        f"the stream begins at {{0.#epoch.0: {3 * EVENT_BYTES}}}\n"
    )


def test_a_truncation_of_many_segments_is_one_line(cli, scope: str) -> None:
    stream = f"{scope}/many"
    cli.ok("stream", "create", stream, "--segments", "4")
    lines = "".join(f'{{"k": "{number}"}}\n' for number in range(40))
    cli.ok("write", stream, "--key", "k", text=lines)
    assert cli.ok("read", stream, "--group", "mine", "--idle", "60s", "--limit", "1")
    cli.ok("stream", "truncate", stream, "tail")
    cli.ok("write", stream, "--key", "k", text='{"k": "last"}\n')
    ended = cli.run("read", stream, "--group", "mine", "--idle", "60s", "--limit", "1")
    assert (ended.returncode, ended.stdout) == (0, '{"k": "last"}\n')
    (line,) = ended.stderr.splitlines()
    written = sum(len(text) + 8 for text in lines.splitlines())
    first = len('{"k": "0"}') + 8
    (missed,) = re.findall(rf"of stream {stream} (\d+) bytes in all", line)
    assert int(missed) in (written - first, written - first - 1), "one event was read, of a key of one or two digits"
    assert line.partition("the group was at")[2].count("#epoch.0: ") == 8, "both cuts name all four segments"


def test_bad_input(cli, scope: str) -> None:
    streams = [f"{scope}/{name}" for name in ("a", "b")]
    for stream in streams:
        cli.ok("stream", "create", stream)
    cli.ok("read", streams[0], "--group", "mine", "--idle", "1ms")
    for command in ("info", "reset", "delete"):
        assert "does not exist" in cli.fails("group", command, scope, "other")
        assert "does not exist" in cli.fails("group", command, f"{scope}-not", "mine")
    assert "not allowed" in cli.fails("group", "info", scope, "not allowed")
    assert cli.fails("group", "offline", scope, "mine", "missing") == (
        f"tailrace: reader missing of reader group {scope}/mine is not online"
    )
    assert "does not exist" in cli.fails("group", "list", f"{scope}-not")
    tail = cli.value("stream", "info", streams[1])["tail"]
    assert f"does not read {streams[1]}" in cli.fails("group", "reset", scope, "mine", "--to", tail)
    assert "is for all streams" in cli.fails("group", "reset", scope, "mine", "--to", "head", "--to", tail)


async def test_a_reader_that_holds_segments_is_named_and_declared_offline(cli, scope: str) -> None:
    """The reader announces no heartbeats, as Java's: nothing takes over by itself."""
    stream = StreamName(scope, "held")
    async with Client(cli.endpoints.controller) as client:
        await client.streams.create_stream(stream, StreamConfig(scaling=ScalingPolicy.fixed(2)))
        await client.reader_groups(scope).create("mine", group_config({stream: None}, group_refresh_ms=100))
        silent = client.reader(scope, "mine", "silent", dead_after_s=None)
        await silent.start()
        await silent.read_batch(1, 1000)  # it takes the segments
        await write(client, stream, "one", "two")
        found = cli.value("group", "info", scope, "mine")
        assert [reader["reader"] for reader in found["readers"]] == ["silent"]
        assert found["readers"][0]["unread_bytes"] == found["unread_bytes"] == 2 * EVENT_BYTES
        assert found["readers"][0]["dead_after_s"] is None
        held = len(found["readers"][0]["segments"])
        ended = cli.run("read", str(stream), "--group", "mine", "--idle", "1s")
        assert (ended.returncode, ended.stdout) == (0, "")
        assert f"tailrace: reader silent holds {held} segments with {2 * EVENT_BYTES} unread bytes" in ended.stderr
        assert f"tailrace group offline {scope} mine silent" in ended.stderr

        cli.ok("group", "offline", scope, "mine", "silent")
        assert cli.ok("read", str(stream), "--group", "mine", "--idle", "60s", "--limit", "2") == "one\ntwo\n"
        assert cli.value("group", "info", scope, "mine")["unread_bytes"] == 0


async def test_while_following_a_reader_without_progress_is_reported_once_a_minute(cli, scope: str) -> None:
    stream = StreamName(scope, "followed")
    async with Client(cli.endpoints.controller) as client:
        await client.streams.create_stream(stream)
        group = client.reader_groups(scope)
        await group.create("mine", group_config({stream: None}, group_refresh_ms=100))
        async with client.reader(scope, "mine", "slow", dead_after_s=30.0) as slow:
            await slow.read_batch(1, 1000)
            reports: list[str] = []
            holders = Holders(client.context, await group.open("mine"), "own", reports.append)
            await holders.look(100.0)
            await holders.look(100.0 + 2 * STILL_AFTER_S)
            assert reports == [], "nothing is unread"
            await write(client, stream, "one", "two")
            await holders.look(200.0)
            await holders.look(200.0 + STILL_AFTER_S)
            assert reports == [], "a second more for each other reader"
            await holders.look(200.0 + STILL_AFTER_S + LOOK_EVERY_S)
            await holders.look(200.0 + 2 * STILL_AFTER_S)
            assert reports == [
                "reader slow has held 1 segment for 13 s without progress; if it has ended, others take over after 30 s"
            ]
            await holders.look(261.0 + STILL_AFTER_S + LOOK_EVERY_S)
            assert len(reports) == 2, "again after a minute"


async def test_a_group_is_described_over_rest(cli, scope: str) -> None:
    """Readers, segments, positions, unread bytes, the last checkpoint and what was published."""
    stream = StreamName(scope, "rest")
    async with Client(cli.endpoints.controller) as client, httpx.AsyncClient(base_url=cli.endpoints.rest) as rest:
        path = f"/v1/scopes/{scope}/readergroups/mine"
        assert (await rest.get(path)).status_code == 404
        await client.streams.create_stream(stream)
        automatic = StreamDataRetention.AUTOMATIC_AT_LAST_CHECKPOINT
        config = group_config({stream: None}, group_refresh_ms=100, retention=automatic)
        await client.reader_groups(scope).create("mine", config)
        await write(client, stream, "one", "two", "six")
        group = await client.reader_groups(scope).open("mine")
        async with client.reader(scope, "mine", "a", dead_after_s=20.0) as reader:
            async with asyncio.timeout(LINE_DEADLINE_S):
                while not ((batch := await reader.read_batch(1, 1000)) and batch.events):  # it may be a checkpoint
                    continue
            checkpoint = asyncio.create_task(group.checkpoint("cp", deadline_s=LINE_DEADLINE_S))
            while not checkpoint.done():
                await reader.read_batch(1000, 50)
            segment, read = f"{stream}/0.#epoch.0", 3 * EVENT_BYTES
            async with asyncio.timeout(LINE_DEADLINE_S):
                while (found := (await rest.get(path)).json())["lagBytes"] or not found["streams"][0]["published"]:
                    await reader.read_batch(1000, 50)
            assert (found["scopeName"], found["readerGroupName"]) == (scope, "mine")
            assert (found["streamList"], found["onlineReaderIds"]) == ([str(stream)], ["a"])
            assert (found["retentionType"], found["generation"]) == ("AUTOMATIC_AT_LAST_CHECKPOINT", 0)
            (one,) = found["readers"]
            assert (one["readerId"], one["segments"], one["deadAfterSeconds"]) == ("a", {segment: read}, 20.0)
            (of_stream,) = found["streams"]
            assert of_stream["position"] == {"0": read}
            assert of_stream["lastCheckpoint"] == of_stream["published"]
            assert of_stream["lastCheckpoint"]["0"] in (EVENT_BYTES, 2 * EVENT_BYTES, read)
            await write(client, stream, "ten")
        left = (await rest.get(path)).json()
        assert (left["onlineReaderIds"], left["readers"], left["lagBytes"]) == ([], [], EVENT_BYTES)
        assert left["unassignedSegments"] == {segment: read}
        await client.reader_groups(scope).delete("mine")
        assert (await rest.get(path)).status_code == 404


class Key(dict[str, object]):
    """A map that is the key of a map."""

    def __hash__(self) -> int:  # type: ignore[override]
        return id(self)


def rust_entry(outer: str, inner: str, type_id: str, data: object) -> TableEntry:
    """A key as the Rust client writes it (docs/protocol/reader-group-state.md#rust-groups)."""
    key = f"{len(outer):02}{outer}" + (f"/{inner}" if inner else "")
    return TableEntry(cbor2.dumps(key), cbor2.dumps({"type_id": type_id, "data": list(cbor2.dumps(data))}))


async def test_a_group_of_the_rust_client_is_described(cli, scope: str) -> None:
    """By the command line and over REST, from the table that such clients keep its state in."""
    stream = StreamName(scope, "rust")
    parts = {"scope": {"name": scope}, "stream": {"name": "rust"}}
    read, free = (f"{stream}/{number}.#epoch.0" for number in (0, 1))
    async with Client(cli.endpoints.controller) as client:
        await client.streams.create_stream(stream, StreamConfig(scaling=ScalingPolicy.fixed(2)))
        await write(client, stream, "one", "two")
        table = state_table(scope, "theirs")
        await client.context.segments.create_table(table)
        entries = [
            rust_entry("config", "default", "X", {"V1": {"starting_stream_cuts": {Key(parts): "Unbounded"}}}),
            rust_entry("assigned_segments", "r1", "X", {Key({**parts, "segment": {"number": 0}}): {"read": 0}}),
            rust_entry("assigned_segments", "gone", "tombstone", {}),
            rust_entry("unassigned_segments", free, "Offset", {"read": 0}),
        ]
        await client.context.segments.table_update(table, entries)
        found = cli.value("group", "info", scope, "theirs")
        assert (found["id"], found["retention"], found["unread_bytes"]) == (None, "none", 2 * EVENT_BYTES)
        assert [(each["reader"], each["segments"]) for each in found["readers"]] == [("r1", {read: 0})]
        assert found["free"] == {free: 0}
        assert "no heartbeats" in cli.ok("group", "info", scope, "theirs")
        async with httpx.AsyncClient(base_url=cli.endpoints.rest) as rest:
            shown = (await rest.get(f"/v1/scopes/{scope}/readergroups/theirs")).json()
        assert (shown["onlineReaderIds"], shown["readerGroupId"]) == (["r1"], None)
        assert shown["lagBytes"] == 2 * EVENT_BYTES
        await client.context.segments.table_update(table, [TableEntry(b"?", b"?")])
        assert "cannot be read" in cli.fails("group", "info", scope, "theirs")


def test_the_oldest_unread_event_has_waited_as_recorded_cuts_tell(cli, scope: str) -> None:
    stream = f"{scope}/timed"
    cli.ok("stream", "create", stream)
    cli.ok("write", stream, text="one\ntwo\nsix\n")
    assert cli.value("stream", "cuts", stream) == []
    assert cli.ok("read", stream, "--group", "mine", "--idle", "60s", "--limit", "1") == "one\n"
    found = cli.value("group", "info", scope, "mine")
    assert (found["lag_least_s"], found["lag_most_s"]) == (None, None)
    cli.ok("stream", "update", stream, "--retention-time", "1d")  # a changed policy is applied at once
    deadline_s = time.monotonic() + LINE_DEADLINE_S
    while not (cuts := cli.value("stream", "cuts", stream)):
        assert time.monotonic() < deadline_s, "no cut was recorded"
    assert [cut["positions"] for cut in cuts] == [{"0": 3 * EVENT_BYTES}]
    line = cli.ok("stream", "cuts", stream)
    cut = parse_stream_cut(line.split()[1])
    assert cut is not None
    assert dict(cut.positions) == {0: 3 * EVENT_BYTES}

    found = cli.value("group", "info", scope, "mine")
    age_s = time.time() - cuts[0]["recorded_ms"] / 1000
    assert 0 <= found["lag_least_s"] <= age_s + 1
    assert found["lag_most_s"] is None
    assert found["streams"][0]["lag_least_s"] == found["lag_least_s"]
    assert "at least" in cli.ok("group", "info", scope, "mine")
    shown = httpx.get(f"{cli.endpoints.rest}/v1/scopes/{scope}/readergroups/mine").json()
    assert shown["lagSecondsLeast"] >= found["lag_least_s"]
    assert shown["streams"][0]["lagSecondsMost"] is None

    assert cli.ok("read", stream, "--group", "mine", "--idle", "60s", "--limit", "2") == "two\nsix\n"
    found = cli.value("group", "info", scope, "mine")
    assert (found["lag_least_s"], found["lag_most_s"]) == (0, 0)
    cli.ok("write", stream, text="ten\n")
    found = cli.value("group", "info", scope, "mine")
    assert found["lag_least_s"] is None
    assert found["lag_most_s"] >= age_s
    assert "at most" in cli.ok("group", "info", scope, "mine")
