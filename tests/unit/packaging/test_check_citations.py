"""The check of citations finds what leads nowhere, and what is laid out too wide."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "scripts"))

import check_citations

DESIGN = """# Design

## Ownership and failover (planned)

### Tier 1: the log

```sh
# no heading
```

## Twice

## Twice
"""
FILES = {
    "docs/design.md",
    "docs/adr/0009-ownership-by-leases.md",
    "docs/operations",
    "docs/operations/run.md",
}


def found(path: str, text: str) -> list[str]:
    """Problems of one text beside the design."""
    return check_citations.dangling({"docs/design.md": DESIGN, path: text}, {*FILES, path})


def test_anchors_are_those_of_github() -> None:
    assert check_citations.anchors(DESIGN) == {
        "design",
        "ownership-and-failover-planned",
        "tier-1-the-log",
        "twice",
        "twice-1",
    }
    assert check_citations.anchors("## `make lint` and [links](x.md), once_more") == {"make-lint-and-links-once_more"}


@pytest.mark.parametrize(
    "text",
    [
        "why (docs/design.md#tier-1-the-log).",
        "the second one: docs/design.md#twice-1, and docs/operations/run.md",
        "docs/adr/0009 and ADR 0009",
        "every page of docs/operations/",
        "https://example.org/docs/missing.md",
    ],
)
def test_citations_that_lead_somewhere(text: str) -> None:
    assert found("services/a.py", text) == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("one line\n(docs/missing.md)", "services/a.py:2: docs/missing.md does not exist"),
        ("(docs/design.md#ownership)", "services/a.py:1: docs/design.md has no heading #ownership"),
        ("(docs/design.md#no-heading)", "services/a.py:1: docs/design.md has no heading #no-heading"),
        ("ADR 0099", "services/a.py:1: docs/adr/0099 does not exist"),
        ("(design §9)", "services/a.py:1: '§9' names what a reader does not have"),
        ('(rest §"Models")', "services/a.py:1: '§\"' names what a reader does not have"),
        ("as the article says", "services/a.py:1: 'the article' names what a reader does not have"),
        ("(attributes article)", "services/a.py:1: 'attributes article' names what a reader does not have"),
        ("see ../shared/design.md", "services/a.py:1: '../shared' names what a reader does not have"),
    ],
)
def test_citations_that_lead_nowhere(text: str, problem: str) -> None:
    assert found("services/a.py", text) == [problem]


@pytest.mark.parametrize(
    ("link", "problems"),
    [
        ("[a](../design.md#twice)", []),
        ("[a](#here)", []),
        ("[a](https://example.org)", []),
        ("[a](../missing.md)", ["docs/operations/page.md:3: docs/missing.md does not exist"]),
        ("[a](../design.md#gone)", ["docs/operations/page.md:3: docs/design.md has no heading #gone"]),
        ("[a](#gone)", ["docs/operations/page.md:3: docs/operations/page.md has no heading #gone"]),
    ],
)
def test_links_of_documents(link: str, problems: list[str]) -> None:
    assert found("docs/operations/page.md", f"# Here\n\n{link}\n") == problems


def test_lines_and_paragraphs_have_bounds() -> None:
    wide = "x" * 141
    assert check_citations.layout("docs/a.md", f"{'x' * 140}\n{wide}\n") == ["docs/a.md:2: 141 characters, at most 140"]
    assert check_citations.layout("docs/a.md", f"| {wide} |") != []
    assert check_citations.layout("docs/guarantees.md", f"| {wide} |") == []
    assert check_citations.layout("docs/guarantees.md", wide) != []


def test_sentences_of_a_paragraph_are_counted() -> None:
    assert check_citations.layout("a.md", "One. Two. Three (e.g. this). Four.\n- Five. Six.\n\nSeven.") == []
    assert check_citations.layout("a.md", "# T\n\nOne. Two.\nThree! Four? Five.\nSix.\n") == [
        "a.md:3: 6 sentences, at most 5"
    ]
    assert check_citations.layout("a.md", "- One. Two. Three.\n  Four. Five. Six.\n- Seven.") == [
        "a.md:1: 6 sentences, at most 5"
    ]
    assert check_citations.layout("a.md", "```\nOne. Two. Three. Four. Five. Six.\n```\n") == []


def test_this_repository_cites_what_exists() -> None:
    texts, existing = check_citations.read_repository(check_citations.REPOSITORY)
    assert len(texts) > 500, "the folders to search are not found"
    assert check_citations.dangling(texts, existing) == []
