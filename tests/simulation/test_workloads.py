"""Simulated crash workloads: a fixed set of seeds, and fresh ones for as long as the profile allows.

Every seed that ever failed stays in ``regressions.toml`` with the reason.
"""

from __future__ import annotations

import importlib.util
import tomllib
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
SECONDS = {"ci": 20.0, "full": 60.0}
"""For each workload; the long form has a quarter of an hour of `run.py` beside it."""


def _runner() -> Any:
    spec = importlib.util.spec_from_file_location("simulation_run", HERE / "run.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    import sys

    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


run = _runner()
REGRESSIONS = tomllib.loads((HERE / "regressions.toml").read_text())["seed"]


@pytest.mark.parametrize("case", REGRESSIONS, ids=lambda case: f"{case['workload']}-{case['seed']}")
def test_a_seed_that_once_failed(case: dict[str, Any]) -> None:
    totals = run.Totals()
    run.run_seed(case["workload"], case["seed"], totals)
    assert totals.violations == [], case["reason"]


@pytest.mark.parametrize("workload", sorted(run.WORKLOADS))
def test_fresh_seeds(workload: str, test_seed: int, test_profile: str, capsys: pytest.CaptureFixture[str]) -> None:
    totals = run.run_many([workload], test_seed, 1_000_000, SECONDS[test_profile], print)
    with capsys.disabled():
        print(f"\n{workload} from seed {test_seed}: " + "; ".join(totals.lines()))
    assert totals.violations == []


@pytest.mark.parametrize("workload", sorted(run.WORKLOADS))
def test_a_seed_replays(workload: str, test_seed: int) -> None:
    totals = run.Totals()
    for _ in range(2):
        run.run_seed(workload, test_seed, totals)
    assert totals.traces[0] == totals.traces[1]
