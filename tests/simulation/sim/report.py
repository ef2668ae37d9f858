"""What `make simulate` prints: tables for people, one JSON object for programs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from sim.bugs.registry import Measured, PlantedBug
from sim.hunting import Hunted
from sim.seeds import SeedRun, Totals

WIDTH_WITHOUT_TERMINAL = 160


Report = Callable[[SeedRun], None]
"""Called for each seed that ended."""


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
    by_kind = _table("fault", "times", "on in seeds", "in")
    every = summed(totals)
    for kind in sorted(every.faults.keys() | every.enabled.keys()):
        where = [f"{name} {part.faults[kind]}" for name, part in totals.items() if part.faults[kind]]
        on = str(every.enabled[kind]) if every.enabled[kind] else ""
        by_kind.add_row(kind, str(every.faults[kind]), on, ", ".join(where))
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
    table = _table("planted bug", "found", "seed", "seconds", "plain seeds", "violation")
    for hunt in sorted(hunts, key=lambda hunt: hunt.name):
        where = str(hunt.seed) if hunt.found else f"none of {hunt.seeds}"
        plain = f"{hunt.unmodified_found} of {hunt.unmodified_of}"
        violation = f"{hunt.checker}: {_short(hunt.said)}" if hunt.found else "; ".join(hunt.others)
        table.add_row(hunt.name, "yes" if hunt.found else "NO", where, f"{hunt.seconds:.1f}", plain, violation)
    return table


def hunted_lines(hunt: Hunted) -> list[str]:
    """How a hunt ended; of one without success also what was seen instead."""
    if hunt.found:
        lines = [
            f"{hunt.name}: found at seed {hunt.seed} after {hunt.seconds:.1f} s by {hunt.checker}: {_short(hunt.said)}"
        ]
    else:
        lines = [f"{hunt.name}: NOT FOUND by {hunt.seeds} seeds in {hunt.seconds:.1f} s {_short(hunt.said)}".rstrip()]
    lines += [f"  does not count: {other}" for other in hunt.others]
    if hunt.unmodified_of:
        lines.append(f"  the unmodified workload finds it in {hunt.unmodified_found} of {hunt.unmodified_of} seeds")
    return lines


def measured_of(hunt: Hunted) -> Measured:
    """What to keep of a hunt."""
    seconds = round(hunt.seed_seconds, 1)
    return Measured(hunt.seed, seconds, hunt.unmodified_found, hunt.unmodified_of)


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
    return _json(
        {
            "bugs": [
                {"name": name, "summary": planted.summary, "breaks": planted.breaks} for name, planted in bugs.items()
            ]
        }
    )


def summed(totals: dict[str, Totals]) -> Totals:
    """Over all workloads."""
    every = Totals()
    for part in totals.values():
        every.seeds += part.seeds
        every.steps += part.steps
        every.turns += part.turns
        every.virtual_s += part.virtual_s
        every.seconds += part.seconds
        every.cpu_s += part.cpu_s
        every.faults.update(part.faults)
        every.enabled.update(part.enabled)
        every.pids |= part.pids
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
