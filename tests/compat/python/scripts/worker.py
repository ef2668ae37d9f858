"""A reader or writer in a process of its own; ``harness.Worker`` starts it and talks to it by files in its folder.

``worker.py FOLDER read SCOPE STREAM GROUP READER``: joins the group by a first name, touches ``joined``; on
``join-again``, goes offline and joins by its own name, touches ``joined-again``; on ``go``, notes each event in
``events`` before it releases its slice, and a dot in ``empty`` for each slice without any; goes offline on ``stop``.
``worker.py FOLDER write SCOPE STREAM KEYS LENGTH``: touches ``connected``; on ``go``, writes rounds of one event per
key until ``stop``, waits until all are acknowledged and notes in ``result`` how many rounds they were.
"""

from __future__ import annotations

import asyncio
import faulthandler
import json
import os
import sys
import time
from pathlib import Path

import harness

PAUSE_BETWEEN_ROUNDS_S = 0.03


def _wait_for(folder: Path, word: str) -> None:
    harness.wait_until(lambda: (folder / word).exists(), f"the order {word}")


async def _read(folder: Path, scope: str, stream: str, group_name: str, reader_name: str) -> None:
    client = harness.manager()  # everything made from it works only as long as it lives
    group = client.create_reader_group(group_name, scope, stream)
    first = group.create_reader(f"{reader_name}-first")
    (folder / "joined").touch()
    _wait_for(folder, "join-again")
    first.reader_offline()
    reader = group.create_reader(reader_name)
    (folder / "joined-again").touch()
    _wait_for(folder, "go")
    with (folder / "events").open("w") as output, (folder / "empty").open("wb", buffering=0) as empty:
        while not (folder / "stop").exists():
            piece = await harness.read_slice(reader)
            now_ns = time.monotonic_ns()
            found = [harness.recognise(bytes(one.data())) for one in piece]
            for key, sequence in found:
                output.write(f"{now_ns} {key} {sequence}\n")
            output.flush()
            reader.release_segment(piece)
            if not found:
                empty.write(b".")
    reader.reader_offline()


def _write(folder: Path, scope: str, stream: str, keys: int, length: int) -> None:
    client = harness.manager()
    writer = client.create_writer(scope, stream, harness.IN_FLIGHT)
    names = harness.keys(keys)
    (folder / "connected").touch()
    _wait_for(folder, "go")
    rounds = 0
    while not (folder / "stop").exists():
        for name in names:
            writer.write_event_bytes(harness.event(name, rounds, length), routing_key=name)
        rounds += 1
        (folder / "rounds").write_text(str(rounds))
        time.sleep(PAUSE_BETWEEN_ROUNDS_S)
    writer.flush()
    (folder / "result").write_text(json.dumps({"rounds": rounds}))


def main() -> None:
    faulthandler.enable()  # the client is native code
    folder, what, *arguments = sys.argv[1:]
    if what == "read":
        scope, stream, group, reader = arguments
        asyncio.run(_read(Path(folder), scope, stream, group, reader))
    else:
        scope, stream, keys, length = arguments
        _write(Path(folder), scope, stream, int(keys), int(length))
    os._exit(0)  # all is written down; the client's threads may outlive the interpreter, and crash then


main()
