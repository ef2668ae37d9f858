"""The registry of planted bugs, and what `make simulate` prints and answers."""

from __future__ import annotations

import datetime
import json
import re
import tomllib
from collections import Counter

import pytest

import run
from sim import document
from sim.bugs import BUGS
from sim.bugs.registry import PlantedBug, bug, hunt, of_day
from sim.catalogue import WORKLOADS
from sim.hunting import hunt_all
from sim.report import console, seeds_tables
from sim.seeds import Totals
from sim.violations import Violation, require
from sim.workloads.log import LogWorkload

ARITHMETIC = (ArithmeticError,)
HAZARDS = {
    "acknowledge before fsync": "acknowledge-before-fsync",
    "acknowledge without the look at the claims": "acknowledge-without-look",
    "an owner that reuses an epoch": "epoch-reused",
    "a new owner that skips the predecessors' prefix": "predecessors-prefix-skipped",
    "an acknowledged frame missing taken for a gap": "missing-frame-taken-for-gap",
    "a torn checkpoint as base": "torn-checkpoint-as-base",
    "Accumulate replayed twice": "accumulate-replayed-twice",
    "chunk names reused after delete and recreate": "chunk-names-reused",
    "a zombie's garbage collection": "zombie-garbage-collection",
    "log truncated past an un-tiered interval": "log-truncated-too-far",
    "a flush that completes after a merge": "flush-after-merge-unshifted",
    "writer attribute dropped on merge": "writer-attribute-dropped-on-merge",
    "a cache block reused under a view": "cache-block-reused-under-view",
    "cache full at commit": "cache-full-at-commit",
    "a prefetched attribute over a newer evicted one": "prefetch-over-newer-value",
    "SetupAppend answered from staged state": "setup-answered-from-staged-state",
    "a table copy over a newer value": "table-copy-over-newer",
    "a commit pass reordered after a controller crash": "commit-pass-reordered",
    "a stale owner that answers reads": "stale-owner-reads",
    "duplicate transaction commit": "transaction-committed-twice",
}
"""What can go wrong by the design, and the name under which it is planted."""


def changes_nothing(patch: pytest.MonkeyPatch) -> None:
    """Nothing is another."""


def breaks_three(patch: pytest.MonkeyPatch) -> None:
    """Seeds that divide by three break a promise."""
    original = LogWorkload.run

    def broken(self: LogWorkload) -> None:
        original(self)
        require(self.world.seed % 3 != 0, "three is no number")

    patch.setattr(LogWorkload, "run", broken)


class BrokenLog(LogWorkload):
    """A workload that breaks a promise at seeds that divide by three."""

    def run(self) -> None:
        super().run()
        require(self.world.seed % 3 != 0, "three is no number")


@pytest.fixture
def broken_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """The only workload there is, under the name `log`."""
    monkeypatch.setattr(run, "WORKLOADS", {"log": BrokenLog})
    monkeypatch.setitem(WORKLOADS, "log", BrokenLog)


def test_a_hunt_finds_a_bug_and_ends_there() -> None:
    hunted = hunt(BUGS["acknowledge-before-fsync"])
    assert hunted.found
    assert hunted.seeds == (hunted.seed or 0) + 1
    assert "Error: " in hunted.said or "Violation: " in hunted.said


def test_a_hunt_finds_nothing_where_there_is_nothing() -> None:
    hunted = hunt(PlantedBug("changes-nothing", "", LogWorkload, changes_nothing, (Violation,)), seeds=5)
    assert (hunted.found, hunted.seeds, hunted.said) == (False, 5, "")


def test_what_a_bug_changed_is_as_before_after_its_hunt() -> None:
    hunt(BUGS["acknowledge-before-fsync"])
    for seed in range(3):
        LogWorkload(seed).run()


def test_a_hunt_needs_the_words_of_its_bug() -> None:
    def hunted(words: str) -> bool:
        return hunt(PlantedBug("a-bug", "", LogWorkload, breaks_three, (Violation,), words), seeds=4).found

    assert hunted("three is no number")
    assert not hunted("four is no number")


def test_a_seed_that_fails_without_the_bug_proves_nothing() -> None:
    assert not hunt(PlantedBug("a-bug", "", BrokenLog, changes_nothing, (Violation,)), seeds=4).found
    assert hunt(PlantedBug("a-bug", "", LogWorkload, breaks_three, (Violation,)), first=1, seeds=4).seed == 3


def test_a_hunt_ends_with_its_time() -> None:
    hunted = hunt(PlantedBug("a-bug", "", LogWorkload, changes_nothing, (Violation,)), seeds=10_000, seconds=0.2)
    assert not hunted.found
    assert hunted.seeds < 10_000


def test_an_error_that_is_not_the_bug_s_is_no_find() -> None:
    planted = PlantedBug("a-bug", "", BrokenLog, changes_nothing, ARITHMETIC)
    with pytest.raises(Violation, match="three"):
        hunt(planted)


@pytest.mark.parametrize(
    ("name", "words"),
    [("bug", "no name"), ("A-bug", "no name"), ("a-bug-", "no name"), ("acknowledge-before-fsync", "two planted")],
)
def test_names_of_bugs(name: str, words: str) -> None:
    before = dict(BUGS)
    with pytest.raises(ValueError, match=words):
        bug(name, LogWorkload)(changes_nothing)
    with pytest.raises(ValueError, match="no docstring"):
        bug("a-bug", LogWorkload)(lambda patch: None)
    assert before == BUGS


def test_hunts_of_several_processes() -> None:
    told: list[str] = []
    names = ["damage-served", "acknowledge-before-fsync", "directory-not-synced"]
    hunts = hunt_all(names, 0, 50, 60.0, 2, lambda hunted: told.append(hunted.name))
    assert [hunted.name for hunted in hunts] == names
    assert all(hunted.found for hunted in hunts)
    assert sorted(told) == sorted(names)


def test_a_hunt_that_fails_is_no_find(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(BUGS, "a-bug", PlantedBug("a-bug", "", BrokenLog, changes_nothing, ARITHMETIC))
    (hunted,) = hunt_all(["a-bug"], 0, 5, 60.0, 1, lambda hunted: None)
    assert not hunted.found
    assert "three is no number" in hunted.said
    assert "Traceback" in capsys.readouterr().err


def test_each_bug_has_its_turn() -> None:
    day = datetime.date(2026, 11, 21)
    for count in (2, 7, 8, 31):
        names = [f"bug-{number}" for number in range(count)]
        days = [of_day(day + datetime.timedelta(days=number), names) for number in range(-(-count // 2))]
        assert all(len(chosen) == 2 for chosen in days)
        assert {name for chosen in days for name in chosen} == set(names)
    assert of_day(day) == of_day(day)
    assert set(of_day(day)) <= set(BUGS)


def test_the_list_of_bugs(capsys: pytest.CaptureFixture[str]) -> None:
    assert run.main(["--bug", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(BUGS)
    assert all(line.endswith(".") for line in lines)


def test_the_list_of_bugs_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert run.main(["--bug", "list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["bugs"]
    assert {found["name"]: found["summary"] for found in listed} == {name: bug.summary for name, bug in BUGS.items()}


@pytest.mark.parametrize(
    "arguments", [["--seeds", "0"], ["--jobs", "0"], ["--seeds", "-1"], ["--seeds", "many"]], ids=str
)
def test_numbers_that_make_no_sense(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run.main(["--workload", "log", *arguments])
    assert ended.value.code == 2
    assert arguments[1].lstrip("-") in capsys.readouterr().err.splitlines()[-1]


def test_a_run_that_somebody_ended(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "run_many", interrupted)
    assert run.main(["--workload", "log", "--seeds", "2"]) == run.ENDED
    assert "Traceback" not in capsys.readouterr().err


def test_faults_are_told_whole_however_wide_the_terminal_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sim.report.WIDTH_WITHOUT_TERMINAL", 60)
    totals = {name: Totals(faults=Counter({"slow store": 1234 + number})) for number, name in enumerate(WORKLOADS)}
    _, faults = seeds_tables(totals)
    console().print(faults)
    printed = " ".join(capsys.readouterr().out.split())
    assert "…" not in printed
    assert all(f"{name} {1234 + number}" in printed for number, name in enumerate(WORKLOADS))


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--bug", "no-such-bug"], 2),
        (["--workload", "nothing"], 2),
        (["--bug", "acknowledge-before-fsync"], 0),
        (["--bug", "acknowledge-before-fsync", "--seconds", "0.0001"], 1),
        (["--bug", "acknowledge-before-fsync", "--seed", "0"], 0),
        (["--seeds", "1"], 1),
        (["--seeds", "2", "--first", "1"], 0),
        (["--seed", "3"], 1),
        (["--seed", "4", "--workload", "log"], 0),
    ],
    ids=str,
)
@pytest.mark.usefixtures("broken_log")
def test_exit_codes(arguments: list[str], code: int) -> None:
    assert run.main(arguments) == code


@pytest.mark.usefixtures("broken_log")
def test_a_failing_seed_tells_how_to_replay_and_keep_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert run.main(["--seeds", "4"]) == 1
    printed = capsys.readouterr().out
    assert "VIOLATION in workload log, seed 3: Violation: three is no number" in printed
    assert "make simulate WORKLOAD=log SEED=3" in printed
    kept = printed[printed.rindex("[[seed]]") :].partition("\n\n")[0]
    lines = [line.strip() for line in kept.splitlines()[:4]]
    assert tomllib.loads("\n".join(lines)) == {"seed": [{"workload": "log", "seed": 3, "reason": "…"}]}
    assert "4 seeds, " in printed
    assert printed.rstrip().endswith(" kinds, 2 violations")


@pytest.mark.usefixtures("broken_log")
def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    def printed(*arguments: str) -> dict[str, object]:
        run.main([*arguments, "--json"])
        found: dict[str, object] = json.loads(capsys.readouterr().out)
        return found

    seeds = printed("--seeds", "4")
    assert (seeds["seeds"], seeds["traces"]) == (4, [])
    assert [found["seed"] for found in seeds["violations"]] == [0, 3]  # type: ignore[index, attr-defined]
    assert seeds["faults"] == seeds["workloads"]["log"]["faults"]  # type: ignore[index]
    (replayed,) = printed("--seed", "5")["traces"]  # type: ignore[misc, attr-defined]
    assert replayed == {"workload": "log", "seed": 5, "trace": run.run_seed("log", 5).trace}
    (hunted,) = printed("--bug", "acknowledge-before-fsync")["bugs"]  # type: ignore[misc, attr-defined]
    assert hunted["name"] == "acknowledge-before-fsync"
    assert hunted["seed"] is not None


def test_the_document_names_every_bug() -> None:
    page = document.PAGE.read_text()
    assert page == document.with_bugs(page, BUGS), "tests/simulation/run.py --document-bugs writes the table anew"


def test_the_document_names_every_workload() -> None:
    table = document.PAGE.read_text().partition("## Workloads")[2].partition("\n## ")[0]
    named = {name for row in table.splitlines() for name in re.findall(r"`(\w+)`", row.partition(" | ")[0])}
    assert named >= set(WORKLOADS)


@pytest.mark.parametrize("hazard", HAZARDS)
def test_every_hazard_is_planted(hazard: str) -> None:
    assert HAZARDS[hazard] in BUGS
