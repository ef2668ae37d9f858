"""The registry of planted bugs, and what `make simulate` prints and answers."""

from __future__ import annotations

import datetime
import json
import re
import tomllib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import run
from sim import document, hunting
from sim.bugs import BUGS
from sim.bugs.registry import PER_DAY, Plant, PlantedBug, Workload, bug, measured, of_day
from sim.catalogue import RARE_FAULTS, WORKLOADS, workloads_of
from sim.faults import ENABLED_IN_SEEDS_MIN, missing
from sim.hunting import PRODUCT, Bounds, Notice, checker_of, finds, hunt, hunt_all, notice
from sim.report import console, hunted_lines, seeds_tables
from sim.seeds import Totals
from sim.violations import Violation, require
from sim.workloads.log import LogModel, LogWorkload
from tailrace.log.file import FileLog

THIS = Path(__file__)
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
    """Nothing changes.

    Breaks: nothing.
    """


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


def a_bug(
    workload: Workload = LogWorkload,
    plant: Plant = changes_nothing,
    words: str = "three is no number",
    unmodified: Workload = LogWorkload,
) -> PlantedBug:
    """A planted bug that this file reports."""
    return PlantedBug("a-bug", "It is.", "all.", workload, plant, THIS.name, words, unmodified)


@pytest.fixture
def checkers_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """This file counts as a checker."""
    monkeypatch.setattr(hunting, "SIM", THIS.parent)


@pytest.fixture
def broken_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """The only workload there is, under the name `log`."""
    monkeypatch.setattr(run, "WORKLOADS", {"log": BrokenLog})
    monkeypatch.setitem(WORKLOADS, "log", BrokenLog)


def test_a_hunt_finds_a_bug_and_ends_there() -> None:
    hunted = hunt(BUGS["acknowledge-before-fsync"])
    assert hunted.found
    assert hunted.seeds == (hunted.seed or 0) + 1
    assert hunted.checker == "workloads/log.py"
    assert "was acknowledged, recovered only below" in hunted.said


def test_a_hunt_finds_nothing_where_there_is_nothing() -> None:
    hunted = hunt(a_bug(), Bounds(seeds=5))
    assert (hunted.found, hunted.seeds, hunted.said, hunted.others) == (False, 5, "", [])


def test_what_a_bug_changed_is_as_before_after_its_hunt() -> None:
    hunt(BUGS["acknowledge-before-fsync"])
    for seed in range(3):
        LogWorkload(seed).run()


@pytest.mark.usefixtures("checkers_here")
def test_a_hunt_needs_the_words_of_its_bug() -> None:
    assert hunt(a_bug(plant=breaks_three), Bounds(seeds=4)).found
    other = hunt(a_bug(plant=breaks_three, words="four is no number"), Bounds(seeds=4))
    assert not other.found
    assert other.others == [f"2 times {THIS.name}: Violation: three is no number"]
    assert f"  does not count: 2 times {THIS.name}: Violation: three is no number" in hunted_lines(other)


def test_a_hunt_needs_the_checker_of_its_bug() -> None:
    planted = a_bug(plant=breaks_three)  # raised in this file, which is no checker here
    assert not hunt(planted, Bounds(seeds=1)).found
    assert not finds(planted, Notice("workloads/log.py", "Violation: three is no number"))
    assert not finds(planted, None)
    assert finds(planted, Notice(THIS.name, "Violation: three\nis no number three is no number"))


def test_an_error_of_the_product_is_no_find(monkeypatch: pytest.MonkeyPatch) -> None:
    def plant(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(FileLog, "check_space", lambda self, length: 1 // 0)

    noticed = notice(a_bug(plant=plant), LogWorkload, 1)
    assert noticed is not None
    assert noticed.checker == PRODUCT
    assert "ZeroDivisionError" in noticed.said


@pytest.mark.parametrize(
    ("raises", "checker"),
    [
        (lambda: require(False, "no"), PRODUCT),  # this file is no part of the simulator
        (lambda: LogModel(truncated=0).check(1, []), "workloads/log.py"),
        (lambda: FileLog.check_space(None, 1), PRODUCT),  # type: ignore[arg-type]
    ],
    ids=["elsewhere", "a checker", "the product"],
)
def test_who_raised_an_error(raises: Callable[[], object], checker: str) -> None:
    with pytest.raises((Violation, AttributeError)) as raised:
        raises()
    assert checker_of(raised.value) == checker


@pytest.mark.usefixtures("checkers_here")
def test_a_seed_that_fails_without_the_bug_proves_nothing() -> None:
    assert not hunt(a_bug(BrokenLog), Bounds(seeds=4)).found
    assert hunt(a_bug(plant=breaks_three), Bounds(first=1, seeds=4)).seed == 3


@pytest.mark.usefixtures("checkers_here")
def test_a_hunt_begins_with_the_seed_that_found_the_bug_before() -> None:
    hunted = hunt(a_bug(plant=breaks_three), Bounds(hint=6))
    assert (hunted.seed, hunted.seeds) == (6, 1)
    stale = hunt(a_bug(plant=breaks_three), Bounds(first=1, hint=7))
    assert (stale.seed, stale.seeds) == (3, 4)


@pytest.mark.usefixtures("checkers_here")
def test_a_hunt_counts_plain_seeds() -> None:
    hunted = hunt(a_bug(BrokenLog, breaks_three), Bounds(seeds=1, unmodified=7))
    assert (hunted.found, hunted.unmodified_found, hunted.unmodified_of) == (False, 3, 7)
    assert "  the unmodified workload finds it in 3 of 7 seeds" in hunted_lines(hunted)
    few = hunt(a_bug(plant=breaks_three), Bounds(seeds=1, unmodified=10_000, unmodified_seconds=0.1))
    assert 0 < few.unmodified_of < 10_000


def test_a_hunt_ends_with_its_time() -> None:
    hunted = hunt(a_bug(), Bounds(seeds=10_000, seconds=0.2))
    assert not hunted.found
    assert hunted.seeds < 10_000


def test_a_seed_that_does_not_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    class Endless(LogWorkload):
        def run(self) -> None:
            with self.world:
                while True:
                    pass

    monkeypatch.setattr(hunting, "SEED_SECONDS_MAX", 0.1)
    noticed = notice(a_bug(), Endless, 0)
    assert noticed == Notice("hunting.py", "no end within 0.1 s on a processor")


def test_every_bug_names_a_checker_that_exists_and_words() -> None:
    for planted in BUGS.values():
        assert any((root / planted.checker).is_file() for root in (hunting.SIM, hunting.SUPPORT)), planted.name
        assert planted.checker not in ("loop.py", "world.py", "hunting.py"), planted.name
        assert len(re.sub(r"\W", "", planted.words)) >= 6, planted.name
        assert not re.search(planted.words, ""), planted.name
        assert planted.unmodified in WORKLOADS.values(), planted.name


def test_every_bug_was_measured_and_found() -> None:
    known = measured()
    assert list(known) == list(BUGS), "tests/simulation/run.py --measure-bugs measures them"
    assert [name for name, found in known.items() if found.seed is None] == []
    assert [name for name, found in known.items() if not found.of] == []


@pytest.mark.parametrize(
    ("name", "words"),
    [("bug", "no name"), ("A-bug", "no name"), ("a-bug-", "no name"), ("acknowledge-before-fsync", "two planted")],
)
def test_names_of_bugs(name: str, words: str) -> None:
    before = dict(BUGS)
    with pytest.raises(ValueError, match=words):
        bug(name, LogWorkload, checker="log.py", words="word")(changes_nothing)
    assert before == BUGS


def test_what_a_bug_must_say(monkeypatch: pytest.MonkeyPatch) -> None:
    def planted(text: str, checker: str = "log.py", words: str = "word") -> None:
        def plant(patch: pytest.MonkeyPatch) -> None:
            """"""

        plant.__doc__ = text
        bug("a-bug", LogWorkload, checker=checker, words=words)(plant)

    for text in ("", "What it is.", "Breaks: a guarantee."):
        with pytest.raises(ValueError, match="what it is and what it breaks"):
            planted(text)
    for checker, words in (("", "word"), ("log.py", "")):
        with pytest.raises(ValueError, match="no checker or no words"):
            planted("What it is.\n\nBreaks: a guarantee.", checker, words)
    assert "a-bug" not in BUGS


def test_hunts_of_several_processes() -> None:
    reported: list[str] = []
    names = ["damage-served", "acknowledge-before-fsync", "directory-not-synced"]
    bounds = {name: Bounds(hint=measured()[name].seed) for name in names}
    hunts = hunt_all(bounds, 2, lambda hunted: reported.append(hunted.name))
    assert [hunted.name for hunted in hunts] == names
    assert all(hunted.found for hunted in hunts)
    assert sorted(reported) == sorted(names)


def test_a_bug_that_cannot_be_planted_is_no_find(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def plant(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(LogWorkload, "no_such_name", None)

    monkeypatch.setitem(BUGS, "a-bug", a_bug(plant=plant))
    (hunted,) = hunt_all({"a-bug": Bounds(seeds=5)}, 1, lambda hunted: None)
    assert not hunted.found
    assert "no_such_name" in hunted.said
    assert "Traceback" in capsys.readouterr().err


def test_each_bug_has_its_turn() -> None:
    day = datetime.date(2026, 11, 21)
    for count in (2, 10, 11, 91):
        costs = [(number % 7 + 0.5, f"bug-{number}") for number in range(count)]
        days = [of_day(day + datetime.timedelta(days=number), costs) for number in range(-(-count // PER_DAY))]
        assert all(0 < len(chosen) <= PER_DAY for chosen in days)
        assert sorted(name for chosen in days for name in chosen) == sorted(name for _, name in costs)
        spent = [sum(seconds for seconds, name in costs if name in chosen) for chosen in days]
        assert max(spent) - min(spent) <= 7.5, "cheap and dear ones on each day"
    costs = [(1.0, name) for name in BUGS]
    assert of_day(day, costs) == of_day(day, reversed(costs))


def test_each_workload_has_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    day = datetime.date(2026, 11, 21)
    chosen = [workloads_of(day + datetime.timedelta(days=number)) for number in range(2)]
    assert sorted(name for names in chosen for name in names) == sorted(WORKLOADS)
    ran: list[tuple[str, ...]] = []

    def seeds(names: list[str], options: object) -> int:
        ran.append(tuple(names))
        return 0

    monkeypatch.setattr(run, "_seeds", seeds)
    assert run.main(["--workloads-of", day.isoformat()]) == 0
    assert ran == [chosen[0]]


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


def test_a_run_that_is_interrupted(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "run_many", interrupted)
    assert run.main(["--workload", "log", "--seeds", "2"]) == run.ENDED
    assert "Traceback" not in capsys.readouterr().err


def test_faults_are_printed_whole_however_wide_the_terminal_is(
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
        (["--bug", "acknowledge-before-fsync", "--first", "1", "--seconds", "0.0001"], 1),
        (["--bug", "acknowledge-before-fsync", "--seed", "6"], 0),
        (["--bug", "acknowledge-before-fsync", "--seed", "1"], 1),
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
def test_a_failing_seed_prints_how_to_replay_and_keep_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert run.main(["--seeds", "4"]) == 1
    printed = capsys.readouterr().out
    assert "VIOLATION in workload log, seed 3: Violation: three is no number" in printed
    assert "make simulate WORKLOAD=log SEED=3" in printed
    kept = printed[printed.rindex("[[seed]]") :].partition("\n\n")[0]
    lines = [line.strip() for line in kept.splitlines()[:4]]
    assert tomllib.loads("\n".join(lines)) == {"seed": [{"workload": "log", "seed": 3, "reason": "…"}]}
    assert "4 seeds, " in printed
    assert " kinds, 2 violations\n1 processes used " in printed


@pytest.mark.usefixtures("broken_log")
def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    def printed(*arguments: str) -> dict[str, Any]:
        run.main([*arguments, "--json"])
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        return found

    seeds = printed("--seeds", "4")
    assert (seeds["seeds"], seeds["traces"]) == (4, [])
    assert [found["seed"] for found in seeds["violations"]] == [0, 3]
    assert seeds["faults"] == seeds["workloads"]["log"]["faults"]
    (replayed,) = printed("--seed", "5")["traces"]
    assert replayed == {"workload": "log", "seed": 5, "trace": run.run_seed("log", 5).trace}
    (hunted,) = printed("--bug", "acknowledge-before-fsync")["bugs"]
    assert hunted["name"] == "acknowledge-before-fsync"
    assert hunted["seed"] is not None


def test_the_document_names_every_bug() -> None:
    page = document.PAGE.read_text()
    assert page == document.with_bugs(page, BUGS, measured()), "tests/simulation/run.py --document-bugs writes the list"
    assert all(f"`{name}`" in page for name in BUGS)


def test_the_document_names_every_workload() -> None:
    table = document.PAGE.read_text().partition("## Workloads")[2].partition("\n## ")[0]
    named = {name for row in table.splitlines() for name in re.findall(r"`(\w+)`", row.partition(" | ")[0])}
    assert named >= set(WORKLOADS)


@pytest.mark.parametrize("hazard", HAZARDS)
def test_every_hazard_is_planted(hazard: str) -> None:
    assert HAZARDS[hazard] in BUGS


# ---- faults that are turned on and do not happen


def test_a_fault_that_is_on_and_never_happens_is_named() -> None:
    enabled = {"log": {"sync error": 5, "slow disk": 2}, "server": {"sync error": ENABLED_IN_SEEDS_MIN, "slow disk": 3}}
    happened = {"log": {"sync error": 3}, "server": {"slow network": 9}}
    nowhere = "slow disk was on in 5 seeds of log, server, and never happened"
    assert missing(enabled, happened, []) == [
        nowhere,
        f"sync error was on in {ENABLED_IN_SEEDS_MIN} seeds of server, and did not happen there",
    ]
    assert missing(enabled, happened, [("server", "sync error"), ("server", "slow disk")]) == [nowhere]
    assert missing({"log": {"sync error": 1}}, {"log": {}}, []) == []
    assert missing({"log": {"sync error": 9}, "server": {}}, {"log": {}, "server": {"sync error": 1}}, []) == [
        "sync error was on in 9 seeds of log, and did not happen there"
    ]


def test_rare_faults_are_of_workloads_that_exist() -> None:
    assert {workload for workload, _ in RARE_FAULTS} <= set(WORKLOADS)


@pytest.mark.usefixtures("broken_log")
def test_a_run_fails_when_a_fault_does_not_happen(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def never(self: object, fault: str) -> None:
        """Count nothing."""

    arguments = ["--seconds", "0", "--first", "1", "--every-fault", "2"]
    assert run.main(arguments) == 0
    assert "\n2 seeds, " in capsys.readouterr().out, "the least number, though the time is over"
    monkeypatch.setattr("sim.disk.SimDisk.count", never)
    monkeypatch.setattr("sim.faults.ENABLED_IN_SEEDS_MIN", 2)
    monkeypatch.setattr(BrokenLog, "__init__", lambda self, seed: _with_sync_errors(self, seed))
    assert run.main(arguments) == 1
    assert (
        "FAULT MISSING in the first 2 seeds: sync error was on in 2 seeds of log, and never happened"
        in capsys.readouterr().out
    )


def _with_sync_errors(workload: BrokenLog, seed: int) -> None:
    LogWorkload.__init__(workload, seed)
    workload.world.disk.sync_error_chance = 0.01


def test_a_run_without_a_seed_fails() -> None:
    assert run.main(["--workload", "log", "--seconds", "-1"]) == 1
