"""What the checks of the published Python client share. Runs in that client's own environment, without pytest.

The client holds the interpreter's lock while it blocks, so whatever must go on at the same time (readers, writers) is a
process of its own, and the program that runs a script must be able to kill it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pravega_client

CONTROLLER = os.environ["TAILRACE_COMPAT_CONTROLLER"]
FULL = os.environ.get("TAILRACE_TEST_PROFILE") == "full"
IN_FLIGHT = 1000
"""Events a writer has on their way; the client's default waits for each batch before it takes the next event."""
HERE = Path(__file__).resolve().parent

Events = list[tuple[str, int]]
"""(routing key, sequence number) in the order in which they were read."""

_scopes = 0


def manager() -> Any:
    """A stream manager of the server under test."""
    return pravega_client.StreamManager(CONTROLLER, False, False)


def new_scope(client: Any) -> str:
    """Creates a scope of its own for one check."""
    global _scopes
    _scopes += 1
    name = f"py-{os.getpid()}-{time.time_ns() // 1_000_000}-{_scopes}"
    assert client.create_scope(name) is True
    return name


def fixed(segments: int) -> Any:
    return pravega_client.StreamScalingPolicy.fixed_scaling_policy(segments)


def no_retention() -> Any:
    return pravega_client.StreamRetentionPolicy.none()


def error_of(kind: type[BaseException] | str, action: Callable[[], Any]) -> str:
    """The text of the error that ``action`` must raise; ``kind`` is its class or, for the client's panics, its name."""
    try:
        result = action()
    except BaseException as error:
        expected = type(error).__name__ == kind if isinstance(kind, str) else isinstance(error, kind)
        if not expected:
            raise
        return str(error)
    raise AssertionError(f"expected {kind}, got {result!r}")


def event(key: str, sequence: int, length: int) -> bytes:
    """An event of ``length`` bytes that can be recognised, and compared byte for byte."""
    head = b"%s:%d:" % (key.encode(), sequence)
    assert len(head) <= length, f"{length} bytes cannot hold {head!r}"
    rest = length - len(head)
    return head + bytes((sequence + i) % 251 for i in range(min(rest, 64))).ljust(rest, b"~")


def recognise(data: bytes) -> tuple[str, int]:
    """Key and sequence number of an event; an error when any byte is not what was written."""
    key, sequence, _ = data.split(b":", 2)
    assert data == event(key.decode(), int(sequence), len(data)), f"event {data[:60]!r} is not what was written"
    return key.decode(), int(sequence)


def keys(count: int) -> list[str]:
    return [f"key-{i:03d}" for i in range(count)]


def write_keyed(writer: Any, names: list[str], first: int, last: int, length: int = 100) -> None:
    """Writes events ``first`` to ``last`` - 1 of every key, and waits until all are acknowledged."""
    for sequence in range(first, last):
        for name in names:
            writer.write_event_bytes(event(name, sequence, length), routing_key=name)
    writer.flush()


def check_exactly_once(read: Events, names: Iterable[str], count: int) -> None:
    """Every event of every key once, in order per key, and nothing else."""
    by_key: dict[str, list[int]] = defaultdict(list)
    for key, sequence in read:
        by_key[key].append(sequence)
    for name in names:
        got = by_key.pop(name, [])
        assert got == list(range(count)), f"{name}: {_difference(got, count)}"
    assert not by_key, f"keys that no test wrote: {sorted(by_key)}"


def check_at_least_once(read: Events, names: Iterable[str], count: int) -> None:
    """Every event of every key, first readings in order per key; repeats of what was read before are allowed."""
    seen: dict[str, int] = defaultdict(int)
    for key, sequence in read:
        assert sequence <= seen[key], f"{key}: {sequence} read before {seen[key]}"
        seen[key] = max(seen[key], sequence + 1)
    assert dict(seen) == dict.fromkeys(names, count)


def _difference(got: list[int], count: int) -> str:
    missing = sorted(set(range(count)) - set(got))
    repeated = sorted({x for x in got if got.count(x) > 1}) if len(got) < 20_000 else ["?"]
    in_order = got == sorted(got)
    return f"{len(got)} of {count} read, missing {missing[:10]}, repeated {repeated[:10]}, in order: {in_order}"


def wait_until(condition: Callable[[], bool], what: str, deadline_s: float = 60, poll_s: float = 0.05) -> None:
    """Poll until ``condition`` returns true, because other processes send no signal."""
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, f"not within {deadline_s} s: {what}"
        time.sleep(poll_s)


async def read_slice(reader: Any) -> Any:
    """Read a slice; return when no thread of the client is in the interpreter any more.

    The thread that hands a result to the event loop gives the interpreter's lock away before it is done. A call that
    blocks and holds the lock, such as a commit, would then wait for work that this very thread has still to do.
    """
    piece = await reader.get_segment_slice_async()
    wait_until(lambda: len(sys._current_frames()) == 1, "the client's threads leaving the interpreter", poll_s=0.001)
    return piece


async def read_events(reader: Any, count: int, deadline_s: float = 60) -> list[bytes]:
    """Reads until ``count`` events have come."""
    end = time.monotonic() + deadline_s
    found: list[bytes] = []
    while len(found) < count:
        assert time.monotonic() < end, f"{len(found)} of {count} events within {deadline_s} s"
        piece = await read_slice(reader)
        found.extend(bytes(one.data()) for one in piece)
        reader.release_segment(piece)
    return found


async def read_nothing(reader: Any, pieces: int = 2) -> None:
    """The reader must find nothing more (the client answers an empty slice after about a second)."""
    for _ in range(pieces):
        piece = await read_slice(reader)
        more = [bytes(one.data())[:60] for one in piece]
        reader.release_segment(piece)
        assert not more, f"unexpected events: {more[:5]}"


class Worker:
    """A child process (``worker.py``) that reads or writes beside the check."""

    def __init__(self, *arguments: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="worker-"))
        self._log = (self.folder / "log").open("wb")
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "worker.py"), str(self.folder), *arguments],
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )

        self._events: list[tuple[int, str, int]] = []
        self._position = 0

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")[-3000:]

    def wait_for(self, mark: str) -> None:
        """Until it says ``mark``."""
        wait_until(lambda: self._reached(mark), f"a worker saying {mark}")

    def tell(self, what: str) -> None:
        """Says ``what`` to it."""
        (self.folder / what).touch()

    def stop(self) -> None:
        """Ask it to end in good order, and wait until it has ended."""
        self.tell("stop")
        try:
            code = self._process.wait(60)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"a worker did not stop: {self.log()}") from None
        self._log.close()
        assert code == 0, f"a worker ended with {code}: {self.log()}"

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()
        self._process.wait()
        self._log.close()

    def result(self) -> dict[str, Any]:
        """What it wrote down at its end."""
        found: dict[str, Any] = json.loads((self.folder / "result").read_text())
        return found

    def empty_slices(self) -> int:
        """How often a reader has found no data so far."""
        noted = self.folder / "empty"
        return noted.stat().st_size if noted.exists() else 0

    def rounds(self) -> int:
        """How many rounds a writer has begun so far."""
        noted = self.folder / "rounds"
        return int(noted.read_text() or 0) if noted.exists() else 0

    def timed_events(self) -> list[tuple[int, str, int]]:
        """(time of reading in ns, key, sequence number) of all it has read so far."""
        output = self.folder / "events"
        if output.exists():
            with output.open() as lines:
                lines.seek(self._position)
                complete = lines.read().rpartition("\n")[0]
            self._position += len(complete) + bool(complete)
            split = (line.split() for line in complete.splitlines())
            self._events += [(int(time_ns), key, int(sequence)) for time_ns, key, sequence in split]
        return self._events

    def _reached(self, mark: str) -> bool:
        if self._process.poll() is not None:
            raise AssertionError(f"a worker ended with {self._process.returncode}: {self.log()}")
        return (self.folder / mark).exists()


class Readers:
    """Readers of one group, each in a process of its own."""

    def __init__(self, scope: str, stream: str, group: str, count: int) -> None:
        names = [f"reader-{i}" for i in range(count)]
        self.workers = {name: Worker("read", scope, stream, group, name) for name in names}
        for worker in self.workers.values():
            worker.wait_for("joined")
        # The first to join took every segment, and would hand one over every ten seconds or so. A reader that joins
        # while all others are there takes its share at once.
        for worker in self.workers.values():
            worker.tell("join-again")
            worker.wait_for("joined-again")
        for worker in self.workers.values():
            worker.tell("go")

    def read(self) -> Events:
        """All events of all readers so far, by the time they were read."""
        merged = [line for worker in self.workers.values() for line in worker.timed_events()]
        merged.sort(key=lambda line: line[0])  # stable: events of one slice keep their order
        return [(key, sequence) for _, key, sequence in merged]

    def wait_for(self, count: int, deadline_s: float = 90) -> None:
        """Until ``count`` different events were read."""
        try:
            wait_until(lambda: len(set(self.read())) >= count, f"{count} events", deadline_s, 0.5)
        except AssertionError as error:
            each = {name: len(worker.timed_events()) for name, worker in self.workers.items()}
            raise AssertionError(f"{error}; read so far: {each}") from None

    def counts(self) -> dict[str, int]:
        return {name: len(worker.timed_events()) for name, worker in self.workers.items()}

    def check_nothing_more(self) -> None:
        """Waits until every reader has found no data once more, then ends them.

        They are not asked to go offline: that waits for the reads at the tail, which end after 30 s.
        """
        empty = {name: worker.empty_slices() for name, worker in self.workers.items()}
        before = len(self.read())
        for name, worker in self.workers.items():
            wait_until(lambda: worker.empty_slices() > empty[name], f"{name} finding no data")  # noqa: B023
        assert len(self.read()) == before, "events were read again"
        for worker in self.workers.values():
            worker.kill()


def scale(scope: str, stream: str, segments: int) -> None:
    """Scales by the command that the caller of the script gave: the client's own interface has no manual scale."""
    command = json.loads(os.environ["TAILRACE_COMPAT_SCALE"])
    values = {"scope": scope, "stream": stream, "segments": str(segments)}
    arguments = [part.format(**values) for part in command]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, f"{arguments} ended with {done.returncode}: {done.stdout}{done.stderr}"


def tail_segments(client: Any, scope: str, stream: str) -> set[int]:
    """Ids of the segments a new reader group would begin with at the tail."""
    group = client.create_reader_group(f"tail-{time.time_ns()}", scope, stream, True)
    return set(group.get_streamcut().get_segment_offset_map())


def run(checks: dict[str, Any]) -> None:
    """Runs every function named ``check_…`` (or those named on the command line); exit code 1 when one fails."""
    wanted = sys.argv[1:]
    failed = 0
    for name, check in list(checks.items()):
        if not name.startswith("check_") or not callable(check) or getattr(check, "__module__", "") != "__main__":
            continue
        if wanted and name not in wanted:
            continue
        started = time.monotonic()
        try:
            check()
            print(f"ok     {name} {time.monotonic() - started:.1f} s", flush=True)
        except BaseException:  # the client's panics are no Exceptions
            failed += 1
            print(f"FAILED {name} {time.monotonic() - started:.1f} s\n{traceback.format_exc()}", flush=True)
    sys.stdout.flush()
    os._exit(1 if failed else 0)  # the client's threads may outlive a failed check
