"""What `make simulate` prints: tables for people, one JSON object for programs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from sim.bugs.registry import Hunted, PlantedBug
from sim.seeds import SeedRun, Totals

WIDTH_WITHOUT_TERMINAL = 160


Told = Callable[[SeedRun], None]
"""Is told of each seed that ended."""


def console(*, stderr: bool = False) -> Console:
    """Where to print; where it is no terminal, lines may be long."""
    found = Console(highlight=False, stderr=stderr)
    return found if found.is_terminal else Console(highlight=False, stderr=stderr, width=WIDTH_WITHOUT_TERMINAL)


def seeds_tables(totals: dict[str, Totals]) -> list[Table]:
    """Seeds and steps by workload, and faults by kind and workload."""
    by_workload = _table("workload", "seeds", "steps", "turns", "virtual s", "real s", "violations")
    for name, part in [*totals.items(), ("all", summed(totals))]:
        counts = (part.seeds, part.steps, part.turns, round(part.virtual_s))
        by_workload.add_row(name, *map(str, counts), f"{part.seconds:.1f}", str(len(part.violations)))
    by_kind = _table("fault", "times", "enabled in", "in")
    every = summed(totals)
    for kind in sorted({*every.faults, *every.enabled}):
        where = [f"{name} {part.faults[kind]}" for name, part in totals.items() if part.faults[kind]]
        enabled = f"{every.enabled[kind]} seeds" if every.enabled[kind] else ""
        by_kind.add_row(kind, str(every.faults[kind]), enabled, ", ".join(where))
    return [by_workload, by_kind]


def violation_lines(run: SeedRun) -> list[str]:
    """A violation, how to see it again, and what to keep of it."""
    return [
        f"VIOLATION in workload {run.workload}, seed {run.seed}: {run.failure}",
        f"replay: {run.replay}",
        "keep it in tests/simulation/regressions.toml:",
        *(f"    {line}" for line in run.regression.splitlines()),
    ]


def bugs_table(hunts: Sequence[Hunted]) -> Table:
    """Which planted bugs were found, and how."""
    table = _table("planted bug", "found", "seed", "seconds", "violation")
    for hunt in hunts:
        where = str(hunt.seed) if hunt.found else f"none of {hunt.seeds}"
        table.add_row(hunt.name, "yes" if hunt.found else "NO", where, f"{hunt.seconds:.1f}", _short(hunt.said))
    return table


def hunted_line(hunt: Hunted) -> str:
    """How a hunt ended, in a line."""
    if hunt.found:
        return f"{hunt.name}: found at seed {hunt.seed} after {hunt.seconds:.1f} s: {_short(hunt.said)}"
    return f"{hunt.name}: NOT FOUND by {hunt.seeds} seeds in {hunt.seconds:.1f} s {_short(hunt.said)}".rstrip()


def seeds_json(totals: dict[str, Totals], traces: Sequence[SeedRun]) -> str:
    """The same as the tables; ``traces`` only of seeds that were asked for one by one."""
    every = summed(totals)
    return _json(
        {
            **_counts(every),
            "workloads": {name: _counts(part) for name, part in totals.items()},
            "violations": [
                {"workload": run.workload, "seed": run.seed, "violation": run.failure, "replay": run.replay}
                for run in every.violations
            ],
            "traces": [{"workload": run.workload, "seed": run.seed, "trace": run.trace} for run in traces],
        }
    )


def bugs_json(hunts: Sequence[Hunted]) -> str:
    """The same as the table."""
    return _json({"bugs": [asdict(hunt) for hunt in hunts]})


def list_json(bugs: Mapping[str, PlantedBug]) -> str:
    """The same as the list."""
    return _json({"bugs": [{"name": name, "summary": planted.summary} for name, planted in bugs.items()]})


def summed(totals: dict[str, Totals]) -> Totals:
    """Over all workloads."""
    every = Totals()
    for part in totals.values():
        every.seeds += part.seeds
        every.steps += part.steps
        every.turns += part.turns
        every.virtual_s += part.virtual_s
        every.seconds += part.seconds
        every.faults.update(part.faults)
        every.enabled.update(part.enabled)
        every.violations += part.violations
    return every


def _table(name: str, *columns: str) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column(name, no_wrap=True)
    for column in columns:
        last = column in ("violation", "in")
        table.add_column(column, justify="left" if last else "right", no_wrap=not last)
    return table


def _short(text: str, most: int = 200) -> str:
    first = text.splitlines()[0] if text else ""
    return first if len(first) <= most else first[: most - 1] + "…"


def _counts(part: Totals) -> dict[str, Any]:
    return {
        "seeds": part.seeds,
        "steps": part.steps,
        "turns": part.turns,
        "virtual_s": round(part.virtual_s, 3),
        "seconds": round(part.seconds, 3),
        "faults": dict(sorted(part.faults.items())),
        "enabled": dict(sorted(part.enabled.items())),
    }


def _json(value: dict[str, Any]) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)
