"""``python -m tailrace.cli.demo``: the command behind ``make run``."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
)
from rich.text import Text

from tailrace.cli.demo.flights import Flight, cache_folder, fetch_archive, read_events
from tailrace.cli.demo.report import how_to_connect, summary
from tailrace.cli.demo.run import READERS, run_demo
from tailrace.cli.demo.server import ServerProcess
from tailrace.cli.output import one_line
from tailrace.cli.session import cancel_on
from tailrace.common.errors import StartError
from tailrace.common.logs import configure_notes


class CountColumn(ProgressColumn):
    """Completed and total count; empty for a line that only names the present step."""

    def render(self, task: Task) -> Text:
        """Return the text of one line."""
        return Text() if task.total is None else Text(f"{int(task.completed):,} of {int(task.total):,}")


class RichDisplay:
    """Progress bars: events acknowledged, and read by each reader."""

    def __init__(self, progress: Progress, total: int) -> None:
        self._progress = progress
        self._stage = progress.add_task("", total=None)
        self._written = progress.add_task("acknowledged", total=total)
        self._read = [progress.add_task(f"reader {number + 1}", total=total) for number in range(READERS)]

    def stage(self, text: str) -> None:
        """Show the present step."""
        self._progress.update(self._stage, description=text)

    def progress(self, acknowledged: int, read: Sequence[int]) -> None:
        """Show the events acknowledged, and read by each reader."""
        self._progress.update(self._written, completed=acknowledged)
        for task, count in zip(self._read, read, strict=True):
            self._progress.update(task, completed=count)


def _load(console: Console, limit: int) -> list[Flight]:
    with console.status("downloading and reading the flights"):
        events = read_events(fetch_archive(cache_folder()))
    return events[:limit] if limit else events


async def _demo(
    console: Console,
    data: Path,
    events: Sequence[Flight],
    *,
    ends: bool,
    as_json: bool,
    ended: list[signal.Signals],
) -> int:
    """Run the demo; a signal that ends it is appended to `ended`."""
    server = ServerProcess(data)
    cancel_on((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), ended)
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        CountColumn(),
        TimeElapsedColumn(),
    )
    try:
        with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
            figures = await run_demo(events, server, data, RichDisplay(progress, len(events)))
        if as_json:
            sys.stdout.write(json.dumps(figures.as_json()) + "\n")
            sys.stdout.flush()
        else:
            console.print(summary(figures))
        if not ends and server.endpoints is not None:
            text = how_to_connect(server.endpoints, figures.stream)
            console.print(text, markup=False, highlight=False, soft_wrap=True)
            await _serve_on(server)
        return 0 if figures.verdict.right else 1
    finally:
        await server.stop()


async def _serve_on(server: ServerProcess) -> None:
    """Wait until a signal ends the demo. Raises StartError when the server ends by itself."""
    try:
        code = await server.wait()
    except asyncio.CancelledError:
        return
    raise StartError(f"the server ended with exit code {code}; see {server.log_file}")


def demo(
    data: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the server; created if missing.")] = Path(
        ".tailrace"
    ),
    ends: Annotated[
        bool, typer.Option("--exit", help="Exit after the check instead of keeping the server running.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as one JSON object.")] = False,
    limit: Annotated[int, typer.Option("--events", min=0, help="Number of events to stream.", show_default="all")] = 0,
) -> None:
    """Stream a real data set through a server that is killed once midway, and check every event."""
    configure_notes()  # else the client's warnings go to standard output, before the figures
    console = Console(stderr=as_json)
    ended: list[signal.Signals] = []
    try:
        code = asyncio.run(_demo(console, data, _load(console, limit), ends=ends, as_json=as_json, ended=ended))
    except asyncio.CancelledError:
        raise typer.Exit(128 + ended[0]) from None
    except Exception as error:
        sys.stderr.write(f"tailrace: {one_line(error)}\n")
        raise typer.Exit(1) from error
    raise typer.Exit(code)


if __name__ == "__main__":
    typer.run(demo)
