"""Follow every citation of the documentation, in code and in documents, to a file and a heading that exist.

A citation is a path below ``docs/``, with the anchor of a heading where one is meant: ``docs/design.md#ownership``. In
Markdown, relative links are followed as well. Lines and paragraphs of documents have bounds, too.
"""

from __future__ import annotations

import posixpath
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

REPOSITORY: Final = Path(__file__).resolve().parents[1]
LINE_MAX_CHARACTERS: Final = 140
PARAGRAPH_MAX_SENTENCES: Final = 5

FOLDERS: Final = (
    *("services", "operator", "tests", "spec", "docs", "charts", "crds", "examples", "scripts", "benchmarks", "images"),
    *(".ci", ".github"),
)
SUFFIXES: Final = frozenset(
    {
        *(".py", ".pyi", ".pyx", ".pxd", ".h", ".java", ".rs", ".js", ".sh", ".proto", ".tla", ".md", ".txt", ".in"),
        *(".toml", ".cfg", ".yaml", ".yml", ".tpl", ".json"),
    }
)
SKIPPED: Final = frozenset({"__pycache__", "build", "node_modules", "target"})
# Rows of these tables name tests and faults that cannot be broken into lines.
WIDE_TABLES: Final = frozenset({"docs/guarantees.md", "docs/simulation.md"})
GENERATED: Final = frozenset({"docs/resources.md"})

_CITATION: Final = re.compile(r"(?<![\w./-])docs/[\w./-]*\w(?:#[\w-]+)?")
_DECISION: Final = re.compile(r"\bADR (\d{4})\b")
_LINK: Final = re.compile(r"\]\(([^)\s]+)\)")
_FENCE: Final = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_HEADING: Final = re.compile(r"^#{1,6} +(.+?) *#*$", re.MULTILINE)
# Section numbers shift, and readers do not have what these name.
_OLD: Final = re.compile(
    r"§ ?[\d\"]|\b(?:the|attributes?|cache|retention) article\b|\bissue(?: \"|: remembered)|\.\./shared|/work/shared",
    re.IGNORECASE,
)
_SENTENCE_END: Final = re.compile(r"[.!?][)\"'*`”]*(?=\s+[A-Z`*\"(\[]|$)")


def anchors(text: str) -> set[str]:
    """Return the anchors that GitHub gives to the headings of a Markdown text."""
    found: set[str] = set()
    for heading in _HEADING.findall(_FENCE.sub("", text)):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        base = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        anchor, count = base, 0
        while anchor in found:
            count += 1
            anchor = f"{base}-{count}"
        found.add(anchor)
    return found


def targets(path: str, text: str) -> Iterator[tuple[int, str]]:
    """Yield (line number, target) of every citation and relative link; a target is relative to the repository."""
    for number, line in enumerate(text.splitlines(), 1):
        for match in _CITATION.finditer(line):
            yield number, match.group()
        for decision in _DECISION.findall(line):
            yield number, f"docs/adr/{decision}"
        if not path.endswith(".md"):
            continue
        for link in _LINK.findall(line):
            if "://" not in link and not link.startswith("mailto:"):
                file, _, anchor = link.partition("#")
                place = posixpath.normpath(posixpath.join(posixpath.dirname(path), file)) if file else path
                yield number, f"{place}#{anchor}" if anchor else place


def dangling(texts: Mapping[str, str], existing: set[str]) -> list[str]:
    """Return a sentence for each citation that leads nowhere or is of a kind that readers cannot follow.

    Args:
        texts: what is searched, by path.
        existing: paths of all files and folders of the repository.
    """
    headings = {path: anchors(text) for path, text in texts.items() if path.endswith(".md")}
    decisions = {path[: len("docs/adr/0000")] for path in existing if re.match(r"docs/adr/\d{4}-", path)}
    problems = []
    for path, text in texts.items():
        for number, target in targets(path, text):
            file, _, anchor = target.partition("#")
            if file not in existing and file not in decisions:
                problems.append(f"{path}:{number}: {file} does not exist")
            elif anchor and anchor not in headings.get(file, set()):
                problems.append(f"{path}:{number}: {file} has no heading #{anchor}")
        for number, line in enumerate(text.splitlines(), 1):
            if match := _OLD.search(line):
                problems.append(f"{path}:{number}: {match.group()!r} names what a reader does not have")
    return problems


def layout(path: str, text: str) -> list[str]:
    """Return a sentence for each line and paragraph of a Markdown text that is too long."""
    problems = []
    paragraph: list[str] = []
    start = 0
    fenced = False
    for number, line in enumerate([*text.splitlines(), ""], 1):
        if len(line) > LINE_MAX_CHARACTERS and not (line.startswith("|") and path in WIDE_TABLES):
            problems.append(f"{path}:{number}: {len(line)} characters, at most {LINE_MAX_CHARACTERS}")
        fenced ^= line.startswith("```")
        begins_item = re.match(r" *(?:[-*] |\d+\. )", line) is not None
        if not line.strip() or begins_item or fenced or line.startswith(("#", "|", "```", "    ")):
            sentences = len(_SENTENCE_END.findall(" ".join(paragraph)))
            if sentences > PARAGRAPH_MAX_SENTENCES:
                problems.append(f"{path}:{start}: {sentences} sentences, at most {PARAGRAPH_MAX_SENTENCES}")
            paragraph, start = ([line.strip()] if begins_item else []), number
        else:
            start = start if paragraph else number
            paragraph.append(line.strip())
    return problems


def read_repository(root: Path) -> tuple[dict[str, str], set[str]]:
    """Return the texts to search, and the paths of all files and folders."""
    texts: dict[str, str] = {}
    existing: set[str] = set()
    for path in [*root.glob("*"), *(file for folder in FOLDERS for file in (root / folder).rglob("*"))]:
        name = path.relative_to(root).as_posix()
        if not SKIPPED.isdisjoint(path.relative_to(root).parts[1:]):
            continue
        existing.add(name)
        if path.is_file() and (path.suffix in SUFFIXES or path.name in {"Makefile", "Dockerfile", "run"}):
            texts[name] = path.read_text(errors="replace")
    # These hold the forms that are refused.
    for name in ("scripts/check_citations.py", "tests/unit/packaging/test_check_citations.py"):
        texts.pop(name, None)
    return texts, existing


def main() -> int:
    """Print every problem and the counts."""
    texts, existing = read_repository(REPOSITORY)
    lost = dangling(texts, existing)
    documents = [path for path in texts if path.endswith(".md") and path not in GENERATED]
    long = [problem for path in documents for problem in layout(path, texts[path])]
    for problem in sorted([*lost, *long]):
        print(problem, file=sys.stderr)
    print(f"dangling citations: {len(lost)}")
    print(f"lines and paragraphs of documents that are too long: {len(long)}")
    return 1 if lost or long else 0


if __name__ == "__main__":
    sys.exit(main())
