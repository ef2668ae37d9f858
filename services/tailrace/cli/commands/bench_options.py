"""What the commands of `tailrace bench` share: options, notes on standard error, the output."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from tailrace.cli.commands.arguments import picture
from tailrace.cli.output import note, print_json, print_table

if TYPE_CHECKING:
    from tailrace.cli.bench.result import Row

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object: benchmark, machine, rows.")]
PlotOption = Annotated[
    Path | None,
    typer.Option("--plot", metavar="FILE", help="Draw the rows into a PNG.", callback=picture, show_default=False),
]
ServerOption = Annotated[
    str | None,
    typer.Option(
        "--controller",
        metavar="URI",
        help="Address of a running server.",
        show_default="a new one in a temporary folder",
    ),
]
FolderOption = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Parent of the new server's temporary folder.", show_default="the system's"),
]
Tier2Option = Annotated[
    str,
    typer.Option(metavar="URL", help="Tier 2 of the new server. A folder in it is kept.", show_default="its folder"),
]
S3EndpointOption = Annotated[
    str | None, typer.Option(metavar="URL", help="Endpoint of an S3-compatible object store.", show_default=False)
]
LogOption = Annotated[
    Literal["file", "object"],
    typer.Option("--log", help="Logs of the new server: in files, or in objects of --tier2."),
]
SecondsOption = Annotated[float, typer.Option(min=0.1, help="How long each case is measured.")]
PeerOption = Annotated[
    str | None,
    typer.Option(metavar="URI", help="Controller of a Pravega to measure in the same run.", show_default=False),
]
WarmUpOption = Annotated[float, typer.Option("--warm-up", min=0.0, help="Seconds before each measurement.")]


def note_case(case: str) -> None:
    """Say on standard error what is measured."""
    note(f"measuring {case}")


def report_rows(benchmark: str, rows: Sequence[Row], json: bool, plot: Path | None) -> None:
    """Print the rows as a table or as one JSON object; then draw them, so that a failure does not lose them."""
    from tailrace.cli.bench.result import result

    content = result(benchmark, rows)
    if json:
        print_json(content)
    else:
        _print(benchmark, content["machine"], rows)
    if plot is not None:
        from tailrace.cli.bench.plot import plot as draw

        draw(benchmark, content["machine"], rows, plot)


def _print(benchmark: str, machine: dict[str, Any], rows: Sequence[Row]) -> None:
    title = f"{benchmark}: {machine['cpu']}, {machine['cores']} cores, {machine['python']}, {machine['kernel']}"
    cells = [(row["system"], row["case"], row["metric"], f"{row['value']:,.6g}", row["unit"]) for row in rows]
    print_table(title, ("system", "case", "metric", "value", "unit"), cells)
