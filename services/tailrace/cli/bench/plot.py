"""Draw results as a PNG."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tailrace.cli.bench.result import Row
from tailrace.common.errors import UnsupportedError


def plot(benchmark: str, machine: dict[str, Any], rows: Sequence[Row], file: Path) -> None:
    """Write a PNG: one panel of bars per unit.

    Raises:
        UnsupportedError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UnsupportedError("--plot needs matplotlib: install tailrace[dev]") from error
    units = list(dict.fromkeys(row["unit"] for row in rows))
    figure = Figure(figsize=(10, sum(_height(rows, unit) for unit in units)), layout="constrained")
    panels = figure.subplots(
        len(units), 1, squeeze=False, gridspec_kw={"height_ratios": [_height(rows, unit) for unit in units]}
    )
    for panel, unit in zip(itertools.chain.from_iterable(panels), units, strict=True):
        chosen = [row for row in rows if row["unit"] == unit]
        labels = [f"{row['case']} · {row['metric']}" for row in chosen]
        several = len({row["system"] for row in chosen}) > 1
        if several:
            labels = [f"{row['system']}: {label}" for row, label in zip(chosen, labels, strict=True)]
        bars = panel.barh(range(len(chosen)), [row["value"] for row in chosen], color="#2f6f9f")
        panel.bar_label(bars, labels=[f"{row['value']:,.4g}" for row in chosen], padding=3, fontsize=8)
        panel.set_yticks(range(len(chosen)), labels, fontsize=8)
        panel.invert_yaxis()
        panel.margins(x=0.12)
        panel.set_xlabel(unit)
    figure.suptitle(f"tailrace bench {benchmark}: {machine['cpu']}, {machine['cores']} cores", fontsize=10)
    figure.savefig(file, format="png", dpi=120)


def _height(rows: Sequence[Row], unit: str) -> float:
    return 0.8 + 0.28 * sum(row["unit"] == unit for row in rows)
