"""Measure the same cases with the Pravega Java client, by a program in tests/compat/java."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tailrace.cli.bench.result import Row, row
from tailrace.common.errors import IllegalStateError, UnsupportedError

if TYPE_CHECKING:
    from tailrace.cli.bench.target import Target

SYSTEM: Final = "tailrace, Java client"
PEER_SYSTEM: Final = "pravega-java"
"""A Pravega that is measured beside us."""
INGEST_CASES: Final = {
    "ingest-100b-1": "100 B, 1 segment",
    "ingest-100b-4": "100 B, 4 segments",
    "ingest-10kb-1": "10 KB, 1 segment",
    "single-100b": "100 B, one at a time",
}
TABLE_CASES: Final = ("put-1", "put-256", "get-1", "get-256")
_SCRIPT: Final = Path(__file__).resolve().parents[4] / "tests" / "support" / "java-client.sh"
BUILD_DEADLINE_S: Final = 900.0
CASE_DEADLINE_S: Final = 300.0
_LATENCIES: Final = (("p50_ms", "p50", "ms"), ("p99_ms", "p99", "ms"))


def read_cases(rate_per_s: int) -> dict[str, str]:
    """Return the reading cases by their names in the program."""
    return {
        f"tail-100b-1-{rate_per_s}": f"100 B, tail, {rate_per_s:,} events/s",
        "catchup-100b-1": "100 B, catch-up from the cache",
    }


async def measure_java(target: Target, cases: Mapping[str, str], report: Callable[[str], None]) -> list[Row]:
    """Return the rows of the cases. Each takes about 12 s with its warm-up, in its own Java process.

    Raises:
        UnsupportedError: the source tree is missing. IllegalStateError: the program was not built or failed.
    """
    program = await JavaProgram.build()
    rows: list[Row] = []
    for name, case in cases.items():
        report(f"{case}, Java client")
        rows += rows_of(SYSTEM, case, await program.measure(target.controller, "bench", name))
    return rows


@dataclass(frozen=True, slots=True)
class JavaProgram:
    """The program around the published Java client, ready to run."""

    class_path: str

    @classmethod
    async def build(cls) -> JavaProgram:
        """Build it, unless it is built. Raises UnsupportedError or IllegalStateError, as `measure_java` does."""
        if not await asyncio.to_thread(_SCRIPT.exists):
            raise UnsupportedError("the Java client needs the source tree of Tailrace: tests/compat/java is missing")
        return cls((await _output(str(_SCRIPT), deadline_s=BUILD_DEADLINE_S)).strip())

    async def measure(self, controller: str, command: str, case: str) -> dict[str, Any]:
        """Run one case of ``bench`` or ``table-bench`` against a server, and return the object that it prints.

        Raises:
            IllegalStateError: the case failed, or did not end within `CASE_DEADLINE_S`.
        """
        java = ("java", "-Xmx1g", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error", "-cp", self.class_path)
        output = await _output(*java, "io.tailrace.compat.Main", command, controller, case)
        found: dict[str, Any] = json.loads(output.splitlines()[-1])
        return found


def rows_of(system: str, case: str, found: Mapping[str, Any]) -> list[Row]:
    """Return the rows of events in the program's output (pure)."""
    metrics = (("events_per_s", "events", "events/s"), ("mb_per_s", "payload", "MB/s"), *_LATENCIES)
    return [row(system, case, metric, found[name], unit) for name, metric, unit in metrics if found[name] is not None]


def table_rows_of(system: str, case: str, found: Mapping[str, Any]) -> list[Row]:
    """Return the rows of a table's operations in the program's output (pure)."""
    metrics = (("events_per_s", "operations", "operations/s"), *_LATENCIES)
    return [row(system, case, metric, found[name], unit) for name, metric, unit in metrics if found[name] is not None]


async def _output(*command: str, deadline_s: float = CASE_DEADLINE_S) -> str:
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(deadline_s):
            out, err = await process.communicate()
    except TimeoutError:
        raise IllegalStateError(f"{Path(command[0]).name} did not end within {deadline_s:g} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        said = err.decode(errors="replace").strip().splitlines() or [f"exit code {process.returncode}"]
        raise IllegalStateError(f"{Path(command[0]).name} failed: {said[-1]}")
    return out.decode()
