"""Writing and reading from the command line."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import select
import shlex
import signal
import sys
import tty
from collections import defaultdict
from pathlib import Path

import pytest

from tailrace.cli.temporary import Maker, group_name, remove_groups_left_behind, this_process
from tailrace.client import Client, StreamName, group_config
from tailrace.common.stream_cut import parse_stream_cut

LINE_DEADLINE_S = 120.0


def groups(cli, scope: str) -> list[str]:
    return [name for name in cli.value("stream", "list", scope, "--all") if "/_RG" in name]


def test_lines_of_standard_input(cli, scope: str) -> None:
    stream = f"{scope}/lines"
    cli.ok("stream", "create", stream)
    report = cli.value("write", stream, text="one\n\ntwo\nwithout an end")
    assert (report["events"], report["bytes"]) == (3, 20)
    assert set(report) == {"events", "bytes", "seconds", "events_per_s"}
    assert cli.ok("read", stream) == "one\ntwo\nwithout an end\n"
    assert groups(cli, scope) == []


def test_a_file_by_key_over_several_segments(cli, scope: str, lines: Path) -> None:
    stream = f"{scope}/keyed"
    cli.ok("stream", "create", stream, "--segments", "4")
    assert cli.ok("write", stream, str(lines), "--key", "key").startswith("5,000 events, ")
    read = cli.ok("read", stream).splitlines()
    assert sorted(read) == sorted(lines.read_text().splitlines())
    by_key = defaultdict(list)
    for event in map(json.loads, read):
        by_key[event["key"]].append(event["n"])
    assert len(by_key) == 7
    assert all(numbers == sorted(numbers) for numbers in by_key.values())
    assert "has no field nothing" in cli.fails("write", stream, str(lines), "--key", "nothing")
    assert cli.fails("write", stream, "/no/such/file") == "tailrace: /no/such/file: No such file or directory"


def test_reading_across_scales(cli, scope: str, lines: Path) -> None:
    stream = f"{scope}/scaled"
    cli.ok("stream", "create", stream)
    for segments in (3, 2, 4):
        cli.ok("write", stream, str(lines), "--key", "key")
        cli.ok("stream", "scale", stream, "--segments", str(segments))
    cli.ok("write", stream, str(lines), "--key", "key")
    by_key = defaultdict(list)
    for event in map(json.loads, cli.ok("read", stream).splitlines()):
        by_key[event["key"]].append(event["n"])
    for key, numbers in by_key.items():
        once = [number for number in range(5000) if f"k{number % 7}" == key]
        assert numbers == once * 4


def test_json_has_the_position_of_an_event(cli, scope: str) -> None:
    stream = f"{scope}/json"
    cli.ok("stream", "create", stream)
    cli.ok("write", stream, text="ü\nlonger\n")
    found = [json.loads(line) for line in cli.ok("read", stream, "--json").splitlines()]
    segment = f"{stream}/0.#epoch.0"
    assert found == [
        {"segment": segment, "offset": 0, "event": "ü"},
        {"segment": segment, "offset": 10, "event": "longer"},
    ]


def test_bytes_that_are_no_text(cli, scope: str, tmp_path: Path) -> None:
    stream = f"{scope}/bytes"
    cli.ok("stream", "create", stream)
    file = tmp_path / "bytes"
    file.write_bytes(b"\xff\xfe\x00")
    cli.ok("write", stream, str(file))
    assert base64.b64decode(json.loads(cli.ok("read", stream, "--json"))["event_base64"]) == b"\xff\xfe\x00"


def test_where_reading_begins_and_ends(cli, scope: str) -> None:
    stream = f"{scope}/positions"
    cli.ok("stream", "create", stream)
    cli.ok("write", stream, text="one\ntwo\n")
    cut = cli.value("stream", "info", stream)["tail"]
    assert parse_stream_cut(cut) is not None
    cli.ok("write", stream, text="three\nfour\n")
    assert cli.ok("read", stream, "--from", "head") == "one\ntwo\nthree\nfour\n"
    assert cli.ok("read", stream, "--from", cut) == "three\nfour\n"
    assert cli.ok("read", stream, "--from", "tail") == ""
    assert cli.ok("read", stream, "--limit", "3") == "one\ntwo\nthree\n"
    assert groups(cli, scope) == []


def test_a_group_goes_on_where_it_was(cli, scope: str) -> None:
    stream = f"{scope}/grouped"
    cli.ok("stream", "create", stream)
    cli.ok("write", stream, text="one\ntwo\nthree\n")
    reading = ("read", stream, "--group", "mine")
    some, rest = (*reading, "--idle", "60s", "--limit"), (*reading, "--idle", "1s")
    assert cli.ok(*some, "2") == "one\ntwo\n"
    assert groups(cli, scope) == [f"{scope}/_RGmine"]
    assert cli.ok(*some, "1") == "three\n"
    assert cli.ok(*rest) == ""
    cli.ok("write", stream, text="four\n")
    found = (cli.ok(*rest) for _ in range(60))  # without a limit, each ends by idleness; a busy server may need some
    assert next(filter(None, found)) == "four\n"
    assert cli.ok(*rest) == ""
    assert "exists and continues at its position" in cli.fails(*reading, "--from", "head")
    cli.ok("stream", "create", f"{scope}/other")
    assert "does not read" in cli.fails("read", f"{scope}/other", "--group", "mine")
    assert "reader group name" in cli.fails("read", stream, "--group", "not allowed")


async def test_following_until_interrupted(cli, scope: str) -> None:
    stream = f"{scope}/followed"
    cli.ok("stream", "create", stream)
    assert cli.ok("write", stream, text="one\n").startswith("1 event, 3 B in ")
    async with cli.running("read", stream, "--follow") as reading, cli.running("write", stream) as writing:
        assert reading.stdout is not None
        assert writing.stdin is not None
        for line in (b"one\n", b"two\n", b"three\n"):
            if line != b"one\n":
                writing.stdin.write(line)
                await writing.stdin.drain()
            async with asyncio.timeout(LINE_DEADLINE_S):
                assert await reading.stdout.readline() == line
        writing.stdin.close()
        out, _ = await writing.communicate()
        assert out.startswith(b"2 events, 8 B in ")
        reading.send_signal(signal.SIGINT)
        async with asyncio.timeout(LINE_DEADLINE_S):
            assert await reading.wait() == 130
        assert await reading.stdout.read() == b""
    assert groups(cli, scope) == []


async def test_the_temporary_group_is_deleted_on_sigterm_and_at_a_closed_pipe(cli, scope: str) -> None:
    stream = f"{scope}/ended"
    cli.ok("stream", "create", stream)
    cli.ok("write", stream, text="one\n")
    async with cli.running("read", stream, "--follow") as reading:
        assert reading.stdout is not None
        async with asyncio.timeout(LINE_DEADLINE_S):
            assert await reading.stdout.readline() == b"one\n"
            reading.terminate()
            assert await reading.wait() == 128 + signal.SIGTERM
    assert groups(cli, scope) == []
    cli.ok("write", stream, text="x" * 60 + "\n" + ("y" * 1000 + "\n") * 20_000)
    piped = await asyncio.create_subprocess_shell(
        f"{cli_command()} read {stream} | head -n 1", env=cli.environment, stdout=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(LINE_DEADLINE_S):
        out, _ = await piped.communicate()
    assert out == b"one\n"
    assert groups(cli, scope) == []


async def test_a_group_reads_again_what_could_not_be_printed(cli, scope: str) -> None:
    stream = f"{scope}/unprinted"
    cli.ok("stream", "create", stream)
    cli.ok("write", stream, text="".join(f"{number}\n" for number in range(20_000)))
    read = f"{cli_command()} read {stream} --group mine --idle 60s"
    for output in ("> /dev/full", "| head -n 3"):
        shell = await asyncio.create_subprocess_shell(
            f"{read} {output}", env=cli.environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        async with asyncio.timeout(LINE_DEADLINE_S):
            out, err = await shell.communicate()
        expected = (b"", b"tailrace: No space left on device\n") if "full" in output else (b"0\n1\n2\n", b"")
        assert (out, err) == expected


@pytest.mark.parametrize("options", [(), ("--json",)])
async def test_a_read_whose_output_is_full_ends_at_sigterm_and_loses_nothing(
    cli, scope: str, options: tuple[str, ...]
) -> None:
    stream = f"{scope}/full"
    cli.ok("stream", "create", stream)
    count = 30_000
    cli.ok("write", stream, text="".join(f"{number}\n" for number in range(count)))
    reading_group = ("read", stream, "--group", "mine", *options)
    arguments = (*reading_group, "--idle", "60s")
    output, full = os.pipe()
    reading = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tailrace.cli", *arguments), env=cli.environment, stdout=full
    )
    try:
        poll = select.poll()
        poll.register(full, select.POLLOUT)
        async with asyncio.timeout(LINE_DEADLINE_S):
            while poll.poll(0):  # noqa: ASYNC110  # it has no reader
                await asyncio.sleep(0.01)
            reading.terminate()
            assert await reading.wait() == 128 + signal.SIGTERM
    finally:
        if reading.returncode is None:
            reading.kill()
        os.close(full)
    whole = [number_of(line) for line in lines_of(output)]
    first = number_of(cli.ok(*arguments, "--limit", "1"))
    left = cli.ok(*arguments, "--limit", str(count - 1 - first))
    rest = [first, *(number_of(line) for line in left.splitlines())]
    assert cli.ok(*reading_group, "--idle", "1s") == ""
    assert whole == list(range(len(whole)))
    assert rest == list(range(rest[0], count))
    assert len(whole) - 1000 <= rest[0] <= len(whole), "it goes on with the batch that was not printed whole"


def lines_of(descriptor: int) -> list[str]:
    """All whole lines."""
    with open(descriptor) as file:
        return [line for line in file if line.endswith("\n")]


def number_of(line: str) -> int:
    found = json.loads(line)
    return int(found["event"]) if isinstance(found, dict) else found


async def test_the_temporary_group_of_a_killed_read_goes_with_the_next_one(cli, scope: str) -> None:
    stream = f"{scope}/killed"
    cli.ok("stream", "create", stream)
    cli.ok("write", stream, text="one\n")
    async with cli.running("read", stream, "--follow") as killed, cli.running("read", stream, "--follow") as alive:
        for reading in (killed, alive):
            async with asyncio.timeout(LINE_DEADLINE_S):
                assert await reading.stdout.readline() == b"one\n"
        assert len(groups(cli, scope)) == 2
        killed.kill()
        await killed.wait()
        assert cli.ok("read", stream) == "one\n"
        (left,) = groups(cli, scope)
        assert f"-{alive.pid}-" in left
        alive.send_signal(signal.SIGINT)
        async with asyncio.timeout(LINE_DEADLINE_S):
            assert await alive.wait() == 130
    assert groups(cli, scope) == []


async def test_groups_of_other_machines_go_when_they_were_quiet_for_long(cli, scope: str) -> None:
    elsewhere = Maker("0123456789abcdef", 1, 1)
    async with Client(cli.endpoints.controller) as client:
        stream = StreamName(scope, "quiet")
        await client.streams.create_stream(stream)
        manager = client.reader_groups(scope)
        theirs, own, shared = group_name(elsewhere), group_name(this_process()), "cli-of-a-user"
        for group in (theirs, shared, own):
            await manager.create(group, group_config({stream: None}))
        assert await remove_groups_left_behind(client.context, scope, own) == []
        assert await remove_groups_left_behind(client.context, scope, own, quiet_max_ms=0) == [theirs]
        assert sorted(await manager.list()) == sorted([own, shared])


def test_a_line_that_cannot_be_written_is_named(cli, scope: str, tmp_path: Path) -> None:
    stream = f"{scope}/bad"
    cli.ok("stream", "create", stream)
    file = tmp_path / "lines"
    file.write_text('{"k": 1}\n\n{"k": 2}\nthree\n{"k": 4}\n')
    assert cli.fails("write", stream, str(file), "--key", "k") == (
        "tailrace: line 4 is not JSON: 'three'; the 2 events before it are written"
    )
    assert sorted(cli.ok("read", stream).splitlines()) == ['{"k": 1}', '{"k": 2}']
    assert cli.fails("write", stream, "--key", "k", text='{"k": 1}\nthree\n') == (
        "tailrace: line 2 is not JSON: 'three'; the 1 event before it is written"
    )
    assert cli.fails("write", stream, "--key", "k", text='{"k": 1}\n' + '{"k":' * 100_000).startswith(
        "tailrace: line 2 has too many objects or arrays within each other: "
    )
    assert len(cli.ok("read", stream).splitlines()) == 4
    assert cli.fails("write", stream, str(tmp_path)) == f"tailrace: {tmp_path}: Is a directory"
    cli.ok("stream", "seal", stream)
    assert cli.fails("write", stream, text="x\n") == f"tailrace: stream {stream} is sealed"


async def test_lines_before_an_input_that_fails_are_written(cli, scope: str) -> None:
    """The end of a pseudo terminal with the master's side fails to read once the other side is closed."""
    stream = f"{scope}/failing"
    cli.ok("stream", "create", stream)
    master, slave = os.openpty()
    try:
        tty.setraw(slave)
        os.write(slave, b"one\ntwo\nhalf a line")
        writing = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tailrace.cli", "write", stream),
            env=cli.environment,
            stdin=master,
            stderr=asyncio.subprocess.PIPE,
        )
    finally:
        os.close(slave)
        os.close(master)
    async with asyncio.timeout(LINE_DEADLINE_S):
        _, err = await writing.communicate()
    assert err == b"tailrace: standard input: Input/output error; the 2 events before it are written\n"
    assert writing.returncode == 1
    assert cli.ok("read", stream) == "one\ntwo\n"


async def test_a_named_pipe_is_read_from_its_first_writer_to_its_last(cli, scope: str, tmp_path: Path) -> None:
    stream, pipe = f"{scope}/piped", tmp_path / "pipe"
    cli.ok("stream", "create", stream)
    os.mkfifo(pipe)
    async with cli.running("write", stream, str(pipe)) as ended, cli.running("write", stream, str(pipe)) as writing:
        for process in (ended, writing):
            await opens(process.pid, pipe)
        ended.terminate()
        async with asyncio.timeout(LINE_DEADLINE_S):
            assert await ended.wait() == 128 + signal.SIGTERM, "there is no writer"
        assert writing.returncode is None
        descriptor = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        os.write(descriptor, b"one\ntwo\n")
        os.close(descriptor)
        async with asyncio.timeout(LINE_DEADLINE_S):
            out, err = await writing.communicate()
    assert (out[:9], err) == (b"2 events,", b"")
    assert cli.ok("read", stream) == "one\ntwo\n"


async def opens(pid: int, file: Path) -> None:
    """Wait until a process has a file open."""

    def is_open() -> bool:
        with contextlib.suppress(FileNotFoundError):  # another file is closed meanwhile
            return any(each.readlink() == file for each in Path(f"/proc/{pid}/fd").iterdir())
        return False

    async with asyncio.timeout(LINE_DEADLINE_S):
        while not is_open():  # noqa: ASYNC110  # it says nothing by itself
            await asyncio.sleep(0.01)


async def test_closed_standard_streams(cli, scope: str) -> None:
    """`<&-` and `>&-`: the null device takes their place, not whatever the command opens next."""
    stream = f"{scope}/closed"
    cli.ok("stream", "create", stream)
    for command, text in ((f"write {stream} <&-", b"0 events, "), (f"stream info {stream} >&-", b"")):
        shell = await asyncio.create_subprocess_shell(
            f"{cli_command()} {command}",
            env=cli.environment,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        async with asyncio.timeout(LINE_DEADLINE_S):
            out, err = await shell.communicate()
        assert (shell.returncode, err) == (0, b"")
        assert out.startswith(text)


def cli_command() -> str:
    return shlex.join([sys.executable, "-m", "tailrace.cli"])
