"""Simulated crash workloads: seeds that failed once, fresh ones while the profile allows, and replays.

Every seed that ever failed stays in ``regressions.toml`` with the reason.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from sim.catalogue import WORKLOADS
from sim.seeds import SeedRun, Totals, run_many, run_seed

SECONDS = {"ci": 1.0, "full": 60.0}
"""For each workload, and at least one seed; ``scripts/run_suites.py`` runs `run.py` for minutes beside it."""
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


def test_both_processes_work_and_no_seed_runs_twice() -> None:
    runs: list[SeedRun] = []
    run_many(["log", "objectlog"], 0, 40, None, runs.append, jobs=2)
    assert sorted((run.workload, run.seed) for run in runs) == [
        (name, seed) for name in ("log", "objectlog") for seed in range(40)
    ]
    by_process = Counter(run.pid for run in runs)
    assert len(by_process) == 2
    assert min(by_process.values()) >= 8, by_process


def test_the_least_number_of_seeds_runs_over_time() -> None:
    runs: list[SeedRun] = []
    run_many(["log"], 3, None, 0.0, runs.append, least=2)
    assert [run.seed for run in runs] == [3, 4]
    runs.clear()
    run_many(["log"], 3, 4, None, runs.append, least=2)
    assert [run.seed for run in runs] == [3, 4, 5, 6]
    runs.clear()
    run_many(["log"], 3, 1, None, runs.append, least=2)
    assert [run.seed for run in runs] == [3]
