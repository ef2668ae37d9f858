"""Figures that tests measured: a table at the end of the run, and a file that documents are written from."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Figure:
    """One measured value, and the bound that it was held against."""

    what: str
    of: str
    """Which client or process."""
    value: float
    unit: str
    bound: float | None = None

    @property
    def holds(self) -> bool:
        """Whether it is within its bound."""
        return self.bound is None or self.value < self.bound


@dataclass
class Figures:
    """All of a run."""

    file: Path
    found: list[Figure] = field(default_factory=list)

    def add(self, what: str, of: str, value: float, unit: str, bound: float | None = None) -> Figure:
        """Note a figure; write it to the file at once, so that a run that breaks off leaves its figures.

        A figure of the same name replaces the one of an earlier run.
        """
        figure = Figure(what, of, round(value, 3), unit, bound)
        self.found.append(figure)
        older = json.loads(self.file.read_text()) if self.file.exists() else []
        kept = [item for item in older if (item["what"], item["of"]) != (what, of)]
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.file.write_text(json.dumps([*kept, asdict(figure)], indent=1) + "\n")
        return figure

    def table(self) -> list[str]:
        """Lines to print."""
        rows = [
            (
                figure.what,
                figure.of,
                f"{figure.value:.2f}",
                "" if figure.bound is None else f"< {figure.bound:.3g}",
                figure.unit,
                "" if figure.holds else "EXCEEDED",
            )
            for figure in self.found
        ]
        heads = ("what", "of", "measured", "bound", "unit", "")
        widths = [max(len(row[column]) for row in (heads, *rows)) for column in range(len(heads))]
        return [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in (heads, *rows)
        ]
