"""Compare the block cache with a dictionary and RocksDB (docs/cli.md#measuring).

The tests are those of "Streaming Cache". Sequential: entries of 10 KB are inserted, read and deleted. Random: 60 %
inserts, 40 % removals, lengths uniform from 0 to 10 or 100 KB, and one read of a random entry after each. Every system
copies entries in and out. Each test runs several times on the same data, and the best time counts. Contents are
compared in a pass of their own, so that no time has the comparison.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import struct
import subprocess
import time
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from tailrace.cli.bench.java import PEER_SYSTEM
from tailrace.cli.bench.result import Row, read_text, row
from tailrace.common.errors import IllegalStateError, UnsupportedError
from tailrace.common.limits import KIB, MIB
from tailrace.kernel import BUFFER_BYTES, _cache, _cache_py, blocks_needed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

ENTRIES: Final = 1_000_000
ENTRY_BYTES: Final = 10 * KIB
RANDOM_CASES: Final = {"random-10KB": 10 * KIB, "random-100KB": 100 * KIB}
INSERT_SHARE: Final = 0.6
USABLE_BLOCKS_PER_BUFFER: Final = 511
BLOCK_BYTES: Final = 4 * KIB
MEMORY_SHARE: Final = 0.6
"""Of the memory that is available: how much the entries of a test may take."""
DISK_FACTOR: Final = 4
"""Of the bytes of entries: how much room RocksDB needs with what it has not compacted yet."""
CHECKED_ENTRIES_MAX: Final = 100_000
"""Whose contents are compared."""
_PATTERN_BYTES: Final = 4 * KIB
_DRIVER: Final = Path(__file__).resolve().parents[4] / "tests/compat/pravega/CacheDriver.java"
DRIVER_DEADLINE_S: Final = 1800.0
DRIVER_SPARE_BYTES: Final = 256 * MIB
"""Direct memory of the Java program beyond its cache."""
_PLAN_HEAD: Final = struct.Struct(">ii")
_OPERATION: Final = struct.Struct(">idd")


class System(Protocol):
    """A system under test: each call copies."""

    def insert(self, data: memoryview) -> int:
        """Store an entry and return its handle."""
        ...

    def read(self, handle: int, length: int, target: memoryview) -> None:
        """Copy an entry into the beginning of a buffer."""
        ...

    def delete(self, handle: int) -> None:
        """Delete an entry."""
        ...

    def close(self) -> None:
        """Release what it holds."""
        ...


class CacheSystem:
    """The block cache, native or pure."""

    def __init__(self, cache: _cache.BlockCache | _cache_py.BlockCache) -> None:
        self._cache = cache

    def insert(self, data: memoryview) -> int:
        """See System.insert."""
        return self._cache.insert(data)

    def read(self, handle: int, length: int, target: memoryview) -> None:
        """See System.read."""
        self._cache.copy_into(handle, length, 0, length, target)

    def delete(self, handle: int) -> None:
        """See System.delete."""
        self._cache.delete(handle)

    def close(self) -> None:
        """See System.close."""


class DictionarySystem:
    """A dictionary of immutable values."""

    def __init__(self) -> None:
        self._entries: dict[int, bytes] = {}
        self._next = 0

    def insert(self, data: memoryview) -> int:
        """See System.insert."""
        self._next += 1
        self._entries[self._next] = bytes(data)
        return self._next

    def read(self, handle: int, length: int, target: memoryview) -> None:
        """See System.read."""
        target[:length] = self._entries[handle]

    def delete(self, handle: int) -> None:
        """See System.delete."""
        del self._entries[handle]

    def close(self) -> None:
        """See System.close."""


class RocksSystem:
    """RocksDB in a folder, without a log of its own. It needs the package rocksdict."""

    def __init__(self) -> None:
        import rocksdict

        self._folder = TemporaryDirectory(prefix="tailrace-bench-")
        self._database: Any = rocksdict.Rdict(self._folder.name, rocksdict.Options(raw_mode=True))
        options = rocksdict.WriteOptions()
        options.disable_wal = True  # type: ignore[assignment,method-assign]  # a property, unlike its stub says
        self._database.set_write_options(options)
        self._next = 0

    def insert(self, data: memoryview) -> int:
        """See System.insert."""
        self._next += 1
        self._database[self._next.to_bytes(8, "big")] = bytes(data)
        return self._next

    def read(self, handle: int, length: int, target: memoryview) -> None:
        """See System.read."""
        target[:length] = self._database[handle.to_bytes(8, "big")]

    def delete(self, handle: int) -> None:
        """See System.delete."""
        del self._database[handle.to_bytes(8, "big")]

    def close(self) -> None:
        """See System.close."""
        self._database.close()
        self._folder.cleanup()


# One random operation: the length to insert (-1 removes instead), which entry to remove, which to read.
Operation: TypeAlias = tuple[int, float, float]


def run(
    entries: int = ENTRIES,
    repeats: int = 3,
    *,
    pure: bool = False,
    jars: Path | None = None,
    note: Callable[[str], None] = lambda text: None,
) -> list[Row]:
    """Return the ms of each system and test, with that many entries or random operations, or as many as fit.

    ``pure`` adds the cache in pure Python, ``jars`` Pravega's: a folder with its jars. ``note`` gets what is
    measured, and what is left out or made smaller.
    """
    if entries < 1 or repeats < 1:
        raise ValueError("entries and repeats must be at least 1")
    fitting = fitting_entries(entries, available_memory_bytes())
    if fitting < entries:
        note(f"{fitting:,} in place of {entries:,} entries: more do not fit into the memory that is available")
    plans = {case: plan_operations(fitting, length_max) for case, length_max in RANDOM_CASES.items()}
    peaks = [peak_blocks(plan) for plan in plans.values()]
    blocks = max(fitting * blocks_needed(ENTRY_BYTES), *peaks)
    found = [row("all", case, "operations", fitting, "operations") for case in ("sequential", *plans)]
    # One system at a time, so that memory holds one cache only.
    for name, make in _systems(blocks, pure=pure, note=note).items():
        note(f"measuring {name}: {repeats} passes of {fitting:,} entries")
        system = make()
        try:
            passes = [measure(system, fitting, plans) for _ in range(repeats)]
            check(system, min(fitting, CHECKED_ENTRIES_MAX))
        finally:
            system.close()
        found += [row(name, case, "time", min(times[case] for times in passes) * 1000, "ms") for case in passes[0]]
    if jars is not None:
        note(f"measuring {PEER_SYSTEM}: {repeats} passes of {fitting:,} entries")
        found += measure_jars(jars, fitting, repeats, _max_bytes(blocks), plans)
    return found


def _max_bytes(blocks: int) -> int:
    return -(-blocks // USABLE_BLOCKS_PER_BUFFER) * BUFFER_BYTES


def measure_jars(
    jars: Path, entries: int, repeats: int, max_bytes: int, plans: Mapping[str, Sequence[Operation]]
) -> list[Row]:
    """Return the ms of Pravega's cache, by a Java program over a folder of Pravega's jars.

    Raises:
        UnsupportedError: the source tree is missing. IllegalStateError: the program failed.
    """
    if not _DRIVER.exists():
        raise UnsupportedError("--peer-jar needs the source tree of Tailrace: tests/compat/pravega is missing")
    with TemporaryDirectory(prefix="tailrace-bench-") as folder:
        for case, plan in plans.items():
            records = b"".join(_OPERATION.pack(*operation) for operation in plan)
            head = _PLAN_HEAD.pack(RANDOM_CASES[case], len(plan))
            (Path(folder) / f"{case}.plan").write_bytes(head + records)
        java = ("java", "-Xmx1g", f"-XX:MaxDirectMemorySize={max_bytes + DRIVER_SPARE_BYTES}", "-cp", f"{jars}/*")
        command = (*java, str(_DRIVER), str(entries), str(repeats), str(max_bytes), folder)
        try:
            ended = subprocess.run(command, capture_output=True, text=True, timeout=DRIVER_DEADLINE_S, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise IllegalStateError(f"--peer-jar: {error}") from error
    if ended.returncode != 0:
        said = ended.stderr.strip().splitlines() or [f"exit code {ended.returncode}"]
        raise IllegalStateError(f"--peer-jar {jars}: {said[0]}")
    found = json.loads(ended.stdout.splitlines()[-1])
    return [row(PEER_SYSTEM, case, "time", ms, "ms") for case, ms in found.items()]


def _systems(blocks: int, *, pure: bool, note: Callable[[str], None]) -> dict[str, Callable[[], System]]:
    max_bytes = _max_bytes(blocks)
    found: dict[str, Callable[[], System]] = {"tailrace": lambda: CacheSystem(_cache.BlockCache(max_bytes))}
    if pure:
        found["tailrace-pure"] = lambda: CacheSystem(_cache_py.BlockCache(max_bytes))
    found["dict-copy"] = DictionarySystem
    if find_spec("rocksdict") is None:
        note("no RocksDB: pip install rocksdict")
        return found
    with TemporaryDirectory(prefix="tailrace-bench-") as folder:
        free_bytes = shutil.disk_usage(folder).free
    if free_bytes < DISK_FACTOR * max_bytes:
        note(f"no RocksDB: {DISK_FACTOR * max_bytes:,} bytes of temporary disk are needed, {free_bytes:,} are free")
        return found
    return found | {"rocksdb": RocksSystem}


def fitting_entries(entries: int, available_bytes: int) -> int:
    """Return how many entries or operations fit into a part of the memory: at least 1."""
    # The random test with entries of up to 100 KB leaves one in five, which are 50 KB long in the mean.
    each = max(blocks_needed(ENTRY_BYTES), blocks_needed(50 * KIB) * (2 * INSERT_SHARE - 1)) * BLOCK_BYTES
    return max(1, min(entries, int(MEMORY_SHARE * available_bytes / each)))


def available_memory_bytes() -> int:
    """Return the memory that programs can get without swapping, as Linux says it; elsewhere half of all memory."""
    found = re.search(r"^MemAvailable:\s+(\d+) kB$", read_text("/proc/meminfo"), re.MULTILINE)
    if found is not None:
        return int(found[1]) * KIB
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def measure(system: System, entries: int, plans: Mapping[str, Sequence[Operation]]) -> dict[str, float]:
    """Return the seconds of each test, by case."""
    times = {f"sequential-{name}": seconds for name, seconds in run_sequential(system, entries).items()}
    for case, plan in plans.items():
        times[case] = run_random(system, RANDOM_CASES[case], plan)
    return times


def run_sequential(system: System, entries: int) -> dict[str, float]:
    """Return the seconds to insert, read and delete that many entries."""
    data = memoryview(random.Random(1).randbytes(ENTRY_BYTES))
    target = memoryview(bytearray(ENTRY_BYTES))
    times: dict[str, float] = {}
    started = time.perf_counter()
    handles = [system.insert(data) for _ in range(entries)]
    times["insert"] = time.perf_counter() - started
    started = time.perf_counter()
    for handle in handles:
        system.read(handle, ENTRY_BYTES, target)
    times["get"] = time.perf_counter() - started
    if target != data:
        raise AssertionError("the cache returned wrong bytes")
    started = time.perf_counter()
    for handle in handles:
        system.delete(handle)
    times["delete"] = time.perf_counter() - started
    return times


def check(system: System, entries: int) -> None:
    """Insert entries of different contents and lengths, and raise AssertionError unless each is read as it was."""
    source = random.Random(3)
    pattern = memoryview(source.randbytes(ENTRY_BYTES + _PATTERN_BYTES))
    places = [(source.randrange(_PATTERN_BYTES), source.randint(0, ENTRY_BYTES)) for _ in range(entries)]
    handles = [system.insert(pattern[start : start + length]) for start, length in places]
    target = memoryview(bytearray(ENTRY_BYTES))
    for handle, (start, length) in zip(handles, places, strict=True):
        system.read(handle, length, target)
        if target[:length] != pattern[start : start + length]:
            raise AssertionError("the cache returned wrong bytes")
        system.delete(handle)


def plan_operations(count: int, length_max: int) -> list[Operation]:
    """Return the random operations, which are the same for every system."""
    source = random.Random(length_max)
    return [
        (source.randint(0, length_max) if source.random() < INSERT_SHARE else -1, source.random(), source.random())
        for _ in range(count)
    ]


def peak_blocks(plan: Sequence[Operation]) -> int:
    """Return the maximum of blocks that the live entries of a plan occupy."""
    live: list[int] = []
    blocks = peak = 0
    for length, remove, _ in plan:
        if length >= 0:
            live.append(blocks_needed(length))
            blocks += live[-1]
            peak = max(peak, blocks)
        elif live:
            blocks -= _take(live, remove)
    return peak


def _take(live: list[int], choice: float) -> int:
    """Remove the chosen element in constant time."""
    index = int(choice * len(live))
    live[index], live[-1] = live[-1], live[index]
    return live.pop()


def run_random(system: System, length_max: int, plan: Sequence[Operation]) -> float:
    """Return the seconds of a plan, without the deletion of the entries that remain."""
    data = memoryview(random.Random(2).randbytes(length_max))
    target = memoryview(bytearray(length_max))
    live: list[int] = []
    lengths: dict[int, int] = {}
    started = time.perf_counter()
    for length, remove, read in plan:
        if length >= 0:
            handle = system.insert(data[:length])
            live.append(handle)
            lengths[handle] = length
        elif live:
            system.delete(_take(live, remove))
        if live:
            handle = live[int(read * len(live))]
            system.read(handle, lengths[handle], target)
    seconds = time.perf_counter() - started
    for handle in live:
        system.delete(handle)
    return seconds
