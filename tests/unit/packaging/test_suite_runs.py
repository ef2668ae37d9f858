"""How suites are run beside each other: what waits for what, what fails, and what is reported as not run."""

from __future__ import annotations

import datetime
import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from suiteruns import catalogue, findings, reports, room
from suiteruns.catalogue import Plan
from suiteruns.reports import Run
from suiteruns.scheduler import Ended, Job, Scheduler

PLAN = Plan("ci", workers=2, seed=1, day=datetime.date(2026, 11, 22))
NOTE = """
import pathlib, sys, time
note, name, wanted = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
with note.open("a") as file:
    file.write(f"+{name} ")
while not all(f"+{other} " in note.read_text() for other in wanted):
    time.sleep(0.01)
with note.open("a") as file:
    file.write(f"-{name} ")
"""
"""A job that notes its beginning and its end, and between them waits for the beginning of others."""


def noting(note: Path, name: str, *beside: str, **fields: object) -> Job:
    command = (sys.executable, "-c", NOTE, str(note), name, *beside)
    return Job(name, command, limit_s=120.0, suite=name, **fields)  # type: ignore[arg-type]


def run(jobs: list[Job], folder: Path, cores: float = 2.0) -> dict[str, Ended]:
    ended = Scheduler(jobs, cores, folder / "out", findings.judge, lambda words: None).run()
    return {one.job.name: one for one in ended}


@pytest.fixture
def note(tmp_path: Path) -> Path:
    path = tmp_path / "note"
    path.touch()
    return path


def test_jobs_that_fit_run_beside_each_other(note: Path, tmp_path: Path) -> None:
    ended = run([noting(note, "a", "b"), noting(note, "b", "a")], tmp_path)
    assert ended["a"].passed
    assert ended["b"].passed


@pytest.mark.parametrize(
    "fields",
    [{"cores": 2.0}, {"measures": True}, {"takes": frozenset({"disk"})}],
    ids=["too few cores", "measures", "takes the same"],
)
def test_jobs_that_do_not_fit_run_one_after_the_other(note: Path, tmp_path: Path, fields: dict[str, object]) -> None:
    run([noting(note, name, **fields) for name in "abc"], tmp_path)
    assert note.read_text() == "+a -a +b -b +c -c "


def test_what_only_computes_fills_what_others_leave(note: Path, tmp_path: Path) -> None:
    computing = [noting(note, "c", "a", computes=True), noting(note, "z", computes=True)]
    run([noting(note, "a", "b"), noting(note, "b", "c", cores=1.5), *computing], tmp_path)
    words = note.read_text().split()
    assert words.index("-c") < words.index("+z") or words.index("-b") < words.index("+z"), "one at a time beside others"


def test_what_gives_way_further_holds_up_nothing_else_that_computes(note: Path, tmp_path: Path) -> None:
    computing = [noting(note, "c", "z", computes=True, nice=10), noting(note, "z", "c", computes=True, nice=5)]
    ended = run([noting(note, "a", "z", cores=1.5), *computing], tmp_path)
    assert all(one.passed for one in ended.values())


def events(jobs: list[Job], folder: Path) -> list[str]:
    """What the scheduler says of the beginning and end of each job, in order, as ``+name`` and ``-name``."""
    lines: list[str] = []
    Scheduler(jobs, 2.0, folder / "out", findings.judge, lines.append).run()
    words = [line.split("] ")[1].split() for line in lines if line.startswith("[")]
    return [("+" if done == "started" else "-") + name for name, done, *_ in words]


@pytest.mark.parametrize("first", [True, False], ids=["it comes first", "it comes last"])
def test_nothing_runs_beside_what_measures_but_what_computes(note: Path, tmp_path: Path, first: bool) -> None:
    """It goes first when it is ready, wherever it stands."""
    others = [noting(note, name, cores=0.1) for name in "ab"]
    measuring = noting(note, "m", "c", measures=True, cores=0.1)  # it ends after c has begun
    computing = noting(note, "c", "m", computes=True)
    words = events([computing, *([measuring, *others] if first else [*others, measuring])], tmp_path)
    during = words[words.index("+m") : words.index("-m")]
    assert set(during) <= {"+m", "+c", "-c"}, "neither a nor b begins or ends meanwhile"
    assert words.index("-m") < min(words.index("+a"), words.index("+b"))


@pytest.mark.parametrize("field", ["after", "later_than"])
def test_others_start_before_what_measures_and_is_not_ready(note: Path, tmp_path: Path, field: str) -> None:
    needed = noting(note, "n", "l", computes=True, cores=0.0)
    measuring = noting(note, "m", measures=True, **{field: ("n",)})
    words = events([measuring, needed, noting(note, "l")], tmp_path)
    assert words.index("-l") < words.index("+m")


def test_nothing_waits_for_what_only_computes(note: Path, tmp_path: Path) -> None:
    computing = noting(note, "c", "m", computes=True, cores=2.0)
    run([computing, noting(note, "m", "c", measures=True), noting(note, "a", "m", later_than=("none",))], tmp_path)
    assert note.read_text().count("-") == 3


GIVING_WAY = """
import os, pathlib, sys, time
wanted = (int(sys.argv[1]), "7")
def found():
    group = pathlib.Path("/proc/self/autogroup")
    return os.nice(0), group.read_text().rpartition(" ")[2].strip() if group.exists() else "7"
ends_s = time.monotonic() + 120
while found() != wanted and time.monotonic() < ends_s:
    time.sleep(0.01)
print(*found())
"""


def test_a_job_gives_way_with_its_whole_session(tmp_path: Path) -> None:
    niceness = min(19, os.nice(0) + 7)  # on top of what this process has
    job = Job("polite", (sys.executable, "-c", GIVING_WAY, str(niceness)), suite="polite", nice=7)
    assert run([job], tmp_path)["polite"].passed
    assert job.log_in(tmp_path / "out").read_text() == f"{niceness} 7\n"


def test_a_job_without_room_does_not_hold_up_those_behind_it(note: Path, tmp_path: Path) -> None:
    run([noting(note, "a", "c"), noting(note, "b", cores=2.5), noting(note, "c", "a")], tmp_path)
    words = note.read_text().split()
    assert words.index("+c") < words.index("-a") < words.index("+b")


def test_a_job_waits_for_those_before_it(note: Path, tmp_path: Path) -> None:
    run([noting(note, "a", after=("c",)), noting(note, "b", later_than=("a",)), noting(note, "c")], tmp_path)
    assert note.read_text() == "+c -c +a -a +b -b "


def test_what_a_job_needs_has_failed(note: Path, tmp_path: Path) -> None:
    failing = Job("server", (sys.executable, "-c", "raise SystemExit(3)"))
    ended = run([failing, noting(note, "a", after=("server",)), noting(note, "b", later_than=("a",))], tmp_path)
    assert (ended["server"].code, ended["server"].verdict) == (3, "FAILED (3)")
    assert (ended["a"].code, ended["a"].verdict) == (None, "FAILED (server failed)")
    assert ended["b"].passed


def test_a_job_that_does_not_end_is_ended_with_its_children(tmp_path: Path) -> None:
    spawns = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(600)'])"
    ended = run([Job("slow", (sys.executable, "-c", spawns), limit_s=0.5, suite="slow")], tmp_path)
    assert ended["slow"].verdict.startswith("FAILED (not done within")


SUITE = "import pytest\ndef test_one(): pass\n@pytest.mark.parametrize('n', [1, 2])\ndef test_two(n): {}\n"


def by_pytest(tmp_path: Path, second: str) -> Job:
    (tmp_path / "test_these.py").write_text(SUITE.format(second))
    report = tmp_path / "report.xml"
    options = ["-q", "-c", "/dev/null", "-p", "no:cacheprovider", f"--rootdir={tmp_path}", f"--junit-xml={report}"]
    return Job(
        "these",
        (sys.executable, "-m", "pytest", *options, str(tmp_path)),
        suite="these",
        report=report,
        environment={"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )


def test_cases_are_read_from_the_report(tmp_path: Path) -> None:
    job = by_pytest(tmp_path, "pass")
    assert run([job], tmp_path)["these"].passed
    cases = findings.cases_of(job)
    assert [(case.name, case.outcome) for case in cases] == [
        ("test_one", "passed"),
        ("test_two[1]", "passed"),
        ("test_two[2]", "passed"),
    ]
    assert len(findings.slowest(cases, 2)) == 2


@pytest.mark.parametrize(
    ("second", "verdict"),
    [("pytest.skip('not here')", "FAILED (2 tests were skipped)"), ("assert n == 1", "FAILED (1)")],
)
def test_a_suite_that_skips_or_fails_has_failed(tmp_path: Path, second: str, verdict: str) -> None:
    assert run([by_pytest(tmp_path, second)], tmp_path)["these"].verdict == verdict


def test_a_report_that_is_missing_is_a_failure(tmp_path: Path) -> None:
    job = Job("quiet", (sys.executable, "-c", ""), suite="quiet", report=tmp_path / "nothing.xml")
    assert "nothing.xml cannot be read" in run([job], tmp_path)["quiet"].verdict


def test_every_folder_of_tests_belongs_to_a_suite() -> None:
    tests = Path(__file__).resolve().parents[2]
    folders = {str(path.parent.relative_to(tests)) for path in tests.rglob("test_*.py")}
    suites = {suite.name for suite in catalogue.SUITES}
    assert {folder for folder in folders if not any(f"{folder}/".startswith(f"{name}/") for name in suites)} == set()
    assert {name for name in suites if not (tests / name).is_dir()} == set()


def test_a_run_is_reported_for_programs_and_for_people(tmp_path: Path) -> None:
    logs = tmp_path / "out"
    job = by_pytest(tmp_path, "assert n == 1")
    ended = Scheduler([job], 2.0, logs, findings.judge, lambda words: None).run()
    made = Run(PLAN, ended, findings.cases_of(job), ["the rest"], 1.0, time.time())
    reports.write(made, tmp_path / "report", logs)
    written = json.loads((tmp_path / "report/report.json").read_text())
    assert (written["passed"], written["suites"][0]["tests"], written["not_in_this_run"]) == (False, 3, ["the rest"])
    assert [title.rpartition("::")[2] for title in written["failed"]] == ["test_two[2]"]
    page = (tmp_path / "report/report.md").read_text()
    assert page.startswith("# Tailrace, 2026-11-22: FAILED\n")
    assert "assert 2 == 1" in page
    assert "| these | 3 |" in page
    assert "- the rest" in page
    printed = reports.lines(made, logs)
    assert "not in this run: the rest" in printed
    assert printed[-4] == "== these: FAILED (1)"
    assert printed[-3].startswith("FAILED ")
    assert printed[-3].endswith("::test_two[2]")
    assert printed[-2].split() == ["E", "assert", "2", "==", "1"]
    assert printed[-1].endswith("AssertionError")


def test_the_end_of_a_run_in_which_much_fails_stays_short(tmp_path: Path) -> None:
    job = by_pytest(tmp_path, "pass")
    trouble = findings._trouble("E   " + "x" * 10_000 + "\nE   more" * 50 + "\ntest_these.py:3: AssertionError")
    assert len(trouble) == findings.TROUBLE_LINES + 1
    assert max(map(len, trouble)) == findings.TROUBLE_CHARACTERS
    cases = [findings.Case("these", "file", f"test_{n}", 0.0, "failed", tuple(trouble)) for n in range(25)]
    printed = reports.lines(Run(PLAN, [Ended(job, 1)], cases, [], 1.0, time.time()), tmp_path)
    assert sum(line.startswith("FAILED ") for line in printed) == reports.FAILURES_SHOWN
    assert printed[-1] == f"and 15 more: see {job.log_in(tmp_path)}"


def test_the_last_lines_of_a_job_without_tests_are_reported(tmp_path: Path) -> None:
    words = "import sys; print('looked at'); sys.exit('line 7 is too long')"
    waits = Job("waits", (sys.executable, "-c", ""), after=("lint",), suite="waits")
    job = Job("lint", (sys.executable, "-c", words), suite="lint")
    ended = Scheduler([job, waits], 2.0, tmp_path, findings.judge, lambda words: None).run()
    printed = reports.lines(Run(PLAN, ended, [], [], 1.0, time.time()), tmp_path)
    assert printed[-4] == "== lint: FAILED (1)"
    assert sorted(printed[-3:-1]) == ["    line 7 is too long", "    looked at"]
    assert printed[-1] == "== waits: FAILED (lint failed)"


def test_suites_that_leave_something_out_are_looked_at_for_what_did_not_run() -> None:
    tests = Path(__file__).resolve().parents[2]
    ways = ("leave_out(", "collect_ignore", "pytest_ignore_collect", "pytest_deselected")
    leaving_out = {
        str(path.parent.relative_to(tests))
        for path in tests.rglob("conftest.py")
        if any(way in path.read_text() for way in ways)
    }
    assert {"e2e/pods", "images"} <= leaving_out
    assert leaving_out <= set(findings.CHOOSES_CASES)


def test_names_and_groups() -> None:
    assert catalogue.chosen(["unit", "simulation", "unit/log"]) == [
        "unit",
        "unit/storage",
        "unit/log",
        "simulation",
        "simulation/seeds",
        "simulation/bugs",
    ]
    assert {"lint", "sanitize", "e2e/cluster", "e2e/api", "e2e/kubernetes"}.isdisjoint(catalogue.chosen([]))
    assert {*catalogue.chosen([]), "lint", "sanitize", "e2e/cluster", "e2e/api", "e2e/kubernetes"} == {
        *catalogue.chosen(["everything"])
    }
    with pytest.raises(catalogue.UnknownSuiteError, match="there is no suite units; there are cli"):
        catalogue.chosen(["units"])


def test_every_suite_has_a_job() -> None:
    names = catalogue.chosen(["everything"])
    for plan in (PLAN, _full(), replace(PLAN, extras=True)):
        assert {job.suite for job in catalogue.jobs(names, plan) if job.suite} == set(names)
    with pytest.raises(catalogue.UnknownSuiteError, match="nothing runs for nonsense"):
        catalogue.jobs(["unit", "nonsense"], PLAN)


def test_a_long_form_needs_room_on_every_disk() -> None:
    tests_folder, cluster = (*room.needed(catalogue.chosen(["everything"]), _full()),)
    assert list(room.needed(["unit", "e2e/api"], _full())) == [tests_folder]
    assert list(room.needed(["e2e/kubernetes"], replace(_full(), local_cluster=False))) == [tests_folder]
    needs = {tests_folder: 3 * room.GIB, cluster: 4 * room.GIB}
    assert room.lacking(needs, lambda folder: (7, 7 * room.GIB)) == ""
    assert room.lacking(needs, lambda folder: (int(folder == cluster), 4 * room.GIB)) == ""
    one_disk = room.lacking(needs, lambda folder: (7, 7 * room.GIB - 1))
    assert one_disk.startswith(f"the long form may write 7 GiB to {tests_folder} and {cluster}, where 7 GiB are free")
    two_disks = room.lacking(needs, lambda folder: (int(folder == cluster), 3 * room.GIB))
    assert f"4 GiB to {cluster}, where 3 GiB are free" in two_disks


def test_room_of_a_folder_that_is_not_there_yet_is_that_of_its_disk(tmp_path: Path) -> None:
    device, free_bytes = room.free(tmp_path / "no" / "such")
    assert device == tmp_path.stat().st_dev
    assert free_bytes > 0


def test_the_local_cluster_ends_after_its_last_tests() -> None:
    jobs = catalogue.jobs(catalogue.chosen(["everything"]), replace(PLAN, extras=True))
    (end,) = (job for job in jobs if job.name == "end of the local cluster")
    assert set(end.later_than) - {"e2e/api"} == {job.name for job in jobs if "cluster" in job.takes and job is not end}
    assert {"e2e/cluster", "e2e/api", "e2e/kubernetes/fault"} <= set(end.later_than)
    elsewhere = catalogue.jobs(["e2e/kubernetes"], replace(PLAN, extras=True, local_cluster=False))
    assert "end of the local cluster" not in [job.name for job in elsewhere]


def test_nothing_uses_the_cluster_beside_what_measures_there_or_makes_one() -> None:
    """Tests of the API server run beside other tests of the installation, which take the cluster, and of these only."""
    jobs = {job.name: job for job in catalogue.jobs(catalogue.chosen(["everything"]), replace(PLAN, extras=True))}
    api = jobs["e2e/api"]
    assert "e2e/cluster" in api.later_than
    assert not api.takes & jobs["e2e/kubernetes"].takes
    for name in ("e2e/kubernetes/bounds", "e2e/kubernetes/fault"):
        assert "e2e/api" in jobs[name].later_than or "e2e/kubernetes/bounds" in jobs[name].later_than
        assert jobs[name].measures
        assert not api.computes


def test_a_suite_brings_what_it_needs_once() -> None:
    names = [job.name for job in catalogue.jobs(["crash", "e2e/kubernetes", "contract"], PLAN)]
    assert len(names) == len(set(names))
    assert set(names) == {
        *("MinIO server", "Python client", "Java client", "local cluster", "container images"),
        *("crash", "e2e/kubernetes", "e2e/kubernetes/bounds", "contract"),
    }
    elsewhere = Plan("ci", workers=2, seed=1, day=PLAN.day, local_cluster=False)
    assert "local cluster" not in [job.name for job in catalogue.jobs(["e2e/api", "e2e/kubernetes"], elsewhere)]


def test_what_mounts_never_runs_beside_what_compares_mounts() -> None:
    taking = {job.name: job.takes for job in catalogue.jobs(catalogue.chosen(["everything"]), PLAN)}
    for name in ("crash", "images", "e2e/kubernetes", "e2e/kubernetes/bounds"):
        assert taking["e2e/cluster"] & taking[name]


@pytest.mark.parametrize("profile", ["ci", "full"])
def test_everything_gives_way_to_what_measures_how_long_clients_wait(profile: str) -> None:
    tests = Path(__file__).resolve().parents[2]
    plan = PLAN if profile == "ci" else _full()
    jobs = {job.name: job for job in catalogue.jobs(catalogue.chosen(["everything"]), plan)}
    for suite in catalogue.SUITES:
        files = {path.name: path.read_text() for path in (tests / suite.name).glob("test_*.py")}
        measuring = {name for name, text in files.items() if "from harness.pace import" in text}
        for job in (jobs.get(suite.name), jobs.get(f"{suite.name}/bounds")):
            ran = {name for name in files if job and f"--ignore=tests/{suite.name}/{name}" not in job.command}
            assert not (measuring & ran) or (job and job.measures), f"{measuring & ran} run beside each other"
    on_cluster = {suite.name for suite in catalogue.SUITES if suite.on_cluster or "cluster" in suite.takes}
    others = [job for job in jobs.values() if job.suite and not job.measures and job.suite not in on_cluster]
    assert {jobs[name].nice for name in on_cluster if name in jobs} == {0}
    assert {job.nice for job in jobs.values() if job.measures} == {0}
    assert {job.nice for job in others if job.report is not None} == {catalogue.NICE}
    assert {job.nice for job in others if job.report is None} == {catalogue.NICEST}


@pytest.mark.parametrize(
    ("extras", "profile", "turns"), [(True, "ci", True), (False, "ci", False), (True, "full", False)]
)
def test_only_ci_runs_the_seeds_of_half_of_the_workloads(extras: bool, profile: str, turns: bool) -> None:
    plan = replace(PLAN, extras=extras, profile=profile)
    (seeds,) = catalogue.jobs(["simulation/seeds"], plan)
    assert ("--workloads-of" in seeds.command) == turns
    assert not turns or seeds.command[seeds.command.index("--workloads-of") + 1] == PLAN.day.isoformat()
    said = [line for line in findings.not_in_this_run(["simulation/seeds"], [], plan) if "fresh seeds" in line]
    assert [("half of the workloads" in line) for line in said] == ([] if profile == "full" else [turns])


def test_what_computes_takes_one_core_beside_what_measures() -> None:
    everything = catalogue.jobs(catalogue.chosen(["everything"]), PLAN)
    assert {job.name for job in everything if job.measures}
    assert {job.name for job in everything if job.computes} >= {"lint", "unit", "simulation", "simulation/seeds"}
    assert {job.cores for job in everything if job.computes and job.suite} == {1.0}
    assert {job.name: job.cores for job in everything if job.computes and not job.suite} == {"local cluster": 0.0}
    (seeds,) = catalogue.jobs(["simulation/seeds"], PLAN)
    assert seeds.cores == PLAN.workers
    (unit,) = catalogue.jobs(["unit"], PLAN)
    assert unit.cores == PLAN.workers / 2, "its processes wait half of their time"


def test_files_of_tests_that_need_no_disk_are_in_memory_where_there_is_room(tmp_path: Path) -> None:
    with room.folder_in_memory(tmp_path, needs_bytes=1) as folder:
        assert folder is not None
        assert folder.parent == tmp_path
        (folder / "one").mkdir()
        in_memory = {job.name: job for job in catalogue.jobs(["unit"], replace(PLAN, memory_folder=folder))}
        places = {job.environment.get("TMPDIR") for job in catalogue.jobs(["unit/log", "contract"], PLAN)}
    assert in_memory["unit"].environment["TMPDIR"] == str(folder)
    assert places == {None}
    assert not list(tmp_path.iterdir()), "nothing is left"
    for place, needs_bytes in ((tmp_path, 1 << 60), (tmp_path / "none", 1)):
        with room.folder_in_memory(place, needs_bytes) as folder:
            assert folder is None


def test_suites_inside_the_folder_of_another_run_once() -> None:
    jobs = {job.name: job for job in catalogue.jobs(catalogue.chosen(["unit"]), PLAN)}
    inside = {name for name in jobs if name.startswith("unit/")}
    assert {f"--ignore=tests/{name}" for name in inside} <= set(jobs["unit"].command)
    assert {f"tests/{name}" for name in inside} == {jobs[name].command[-1] for name in inside}


def test_every_file_of_a_suite_runs_once() -> None:
    rest, apart = (job for job in catalogue.jobs(["e2e/kubernetes"], PLAN) if job.suite)
    assert (apart.name, apart.measures, rest.measures) == ("e2e/kubernetes/bounds", True, False)
    ignored = [{word for word in job.command if word.startswith("--ignore=")} for job in (apart, rest)]
    folder = Path(__file__).resolve().parents[2] / "e2e/kubernetes"
    assert ignored[0] | ignored[1] == {
        f"--ignore=tests/e2e/kubernetes/{path.name}" for path in folder.glob("test_*.py")
    }
    assert ignored[0] & ignored[1] == set()


def test_what_did_not_run_is_named() -> None:
    lines = findings.not_in_this_run(["unit", "e2e/kubernetes", "images"], [], PLAN)
    text = "\n".join(lines)
    assert "suites: lint, sanitize, fuzz, spec, e2e/pods, e2e/cluster, e2e/api, spark, crash, " in text
    assert "e2e/kubernetes/test_memory_bound.py: the whole file" in text
    assert "images/test_spark_image.py: the whole file" in text
    assert "e2e/kubernetes/test_failover.py" in lines[-2], "its faults are also without the Java client"
    assert "unit/controller/workflows/test_crashes.py" in text
    assert findings.not_in_this_run([*catalogue.GROUPS["everything"], *catalogue.SIMULATOR], [], _full()) == []


def _full() -> Plan:
    return Plan("full", workers=2, seed=1, day=PLAN.day)


@pytest.mark.parametrize("profile", ["ci", "full"])
def test_in_the_long_form_a_test_may_take_as_long_as_its_mark_says(profile: str) -> None:
    jobs = [job for job in catalogue.jobs(["e2e/pods", "compat/java"], replace(PLAN, profile=profile)) if job.suite]
    assert {job.suite for job in jobs} == {"e2e/pods", "compat/java"}
    assert all(("faulthandler_timeout=0" in job.command) == (profile == "full") for job in jobs)
