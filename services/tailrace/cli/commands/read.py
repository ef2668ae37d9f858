"""``tailrace read``: print events."""

from __future__ import annotations

import base64
import json as jsonlib
import sys
from typing import Annotated

import typer

from tailrace.cli.commands.arguments import StreamArgument, duration_ms, position
from tailrace.cli.session import connected, run
from tailrace.cli.settings import SETTINGS, ControllerOption
from tailrace.cli.values import HEAD


def read(
    stream: StreamArgument,
    controller: ControllerOption = None,
    group: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Reader group to join; created if missing. It keeps its position.",
            show_default="a temporary one",
        ),
    ] = None,
    start: Annotated[
        str | None,
        typer.Option("--from", metavar="head|tail|CUT", help="Start position of a new group.", show_default="head"),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Continue with events that are written later.")
    ] = False,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Stop after this number of events.", show_default="all")
    ] = None,
    idle: Annotated[
        str, typer.Option(metavar="DURATION", help="With --group: stop when no event arrives for this time.")
    ] = "3s",
    json: Annotated[
        bool,
        typer.Option("--json", help="Print one JSON object per line: segment, offset and event (or event_base64)."),
    ] = False,
) -> None:
    """Print events, one per line: the present ones, or with --follow also later ones."""
    begin = position(start) if start is not None else None
    idle_ms = duration_ms(idle)
    write = _write_json if json else _write_plain

    async def work() -> None:
        from tailrace.cli.reading import read_with_group, read_with_temporary_group

        async with connected(SETTINGS.choose_controller(controller)) as client:
            if group is None:
                await read_with_temporary_group(client, stream, begin or HEAD, write, follow=follow, limit=limit)
            else:
                await read_with_group(client, stream, group, begin, write, follow=follow, limit=limit, idle_ms=idle_ms)

    run(work())


def _write_plain(segment: str, offset: int, events: list[bytes]) -> None:
    del segment, offset
    sys.stdout.buffer.write(b"\n".join(events) + b"\n")
    sys.stdout.buffer.flush()


def _write_json(segment: str, offset: int, events: list[bytes]) -> None:
    lines = []
    for event in events:
        lines.append(jsonlib.dumps({"segment": segment, "offset": offset, **_content(event)}))
        offset += 8 + len(event)
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()


def _content(event: bytes) -> dict[str, str]:
    try:
        return {"event": event.decode()}
    except UnicodeDecodeError:
        return {"event_base64": base64.b64encode(event).decode()}
