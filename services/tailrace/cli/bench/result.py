"""The form of all results: a machine and rows."""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from tailrace.cli.bench.histogram import LatencyHistogram


class Row(TypedDict):
    """One measured value."""

    system: str
    case: str
    metric: str
    value: float
    unit: str


def row(system: str, case: str, metric: str, value: float, unit: str) -> Row:
    """Return a row, with the value rounded to significant digits."""
    return Row(system=system, case=case, metric=metric, value=float(f"{value:.5g}"), unit=unit)


def latency_rows(
    system: str, case: str, histogram: LatencyHistogram, shares: Sequence[float] = (0.5, 0.99, 0.999)
) -> list[Row]:
    """Return rows of percentiles in milliseconds; none of an empty histogram: JSON has no NaN."""
    if not histogram.count:
        return []
    return [row(system, case, f"p{share * 100:g}", histogram.percentile_s(share) * 1000, "ms") for share in shares]


def result(benchmark: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the object that ``--json`` prints."""
    return {"benchmark": benchmark, "machine": machine(), "rows": list(rows)}


def machine() -> dict[str, Any]:
    """Return the machine of the measurement."""
    return {
        "cpu": cpu_model(read_text("/proc/cpuinfo")) or platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "kernel": f"{platform.system()} {platform.release()}",
    }


def resident_bytes() -> int:
    """Return the resident memory of this process."""
    return int(read_text("/proc/self/statm").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def reset_peak_resident_bytes() -> None:
    """Let `peak_resident_bytes` count from now on, where the kernel allows it."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_resident_bytes() -> int:
    """Return the most resident memory that this process had, or has now where the kernel does not say."""
    for line in read_text("/proc/self/status").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return resident_bytes()


def cpu_model(cpuinfo: str) -> str:
    """Return the first model name of ``/proc/cpuinfo``; empty without one."""
    for line in cpuinfo.splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return ""


def read_text(path: str) -> str:
    """Return the text of a file; empty without one."""
    try:
        return Path(path).read_text()
    except OSError:
        return ""
