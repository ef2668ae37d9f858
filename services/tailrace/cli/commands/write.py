"""``tailrace write``: write lines as events."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tailrace.cli.commands.arguments import StreamArgument
from tailrace.cli.lines import by_key, known_length, read_lines
from tailrace.cli.output import print_json, print_line, progress_bar
from tailrace.cli.session import connected, run
from tailrace.cli.settings import SETTINGS, ControllerOption, JsonOption
from tailrace.cli.values import count_text
from tailrace.client.model import StreamName
from tailrace.common.errors import BadRequestError, SegmentSealedError, StreamSealedError
from tailrace.common.quantities import size_text

if TYPE_CHECKING:
    from tailrace.cli.output import Bar
    from tailrace.client.writer.event_writer import EventWriter


@dataclass(slots=True)
class _Report:
    events: int = 0
    payload_bytes: int = 0
    seconds: float = 0.0


def write(
    stream: StreamArgument,
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="Lines to write.", show_default="standard input")
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(metavar="FIELD", help="Field of JSON lines whose value is the routing key.", show_default=False),
    ] = None,
    controller: ControllerOption = None,
    json: JsonOption = False,
) -> None:
    """Write each line as an event, and wait until all are durable."""
    if file is not None and str(file) == "-":
        file = None
    report = run(_work(SETTINGS.choose_controller(controller), stream, file, key))
    rate = report.events / report.seconds if report.seconds else 0.0
    if json:
        print_json(
            {
                "events": report.events,
                "bytes": report.payload_bytes,
                "seconds": round(report.seconds, 3),
                "events_per_s": round(rate, 1),
            }
        )
    else:
        print_line(
            f"{count_text(report.events, 'event')}, {size_text(report.payload_bytes)} in {report.seconds:.2f} s: "
            f"{rate:,.0f} events/s, {size_text(report.payload_bytes / max(report.seconds, 1e-9))}/s"
        )


async def _work(controller: str, stream: StreamName, file: Path | None, key: str | None) -> _Report:
    from tailrace.client.writer.event_writer import EventWriter

    total = known_length(file)
    report = _Report()
    try:
        async with connected(controller) as client, EventWriter(client, stream) as writer:
            started = time.perf_counter()
            with progress_bar(f"writing to {stream}", total, shown=total is not None) as bar:
                await _write_all(writer, file, key, report, bar)
                await writer.flush()
            report.seconds = time.perf_counter() - started
    except SegmentSealedError as error:
        raise StreamSealedError(f"stream {stream} is sealed") from error
    return report


async def _write_all(writer: EventWriter, file: Path | None, key: str | None, report: _Report, bar: Bar) -> None:
    """Write all lines. Those before an invalid one, or before the input failed, are made durable."""
    next_number = 1
    try:
        async for lines, read_bytes in read_lines(file):
            await _write_lines(writer, lines, next_number, key, report)
            next_number += len(lines)
            bar.advance(read_bytes)
    except BadRequestError as error:
        await writer.flush()
        before = f"the {count_text(report.events, 'event')} before it {'is' if report.events == 1 else 'are'} written"
        raise BadRequestError(f"{error}; {before}") from error


async def _write_lines(
    writer: EventWriter, lines: list[bytes], first_number: int, key: str | None, report: _Report
) -> None:
    """Write lines as events; an event has at least one byte. Raises BadRequestError for a line without a key."""
    groups: list[tuple[str | None, list[bytes]]]
    failure = None
    if key is not None:
        grouped = by_key(lines, key, first_number)
        groups, failure = list(grouped.groups.items()), grouped.error
    else:
        groups = [(None, [line for line in lines if line])]
    for routing_key, events in groups:
        if events:
            await writer.ready()
            writer.write_events(events, routing_key)
            report.events += len(events)
            report.payload_bytes += sum(map(len, events))
    if failure is not None:
        raise failure
