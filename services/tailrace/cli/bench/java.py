"""Measure the same cases with the Pravega Java client, by a program in tests/compat/java."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tailrace.cli.bench.result import Row, row
from tailrace.common.errors import IllegalStateError, UnsupportedError

if TYPE_CHECKING:
    from tailrace.cli.bench.target import Target

SYSTEM: Final = "tailrace, Java client"
INGEST_CASES: Final = {
    "ingest-100b-1": "100 B, 1 segment",
    "ingest-100b-4": "100 B, 4 segments",
    "ingest-10kb-1": "10 KB, 1 segment",
    "single-100b": "100 B, one at a time",
}
_SCRIPT: Final = Path(__file__).resolve().parents[4] / "tests" / "support" / "java-client.sh"
BUILD_DEADLINE_S: Final = 900.0
CASE_DEADLINE_S: Final = 300.0


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
    class_path = await _prepare()
    rows: list[Row] = []
    for name, case in cases.items():
        report(f"{case}, Java client")
        command = ("java", "-Xmx1g", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error", "-cp", class_path)
        output = await _output(*command, "io.tailrace.compat.Main", "bench", target.controller, name)
        rows += rows_of(case, json.loads(output.splitlines()[-1]))
    return rows


def rows_of(case: str, found: Mapping[str, Any]) -> list[Row]:
    """Parse the program's output to rows (pure)."""
    metrics = (("events_per_s", "events", "events/s"), ("mb_per_s", "payload", "MB/s"), ("p50_ms", "p50", "ms"))
    return [
        row(SYSTEM, case, metric, found[name], unit)
        for name, metric, unit in (*metrics, ("p99_ms", "p99", "ms"))
        if found[name] is not None
    ]


async def _prepare() -> str:
    if not await asyncio.to_thread(_SCRIPT.exists):
        raise UnsupportedError("--client java needs the source tree of Tailrace: tests/compat/java is not installed")
    return (await _output(str(_SCRIPT), deadline_s=BUILD_DEADLINE_S)).strip()


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
