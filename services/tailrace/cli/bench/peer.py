"""Compare a server with a Pravega through the same Java client, in turns (docs/performance.md#pravega)."""

from __future__ import annotations

import asyncio
import shlex
import statistics
from collections import defaultdict
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from tailrace.cli.bench.java import PEER_SYSTEM, JavaProgram, rows_of
from tailrace.cli.bench.result import Row, row
from tailrace.common.errors import BadRequestError, IllegalStateError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

SYSTEM: Final = "tailrace"
RATIO_SYSTEM: Final = "tailrace / pravega-java"
CASES: Final = {
    "ingest-100b-1": "100 B, 1 segment",
    "ingest-100b-4": "100 B, 4 segments",
    "ingest-100b-16": "100 B, 16 segments",
    "single-100b": "100 B, one at a time",
    "tail-100b-4-1000": "100 B, tail, 1,000 events/s",
    "catchup-100b-1": "100 B, catch-up, 1 segment",
    "catchup-100b-4": "100 B, catch-up, 4 segments",
    # Last: a Pravega whose cache is too small for them may not recover.
    "ingest-10kb-1": "10 KB, 1 segment",
    "catchup-10kb-1": "10 KB, catch-up",
}
"""By their names in the program."""

WARM_UP_CASE: Final = "single-100b"
"""What a new Pravega runs first, so that its code is compiled: it needs little memory."""
PEER_START_DEADLINE_S: Final = 960.0
"""With the download of its jars."""
PEER_END_DEADLINE_S: Final = 60.0

Key: TypeAlias = tuple[str, str]
"""Case and metric."""


class Samples:
    """What all rounds found, by system."""

    def __init__(self) -> None:
        self._values: dict[str, dict[Key, list[float]]] = defaultdict(lambda: defaultdict(list))
        self._failed: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
        self._units: dict[Key, str] = {}

    def add(self, rows: Sequence[Row]) -> None:
        """Add the rows of one case of one round."""
        for each in rows:
            key = each["case"], each["metric"]
            self._values[each["system"]][key].append(each["value"])
            self._units[key] = each["unit"]

    def add_failure(self, system: str, case: str) -> None:
        """Count a case that did not end well."""
        self._failed[system][case] += 1

    def rows(self, cases: Sequence[str]) -> list[Row]:
        """Return for each case the medians of both systems, failed rounds, and the ratios of the medians.

        A case has ratios only when both systems ended it well in all rounds.
        """
        found: list[Row] = []
        for case in cases:
            for system in (SYSTEM, PEER_SYSTEM):
                found += self._medians(system, case)
                if failed := self._failed[system].get(case):
                    found.append(row(system, case, "failed", failed, "rounds"))
            if not any(self._failed[system].get(case) for system in (SYSTEM, PEER_SYSTEM)):
                found += self._ratios(case)
        return found

    def _medians(self, system: str, case: str) -> list[Row]:
        return [
            row(system, case, metric, statistics.median(values), self._units[case, metric])
            for (of_case, metric), values in self._values[system].items()
            if of_case == case
        ]

    def _ratios(self, case: str) -> list[Row]:
        ours = {each["metric"]: each["value"] for each in self._medians(SYSTEM, case)}
        theirs = {each["metric"]: each["value"] for each in self._medians(PEER_SYSTEM, case)}
        return [
            row(RATIO_SYSTEM, case, metric, value / theirs[metric], "ratio")
            for metric, value in ours.items()
            if theirs.get(metric)
        ]


class Peer(Protocol):
    """Where the Pravega is that a case is measured at."""

    def serving(self, program: JavaProgram) -> AbstractAsyncContextManager[str]:
        """Return its controller's address, for one case."""
        ...


class RunningPeer:
    """A Pravega that runs all the time."""

    def __init__(self, controller: str) -> None:
        self._controller = controller

    @asynccontextmanager
    async def serving(self, program: JavaProgram) -> AsyncIterator[str]:
        """See Peer.serving."""
        yield self._controller


class StartedPeer:
    """A new Pravega for each case, warmed up: one in memory has room for few of them.

    ``command`` prints one line that ends with the controller's address when it serves, and ends after SIGTERM.
    """

    def __init__(self, command: str) -> None:
        self._command = shlex.split(command)

    @asynccontextmanager
    async def serving(self, program: JavaProgram) -> AsyncIterator[str]:
        """See Peer.serving. Raises IllegalStateError when it does not start."""
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE
            )
        except (OSError, ValueError) as error:
            raise BadRequestError(f"--peer-command: {error}") from error
        assert process.stdout is not None
        try:
            async with asyncio.timeout(PEER_START_DEADLINE_S):
                line = (await process.stdout.readline()).decode(errors="replace").split()
            if not line:
                raise IllegalStateError(f"{self._command[0]} ended without the address of a controller")
            await program.measure(line[-1], "bench", WARM_UP_CASE)
            yield line[-1]
        except TimeoutError:
            raise IllegalStateError(f"{self._command[0]} did not serve within {PEER_START_DEADLINE_S:g} s") from None
        finally:
            await _end(process)


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.terminate()
    try:
        async with asyncio.timeout(PEER_END_DEADLINE_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


async def measure_peer(
    controller: str, peer: Peer, *, rounds: int, cases: Mapping[str, str], report: Callable[[str], None]
) -> list[Row]:
    """Return medians of the rounds, and their ratios, of a server and of a Pravega.

    Each case takes some 15 s a system and round, in a Java process of its own. The systems take turns, and the one
    that comes first does, too: what slows the machine down for a while slows down both. A peer that is started for
    each case runs only while it is measured.

    Raises:
        UnsupportedError: the source tree is missing.
        IllegalStateError: the Java program was not built, a peer did not start, or a case failed at our server.
    """
    program = await JavaProgram.build()
    samples = Samples()

    async def measure(system: str, address: str, name: str) -> None:
        samples.add(rows_of(system, cases[name], await program.measure(address, "bench", name)))

    async def measure_there(name: str) -> None:
        async with peer.serving(program) as address:
            try:
                await measure(PEER_SYSTEM, address, name)
            except IllegalStateError as error:
                report(f"{cases[name]}, {PEER_SYSTEM}: {error}")
                samples.add_failure(PEER_SYSTEM, cases[name])

    for number in range(rounds):
        for name, case in cases.items():
            report(f"round {number + 1} of {rounds}: {case}")
            steps = [lambda name=name: measure(SYSTEM, controller, name), lambda name=name: measure_there(name)]
            for step in reversed(steps) if number % 2 else steps:
                await step()
    return samples.rows(list(cases.values()))
