"""What the documents point to exists: files, targets of the Makefile, tests behind guarantees."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer.main

from tailrace.cli.main import app
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
        command: Any = typer.main.get_command(app)
        names = ["tailrace"]
        while hasattr(command, "commands"):
            names.append(arguments.pop(0))
            command = command.commands[names[-1]]
        given = [CUT if "$" in argument or argument == "x" else argument for argument in arguments]
        command.make_context(" ".join(names), given)


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


def test_every_guarantee_names_tests_that_exist() -> None:
    rows = [line for line in (REPOSITORY / "docs/guarantees.md").read_text().splitlines() if line.startswith("| ")][2:]
    for row in rows:
        places = re.findall(r"`([^`]+)`", row.rsplit("|", 2)[1])
        assert places, f"no test behind: {row}"
        for place in places:
            file, _, name = place.partition("::")
            path = REPOSITORY / "tests" / file
            assert path.exists(), f"{place} does not exist"
            assert not name or re.search(rf"\b{re.escape(name)}\b", path.read_text()), f"{place} does not exist"
