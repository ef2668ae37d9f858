"""Where the local cluster is built already, what measures runs before all that does not give way to it."""

from __future__ import annotations

import datetime
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from suiteruns import catalogue
from suiteruns.catalogue import Plan
from suiteruns.scheduler import Job

PLAN = Plan("ci", workers=2, seed=1, day=datetime.date(2026, 11, 28), extras=True, cluster_built=True)
CLUSTER_PROGRAM = Path(__file__).resolve().parents[2] / "e2e/cluster"


def everything(plan: Plan) -> dict[str, Job]:
    return {job.name: job for job in catalogue.jobs(catalogue.chosen(["everything"]), plan)}


@pytest.mark.parametrize(
    "plan",
    [PLAN, replace(PLAN, cluster_built=False, local_cluster=False), replace(PLAN, memory_folder=Path("/in/memory"))],
)
def test_measurements_wait_only_for_what_they_need_and_all_others_for_them(plan: Plan) -> None:
    jobs = everything(plan)
    first = {name for name, job in jobs.items() if job.measures}
    assert first == {"e2e/pods/bounds", "e2e/kubernetes/bounds", "e2e/kubernetes/fault"}
    preparations = set(catalogue.PREPARATIONS)
    for name in first:
        assert {*jobs[name].after, *jobs[name].later_than} <= {*preparations, "e2e/cluster", *first}
    for name, job in jobs.items():
        if name not in {*first, *preparations, "e2e/cluster", "end of the local cluster"}:
            beside = job.computes and name not in ("unit/storage", "unit/log")
            beside = beside and (name != "unit" or plan.memory_folder is not None)
            assert beside != (first <= set(job.later_than))


@pytest.mark.parametrize("plan", [PLAN, replace(PLAN, cluster_built=False)])
def test_every_job_starts_at_last(plan: Plan) -> None:
    jobs = everything(plan)
    ended: set[str] = set()
    while ready := [name for name, job in jobs.items() if name not in ended and _can_start(job, jobs, ended)]:
        ended.update(ready)
    assert ended == set(jobs)


def _can_start(job: Job, jobs: dict[str, Job], ended: set[str]) -> bool:
    return {*job.after, *job.later_than} & set(jobs) <= ended


def test_a_cluster_that_must_be_built_holds_up_its_own_tests_only() -> None:
    jobs = everything(replace(PLAN, cluster_built=False))
    waiting = {name for name, job in jobs.items() if {*job.after, *job.later_than} & {"e2e/kubernetes/bounds"}}
    assert waiting == {"e2e/kubernetes/fault", "end of the local cluster"}


def test_a_cluster_counts_as_built_once_its_programs_are_there(tmp_path: Path) -> None:
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}

    def is_built() -> tuple[int, str]:
        command = (sys.executable, str(CLUSTER_PROGRAM), "is-built")
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
        return done.returncode, done.stdout + done.stderr

    assert is_built() == (1, "")
    code = "from localcluster import build; print(build.cache_folder() / build._inputs_digest())"
    program = [sys.executable, "-c", code]
    place = subprocess.run(program, env={**environment, "PYTHONPATH": str(CLUSTER_PROGRAM)}, stdout=subprocess.PIPE)
    Path(place.stdout.decode().strip()).mkdir(parents=True)
    assert is_built() == (0, "")
