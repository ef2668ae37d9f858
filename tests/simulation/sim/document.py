"""The list of planted bugs in docs/simulation.md, written from the registry and from what was measured."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path

from sim.bugs.registry import Measured, PlantedBug

PAGE = Path(__file__).resolve().parents[3] / "docs/simulation.md"
BEGIN, END = "<!-- planted bugs: begin -->\n", "<!-- planted bugs: end -->\n"
LINE_MAX = 140


def with_bugs(page: str, bugs: Mapping[str, PlantedBug], known: Mapping[str, Measured]) -> str:
    """Return the page with its list as the registry has it. Raises ValueError when the page has no place for it."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError("the page has no place for the list of planted bugs")
    by_module: dict[str, list[PlantedBug]] = {}
    for planted in bugs.values():
        by_module.setdefault(planted.plant.__module__.rpartition(".")[2], []).append(planted)
    lines = []
    for module in sorted(by_module):
        lines += [f"### `bugs/{module}.py`", ""]
        for planted in by_module[module]:
            lines += _item(planted, known.get(planted.name, Measured()))
        lines.append("")
    return before + begin + "\n".join(lines) + end + after


def _item(planted: PlantedBug, known: Measured) -> list[str]:
    """What is wrong, what it breaks, who must say so, and how easily seeds that know nothing of it find it."""
    where = f"Found by `{planted.checker}`"
    plain = f"{known.found} of {known.of} plain seeds" if known.of else "not measured"
    if planted.is_directed and not known.found:
        plain = f"only its directed workload ({plain})"
    elif not known.found and known.seed is not None:
        plain = f"{plain}; seed {known.seed} finds it"
    text = f"- `{planted.name}`: {planted.summary} Breaks: {planted.breaks} {where}: {plain}."
    return textwrap.wrap(text, LINE_MAX, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def measured_text(known: Mapping[str, Measured]) -> str:
    """Return the file that keeps what was measured."""
    lines = [
        "# How each planted bug was found. `tests/simulation/run.py --measure-bugs` writes it; hunts try `seed` first.",
        "# `seconds`: time on a processor of that seed with and without the bug.",
        "# The unmodified workload found the bug in `found` of `of` seeds.",
    ]
    for name, value in known.items():
        lines += ["", f"[{name}]"]
        lines += [] if value.seed is None else [f"seed = {value.seed}"]
        lines += [f"seconds = {value.seconds}", f"found = {value.found}", f"of = {value.of}"]
    return "\n".join(lines) + "\n"
