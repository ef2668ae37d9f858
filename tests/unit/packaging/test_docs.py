"""What the documents point to exists: files, targets of the Makefile, tests behind guarantees."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer.main

from tailrace.cli.main import application
from tailrace.common.stream_cut import StreamCut

REPOSITORY = Path(__file__).resolve().parents[3]
DOCUMENTS = sorted([*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").rglob("*.md")])
CUT = StreamCut("demo", "sensors", {0: 0}).to_text()
TARGETS = set(re.findall(r"^([a-z][a-z0-9-]*):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_links_and_make_targets_exist(document: Path) -> None:
    text = document.read_text()
    links = [target for target in re.findall(r"\]\(([^)#]+)", text) if "://" not in target]
    assert [target for target in links if not (document.parent / target).exists()] == []
    commands = re.findall(r"(?:`|^ {4})make ([a-z][a-z0-9-]*)", text, re.MULTILINE)
    assert [target for target in commands if target not in TARGETS] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_paths_exist(document: Path) -> None:
    paths = re.findall(
        r"`((?:services|docs|scripts|tests|examples|benchmarks|requirements)/[\w./-]*)`", document.read_text()
    )
    assert [path for path in paths if not (REPOSITORY / path).exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_commands_are_understood(document: Path) -> None:
    """Every command of `tailrace` that stands in a block exists and takes the options that it is shown with."""
    text = document.read_text().replace("\\\n", "")
    for line in re.findall(r"^ {4}(?:.*\| )?(?:\S*/)?tailrace ((?:[a-z]|--).*)$", text, re.MULTILINE):
        if "…" in line or "COMMAND" in line:
            continue
        arguments = shlex.split(re.sub(r"\$\([^()]*\)", "x", line), comments=True)
        command: Any = typer.main.get_command(application())
        names = ["tailrace"]
        while hasattr(command, "commands"):
            names.append(arguments.pop(0))
            command = command.commands[names[-1]]
        given = [CUT if "$" in argument or argument == "x" else argument for argument in arguments]
        command.make_context(" ".join(names), given)


def test_all_definitions_are_removed_with_everything() -> None:
    page = (REPOSITORY / "docs/kubernetes.md").read_text()
    (line,) = re.findall(r"^ {4}kubectl delete crd (.*)$", page, re.MULTILINE)
    definitions = [
        re.findall(r"^ {2}name: (\S+)$", path.read_text(), re.MULTILINE)
        for path in sorted((REPOSITORY / "charts/tailrace/crds").glob("*.yaml"))
    ]
    assert sorted(line.split()) == sorted(name for names in definitions for name in names)


NOTES = REPOSITORY / "charts/tailrace/templates/NOTES.txt"


@pytest.mark.parametrize("document", [*DOCUMENTS, NOTES], ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_no_upgrade_takes_the_old_values_alone(document: Path) -> None:
    """Without the new defaults an upgrade fails where the chart has a value that the release did not have."""
    assert re.findall(r"--reuse-values\b", document.read_text()) == []


def test_every_format_page_is_in_the_index() -> None:
    index = (REPOSITORY / "docs/formats.md").read_text()
    pages = sorted(path.name for path in (REPOSITORY / "docs/formats").glob("*.md"))
    assert [page for page in pages if f"(formats/{page})" not in index] == []


def test_every_decision_is_in_the_index() -> None:
    index = (REPOSITORY / "docs/adr/README.md").read_text()
    pages = sorted(path.name for path in (REPOSITORY / "docs/adr").glob("0*.md"))
    assert [page for page in pages if f"({page})" not in index] == []
    numbers = [int(page[:4]) for page in pages]
    assert numbers == list(range(1, len(numbers) + 1))


# The name of an event is the first argument of the call that logs it; a comment may stand before it.
LOGGED = re.compile(r'\.(?:debug|info|warning|error|exception|critical)\(\s*(?:#.*\s*)?"([^"]+)"')
IN_THE_LOG = re.compile(
    r"`([a-z][a-z0-9_ ]*)`(?:, `([a-z][a-z0-9_ ]*)`)? in (?:the|its) log"
    r"|\blogs? (?:has|says|line) `([a-z][a-z0-9_ ]*)`"
    r"|\blook for `([a-z][a-z0-9_ ]*)`(?: and `([a-z][a-z0-9_ ]*)`)?"
    r"|\bin the log as `([a-z][a-z0-9_ ]*)`"
)


def test_every_event_of_the_log_that_a_page_names_is_logged() -> None:
    sources = [path for room in ("services", "operator") for path in (REPOSITORY / room).rglob("*.py")]
    logged = {name for path in sources for name in LOGGED.findall(path.read_text())}
    observe = (REPOSITORY / "docs/operations/observe.md").read_text()
    table = observe.partition("## Logs\n")[2].partition("\n## ")[0]
    rows = [row.split(" | ")[0] for row in table.splitlines() if row.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`([^`]+)`", row)}
    assert len(named) >= 20
    for path in (REPOSITORY / "docs").rglob("*.md"):
        text = " ".join(path.read_text().split())
        named |= {name for match in IN_THE_LOG.findall(text) for name in match if name}
    assert {"object_not_reclaimed", "snapshot_not_stored", "segment_of_a_lost_life", "tier2_unavailable"} <= named
    assert sorted(named - logged) == []


REAL_FOLDERS = ("crash/", "cli/", "compat/", "contract/", "e2e/", "spark/")
# Unit tests that listen on real sockets, run processes or use a folder on disk.
REAL_UNITS = "unit/segmentstore/server/"
REAL_WORDS = re.compile(r"\btmp_path\b|\bsubprocess\b|\bopen_connection\(")
REASON = re.compile(r"(?:pure|model only): \w.{10,}")


def has_real_parts(place: str) -> bool:
    """Whether a file below tests/ runs processes, sockets or a disk."""
    file = place.partition("::")[0]
    if file.startswith((*REAL_FOLDERS, REAL_UNITS)):
        return True
    path = REPOSITORY / "tests" / file
    return file.startswith("unit/") and path.is_file() and REAL_WORDS.search(path.read_text()) is not None


def mistakes_of(row: str) -> list[str]:
    """What is wrong with a row of docs/guarantees.md: guarantee, tests with real parts or a reason, other tests."""
    cells = [cell.strip() for cell in row.strip().strip("|").split(" | ")]
    if len(cells) != 3:
        return [f"{len(cells)} columns"]
    _, real, other = cells
    places = {cell: re.findall(r"`((?:\w+/)[^`]+)`", cell) for cell in (real, other)}
    found = []
    for place in (*places[real], *places[other]):
        file, _, name = place.partition("::")
        path = REPOSITORY / "tests" / file
        if not path.exists() or (name and not re.search(rf"\b{re.escape(name)}\b", path.read_text())):
            found.append(f"{place} does not exist")
    if REASON.match(real):
        return found if places[other] else [*found, "no test"]
    if not places[real]:
        found.append("neither a test with real parts nor the reason why there is none")
    return found + [f"{place} has no real parts" for place in places[real] if not has_real_parts(place)]


def test_every_guarantee_names_a_test_with_real_parts_or_the_reason() -> None:
    rows = [line for line in (REPOSITORY / "docs/guarantees.md").read_text().splitlines() if line.startswith("| ")][2:]
    assert len(rows) > 50
    assert {row: mistakes for row in rows if (mistakes := mistakes_of(row))} == {}


@pytest.mark.parametrize(
    ("row", "mistake"),
    [
        ("| a promise | `crash/test_kill.py` | – |", ""),
        ("| a promise | pure: only computes numbers | `unit/cluster/test_placement.py` |", ""),
        ("| a promise | `unit/cluster/test_placement.py` | – |", "has no real parts"),
        ("| a promise | `simulation/test_workloads.py` | – |", "has no real parts"),
        ("| a promise | – | `crash/test_kill.py` |", "neither a test with real parts nor"),
        ("| a promise | model only: | `unit/cluster/test_placement.py` |", "neither a test with real parts nor"),
        ("| a promise | pure: only computes numbers | – |", "no test"),
        ("| a promise | `crash/test_kill.py::test_none` | – |", "does not exist"),
        ("| a promise | `crash/test_kill.py` |", "2 columns"),
    ],
)
def test_rows_of_guarantees_without_real_parts_are_found(row: str, mistake: str) -> None:
    found = mistakes_of(row)
    assert mistake in found[0] if mistake else found == []
