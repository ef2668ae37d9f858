"""Power cuts: recorded system calls of real processes, replayed with any subset of what was not synced.

SIGKILL keeps the page cache, so killing alone shows nothing about syncing. Here strace records what a process writes,
syncs and acknowledges; every acknowledgement must leave after the sync of what it stands for, and whatever a power
cut keeps at any instant must recover everything that was acknowledged before it.
"""

from __future__ import annotations

import copy
import random
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from sim import SimProcess, SimWorld
from sim.recorded import Call, Event, Replay, events_below, read_calls, strace_command
from tailrace.log.file import FileLog

CUTS = {"ci": 150, "full": 3000}
FILE_BYTES = 128 * 1024
MAX_FRAME_BYTES = 16 * 1024

LOG_WRITER = """
import asyncio, os, sys
from tailrace.log.disk import RealDisk
from tailrace.log.file import FileLog

def payload(sequence):
    return b"<%d>" % sequence + bytes(sequence * 37 % 3000) + b"x" * (sequence * 91 % 5000)

async def main(folder, slow):
    disk = RealDisk()
    disk._sync_average_s = 1.0 if slow else 0.0
    for epoch in (1, 2):
        log = FileLog(disk, folder, 1, file_bytes=131072, max_frame_bytes=16384, reserve_bytes=0)
        await log.open(epoch, bytes(16))
        async def writer():
            for _ in range(20):
                future = log.append([payload(log.next_sequence)])
                future.add_done_callback(lambda done: os.write(1, b"ack %d\\n" % done.result()))
                if log.next_sequence % 3 == 0:
                    await future
        for _ in range(3):
            await asyncio.gather(*(writer() for _ in range(3)))
            await log.truncate(log.next_sequence - 50 if log.next_sequence > 50 else 0)
        await log.close()
    disk.close()

asyncio.run(main(sys.argv[1], sys.argv[2] == "slow"))
"""


def payload(sequence: int) -> bytes:
    """As LOG_WRITER makes it."""
    return b"<%d>" % sequence + bytes(sequence * 37 % 3000) + b"x" * (sequence * 91 % 5000)


@dataclass
class Recording:
    """A recorded run of the log writer."""

    folder: str
    calls: list[Call]
    events: list[Event]

    def acknowledgements(self) -> list[tuple[float, int]]:
        """When each acknowledgement began to leave, and its sequence."""
        found = []
        for call in self.calls:
            if call.name == "write" and call.texts and (match := re.fullmatch(rb"ack (\d+)\n", call.texts[0])):
                found.append((call.started_s, int(match[1])))
        return found


@pytest.fixture(scope="module", params=["fast", "slow"])
def recording(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Recording:
    """Syncs run inline on a fast disk and in a thread on a slow one."""
    root = tmp_path_factory.mktemp("power")
    output, folder = root / "strace", str(root / "data" / "log")
    program = [sys.executable, "-c", LOG_WRITER, folder, request.param]
    subprocess.run([*strace_command(output), *program], check=True, stdout=subprocess.DEVNULL, timeout=100)
    calls = read_calls(output)
    return Recording(folder, calls, events_below(calls, str(root)))


def test_no_acknowledgement_leaves_before_its_sync(recording: Recording) -> None:
    acknowledged = recording.acknowledgements()
    assert len(acknowledged) == 360
    events = [event for event in recording.events if not event.begins]
    for at_s, sequence in acknowledged:
        write = _write_of(events, sequence)
        path, written_s = write.call.path, write.at_s
        synced = [
            event.call
            for event in events
            if event.call.name == "fdatasync" and event.call.path == path and event.call.started_s >= written_s
        ]
        assert synced, f"frame {sequence} was never synced"
        assert synced[0].ended_s <= at_s, f"acknowledgement {sequence} left before its sync returned"


def _write_of(events: Sequence[Event], sequence: int) -> Event:
    marker = b"<%d>" % sequence
    for event in events:
        if event.call.name.startswith("pwrite") and any(text.startswith(marker) for text in event.call.texts):
            return event
    raise AssertionError(f"frame {sequence} was never written")


def test_directories_are_synced_after_creates_and_renames(recording: Recording) -> None:
    events = [event for event in recording.events if not event.begins]
    acknowledged = recording.acknowledgements()
    checked: Counter[str] = Counter()
    for event in events:
        call = event.call
        if call.name == "rename" and not Path(call.texts[1].decode()).name.startswith("spare"):
            path = call.texts[1].decode()
            first_write = min(
                (_write_of(events, sequence).at_s, at_s)
                for at_s, sequence in acknowledged
                if _write_of(events, sequence).call.path == path
            )
            assert _synced_between(events, recording.folder, event.at_s, first_write[1]), path
            checked["rename"] += 1
        if call.name == "mkdir":
            made = call.texts[-1].decode()
            assert _synced_between(events, str(Path(made).parent), event.at_s, acknowledged[0][0]), made
            checked["mkdir"] += 1
    print(f"synced in time: {checked}")
    assert checked["mkdir"] >= 1
    assert checked["rename"] >= 3


def _synced_between(events: Sequence[Event], directory: str, after_s: float, before_s: float) -> bool:
    return any(
        event.call.name == "fsync"
        and event.call.path == directory
        and event.call.started_s >= after_s
        and event.call.ended_s <= before_s
        for event in events
    )


@pytest.mark.timeout(1800)  # of the long form
def test_any_power_cut_recovers_what_was_acknowledged(recording: Recording, test_seed: int, test_profile: str) -> None:
    rng = random.Random(test_seed)
    acknowledged = recording.acknowledgements()
    first_ready_s = acknowledged[0][0]
    cuts = sorted(rng.choices(range(len(recording.events)), k=CUTS[test_profile]))
    with SimWorld(test_seed) as live:
        replay = Replay(live.disk)
        done = 0
        for number, cut in enumerate(cuts):
            for event in recording.events[done:cut]:
                replay.apply(event)
            done = max(done, cut)
            at_s = recording.events[cut].at_s
            known = max((sequence for ended_s, sequence in acknowledged if ended_s < at_s), default=-1)
            _check_after_cut(live, recording.folder, test_seed + number, known, at_s > first_ready_s)


def _check_after_cut(live: SimWorld, folder: str, seed: int, known: int, begun: bool) -> None:
    with SimWorld(seed) as world:
        world.disk.directories = copy.deepcopy(live.disk.directories)
        world.disk.cut_power()
        process = world.process("next")
        found = world.run(_as_world(process, lambda: _recovered(world, process, folder)))
    assert not begun or found, "the log is empty"
    sequences = sorted(found)
    if sequences:
        assert sequences == list(range(sequences[0], sequences[-1] + 1))
        assert sequences[0] <= max(0, known - 49)
    assert known <= (sequences[-1] if sequences else -1), f"frame {known} was acknowledged"
    for sequence, content in found.items():
        assert content == payload(sequence)


async def _as_world(process: SimProcess, work: Callable[[], object]) -> dict[int, bytes]:
    return await process.spawn(work())  # type: ignore[arg-type]


async def _recovered(world: SimWorld, process: SimProcess, folder: str) -> dict[int, bytes]:
    log = FileLog(
        world.disk.attach(process), folder, 1, file_bytes=FILE_BYTES, max_frame_bytes=MAX_FRAME_BYTES, reserve_bytes=0
    )
    await log.open(1000, bytes(16))
    found = {frame.sequence: bytes(frame.payload) async for frame in log.recover()}
    await log.close()
    return found
