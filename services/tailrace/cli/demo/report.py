"""Format the demo's results: figures, the verdict, and how to connect."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table

from tailrace.cli.demo.check import Verdict
from tailrace.cli.demo.server import Endpoints

MEGABYTE = 1_000_000


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return a percentile of ascending values (nearest rank); `share` is in (0, 1]."""
    if not ordered:
        return math.nan
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


@dataclass(frozen=True, slots=True)
class Tiers:
    """Bytes in Tier 1 and Tier 2. Log files are preallocated and recycled, so they are larger than their contents."""

    log_bytes: int
    untiered_bytes: int
    tier2_objects: int
    tier2_bytes: int


@dataclass(frozen=True, slots=True)
class Figures:
    """All figures of one run. Times are in seconds of the event loop's clock."""

    stream: str
    events: int
    payload_bytes: int
    writing_s: float
    reading_s: float
    acknowledgement_p50_ms: float
    acknowledgement_p99_ms: float
    read_by: tuple[int, ...]
    killed_after: int
    outage_s: float
    tiers: Tiers
    verdict: Verdict

    @property
    def events_per_s(self) -> float:
        """Return the events acknowledged per second, including the server's restart."""
        return self.events / self.writing_s

    @property
    def megabytes_per_s(self) -> float:
        """Return the payload acknowledged per second, in 10^6 bytes."""
        return self.payload_bytes / MEGABYTE / self.writing_s

    def as_json(self) -> dict[str, object]:
        """Return the figures by name; names contain their units."""
        return {
            "stream": self.stream,
            "events": self.events,
            "payload_bytes": self.payload_bytes,
            "writing_s": round(self.writing_s, 3),
            "reading_s": round(self.reading_s, 3),
            "events_per_s": round(self.events_per_s),
            "megabytes_per_s": round(self.megabytes_per_s, 2),
            "acknowledgement_p50_ms": round(self.acknowledgement_p50_ms, 3),
            "acknowledgement_p99_ms": round(self.acknowledgement_p99_ms, 3),
            "read_by": list(self.read_by),
            "killed_after_events": self.killed_after,
            "outage_s": round(self.outage_s, 3),
            "tier1_bytes": self.tiers.log_bytes,
            "untiered_bytes": self.tiers.untiered_bytes,
            "tier2_objects": self.tiers.tier2_objects,
            "tier2_bytes": self.tiers.tier2_bytes,
            "arrived": self.verdict.arrived,
            "missing": self.verdict.missing,
            "duplicated": self.verdict.duplicated,
            "out_of_order": self.verdict.out_of_order,
            "invented": self.verdict.invented,
            "right": self.verdict.right,
        }


def verdict_line(verdict: Verdict) -> str:
    """Return one sentence about the delivery."""
    if verdict.right:
        return f"all {verdict.arrived:,} events arrived once and in order per key"
    return (
        f"WRONG: {verdict.missing:,} missing, {verdict.duplicated:,} duplicated, "
        f"{verdict.out_of_order:,} out of order, {verdict.invented:,} never written"
    )


def summary(figures: Figures) -> Table:
    """Return the table at the end of a run."""
    table = Table(title=f"{figures.events:,} flights through {figures.stream}", show_header=False)
    table.add_column(style="bold")
    table.add_column()
    megabytes = figures.payload_bytes / MEGABYTE
    table.add_row("written", f"{megabytes:,.1f} MB in {figures.writing_s:.1f} s, including the restart")
    table.add_row("throughput", f"{figures.events_per_s:,.0f} events/s, {figures.megabytes_per_s:,.1f} MB/s")
    table.add_row(
        "acknowledged after",
        f"p50 {figures.acknowledgement_p50_ms:,.1f} ms, p99 {figures.acknowledgement_p99_ms:,.1f} ms",
    )
    table.add_row("read", f"{' + '.join(f'{count:,}' for count in figures.read_by)} events by two readers")
    table.add_row("killed", f"after {figures.killed_after:,} events; served again {figures.outage_s:.2f} s later")
    tiers = figures.tiers
    table.add_row("Tier 1", f"{tiers.log_bytes:,} bytes of log files, {tiers.untiered_bytes:,} not yet in Tier 2")
    table.add_row("Tier 2", f"{tiers.tier2_objects:,} objects, {tiers.tier2_bytes:,} bytes")
    table.add_row("verdict", verdict_line(figures.verdict), style="green" if figures.verdict.right else "bold red")
    return table


def how_to_connect(endpoints: Endpoints, stream: str) -> str:
    """Return commands to try while the server keeps running."""
    return f"""\
serving (process {endpoints.pid}; Ctrl-C ends it)
  clients      {endpoints.controller}
  REST         {endpoints.rest}/v1/scopes
  admin        {endpoints.admin}
  try          export TAILRACE_CONTROLLER={endpoints.controller}
               .venv/bin/tailrace stream info {stream}
               .venv/bin/tailrace read {stream} --from head
  Python       pravega_client.StreamManager("{endpoints.controller}")
  Java         ClientConfig.builder().controllerURI(URI.create("{endpoints.controller}"))"""
