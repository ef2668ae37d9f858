"""The table of planted bugs in docs/simulation.md, which is written from the registry."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from sim.bugs.registry import PlantedBug

PAGE = Path(__file__).resolve().parents[3] / "docs/simulation.md"
BEGIN, END = "<!-- planted bugs: begin -->\n", "<!-- planted bugs: end -->\n"


def with_bugs(page: str, bugs: Mapping[str, PlantedBug]) -> str:
    """The page with its table as the registry has it. Raises ValueError when the page has no place for it."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError("the page has no place for the table of planted bugs")
    by_module: dict[str, list[PlantedBug]] = {}
    for planted in bugs.values():
        by_module.setdefault(planted.plant.__module__.rpartition(".")[2], []).append(planted)
    rows = ["| name | what is wrong | in `bugs/` |", "| --- | --- | --- |"]
    for module in sorted(by_module):
        rows += [f"| `{planted.name}` | {planted.summary} | `{module}.py` |" for planted in by_module[module]]
    return before + begin + "\n".join(rows) + "\n" + end + after
