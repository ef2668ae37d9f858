"""Simulated crash workloads: seeds that failed once, fresh ones for as long as the profile allows, and replays.

Every seed that ever failed stays in ``regressions.toml`` with the reason.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from sim.catalogue import CI_SEEDS, PLANNED, WORKLOADS
from sim.seeds import SeedRun, Totals, never_occurred, run_many, run_seed

SECONDS = {"ci": 5.0, "full": 60.0}
"""For each workload; ``scripts/run-suites.sh`` runs `run.py` for minutes beside it."""
REGRESSIONS = tomllib.loads((Path(__file__).parent / "regressions.toml").read_text())["seed"]


@pytest.mark.parametrize("case", REGRESSIONS, ids=lambda case: f"{case['workload']}-{case['seed']}")
def test_a_seed_that_once_failed(case: dict[str, Any]) -> None:
    assert not run_seed(case["workload"], case["seed"]).failure, case["reason"]


@pytest.mark.parametrize("workload", sorted(WORKLOADS))
def test_fresh_seeds(workload: str, test_seed: int, test_profile: str, capsys: pytest.CaptureFixture[str]) -> None:
    totals = Totals()
    run_many([workload], test_seed, None, SECONDS[test_profile], totals.add)
    with capsys.disabled():
        print(f"\n{workload} from seed {test_seed}: {totals.seeds} seeds, {totals.steps} steps")
    assert [(run.replay, run.failure) for run in totals.violations] == []
    assert totals.seeds


@pytest.mark.parametrize("workload", sorted(WORKLOADS))
def test_a_seed_replays(workload: str, test_seed: int) -> None:
    one, other = (run_seed(workload, test_seed) for _ in range(2))
    assert one.turns
    assert (one.trace, one.steps, one.faults) == (other.trace, other.steps, other.faults)
    assert run_seed(workload, test_seed + 1).trace != one.trace


def test_processes_share_the_seeds() -> None:
    alone: list[SeedRun] = []
    shared: list[SeedRun] = []
    run_many(["log", "objectcontainer"], 5, 3, None, alone.append)
    run_many(["log", "objectcontainer"], 5, 3, None, shared.append, jobs=2)
    found = sorted((run.workload, run.seed, run.trace) for run in shared)
    assert found == sorted((run.workload, run.seed, run.trace) for run in alone)
    assert len(found) == 6


def test_a_fault_that_never_occurs_is_named() -> None:
    def ran(seed: int, faults: dict[str, int], *enabled: str) -> SeedRun:
        return SeedRun("recovery", seed, 1, 1, 1.0, 1.0, faults, "", "", enabled)

    totals = Totals()
    planned = dict.fromkeys(PLANNED["recovery"], 1)
    totals.add(ran(1, planned, "pause", "disk full"))
    totals.add(ran(2, {"pause": 3}, "pause", "disk full"))
    totals.add(ran(3, {}, "clock jump"))
    assert never_occurred({"recovery": totals}, 2) == ["disk full in none of 3 seeds of recovery, 2 of which could"]
    assert [line.partition(" in ")[0] for line in never_occurred({"recovery": totals}, 1)] == [
        "clock jump",
        "disk full",
    ]
    del totals.faults["crash"]
    assert [line.partition(" in ")[0] for line in never_occurred({"recovery": totals}, 2)] == ["crash", "disk full"]
    assert PLANNED.keys() == CI_SEEDS.keys() == WORKLOADS.keys()


def test_each_workload_runs_as_many_seeds_as_it_is_given() -> None:
    ran: list[SeedRun] = []
    run_many(["log", "objectcontainer"], 5, {"log": 3, "objectcontainer": 1}, None, ran.append)
    assert [(run.workload, run.seed) for run in ran] == [("log", 5), ("objectcontainer", 5), ("log", 6), ("log", 7)]
