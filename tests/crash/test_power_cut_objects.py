"""Power cuts while objects are put into a folder: recorded system calls, replayed; see test_power_cut for the log."""

from __future__ import annotations

import copy
import random
import re
import subprocess
import sys
from dataclasses import dataclass

import pytest

from sim import SimWorld
from sim.recorded import Call, Event, Replay, events_below, read_calls, strace_command
from tailrace.common.limits import STORAGE_DIRECT_MIN_BYTES

LARGE = STORAGE_DIRECT_MIN_BYTES
LENGTHS = [100, LARGE - 1, LARGE, LARGE + 5, LARGE + 40_000, 7]
CUTS_EACH = {"ci": 3, "full": 60}
"""Power cuts at each event of the recording."""

WRITER = """
import asyncio, os, sys
from pathlib import Path
from tailrace.storage.folder_objects import FolderObjects

async def main(folder, lengths):
    store = FolderObjects(Path(folder))
    async def put(number, length):
        await store.put(f"c1/{number}", [b"<%d>" % number, b"x" * (length - 3)])
        os.write(1, b"ack %d\\n" % number)
    for number, length in enumerate(lengths):
        await put(number, length)
    await asyncio.gather(*(put(number, length) for number, length in enumerate(lengths)))

asyncio.run(main(sys.argv[1], [int(length) for length in sys.argv[2:]]))
"""


def content(number: int) -> bytes:
    """As WRITER makes it."""
    return b"<%d>" % number + b"x" * (LENGTHS[number] - 3)


@dataclass
class Recording:
    """A recorded run of the writer, and when which object was acknowledged."""

    folder: str
    events: list[Event]
    acknowledged: list[tuple[float, int]]


def _acknowledged(calls: list[Call]) -> list[tuple[float, int]]:
    found = []
    for call in calls:
        if call.name == "write" and call.texts and (match := re.fullmatch(rb"ack (\d+)\n", call.texts[0])):
            found.append((call.started_s, int(match[1])))
    return found


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    root = tmp_path_factory.mktemp("power")
    output, folder = root / "strace", root / "tier2"
    folder.mkdir()
    program = [sys.executable, "-c", WRITER, str(folder), *map(str, LENGTHS)]
    command = [*strace_command(output, string_bytes=2 * LARGE), *program]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=120)
    calls = read_calls(output)
    return Recording(str(folder), events_below(calls, str(folder)), _acknowledged(calls))


@pytest.mark.timeout(1800)  # of the long form
def test_an_object_is_whole_or_missing_and_never_missing_once_acknowledged(
    recording: Recording, test_seed: int, test_profile: str
) -> None:
    assert len(recording.acknowledged) == 2 * len(LENGTHS)
    rng = random.Random(test_seed)
    with SimWorld(test_seed) as live:
        replay = Replay(live.disk)
        for event in recording.events:
            replay.apply(event)
            known = {number for at_s, number in recording.acknowledged if at_s <= event.at_s}
            for _ in range(CUTS_EACH[test_profile]):
                _check_after_cut(live, recording.folder, rng.getrandbits(32), known)
    assert known == set(range(len(LENGTHS)))


def _check_after_cut(live: SimWorld, folder: str, seed: int, known: set[int]) -> None:
    with SimWorld(seed) as world:
        world.disk.directories = copy.deepcopy(live.disk.directories)
        world.disk.cut_power()
        objects = world.disk.directories.get(f"{folder}/c1")
        found = {name: bytes(inode.seen) for name, inode in objects.seen.items() if "#" not in name} if objects else {}
    for name, data in found.items():
        assert data == content(int(name)), f"{name} has {len(data)} bytes"
    assert known <= {int(name) for name in found}
