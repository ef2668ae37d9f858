"""``tailrace read``: print events."""

from __future__ import annotations

import base64
import json as jsonlib
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
    begin = position(start, "--from") if start is not None else None
    idle_ms = duration_ms(idle, "--idle")
    text_of = _json_lines if json else _plain_lines

    async def work() -> None:
        from tailrace.cli.printing import printer
        from tailrace.cli.reading import read_with_group, read_with_temporary_group

        with printer() as output:

            async def write(segment: str, offset: int, events: list[bytes]) -> None:
                await output.write(text_of(segment, offset, events))

            async with connected(SETTINGS.choose_controller(controller)) as client:
                if group is None:
                    await read_with_temporary_group(client, stream, begin or HEAD, write, follow=follow, limit=limit)
                else:
                    await read_with_group(
                        client, stream, group, begin, write, follow=follow, limit=limit, idle_ms=idle_ms
                    )

    run(work())


def _plain_lines(segment: str, offset: int, events: list[bytes]) -> bytes:
    del segment, offset
    return b"\n".join(events) + b"\n"


def _json_lines(segment: str, offset: int, events: list[bytes]) -> bytes:
    lines = []
    for event in events:
        lines.append(jsonlib.dumps({"segment": segment, "offset": offset, **_content(event)}) + "\n")
        offset += 8 + len(event)
    return "".join(lines).encode()


def _content(event: bytes) -> dict[str, str]:
    try:
        return {"event": event.decode()}
    except UnicodeDecodeError:
        return {"event_base64": base64.b64encode(event).decode()}
