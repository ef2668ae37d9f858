"""``tailrace group``: reader groups, their readers, positions, unread bytes (docs/cli.md#reader-groups)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tailrace.cli.commands import arguments
from tailrace.cli.commands.arguments import ScopeArgument
from tailrace.cli.output import print_fields, print_json, print_line, print_table, progress_bar
from tailrace.cli.session import connected, run
from tailrace.cli.settings import SETTINGS, ControllerOption, JsonOption
from tailrace.common.names import check_scope_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tailrace.client.context import ClientContext

app = typer.Typer(help="List, show, reset and delete reader groups; declare readers offline.", no_args_is_help=True)

GroupArgument = Annotated[str, typer.Argument(metavar="GROUP", help="The reader group.", show_default=False)]


@app.command("list")
def list_groups(scope: ScopeArgument, controller: ControllerOption = None, json: JsonOption = False) -> None:
    """List the reader groups of a scope, one per line: those of this client and of Java's."""
    check_scope_name(scope, internal=True)

    async def work() -> list[str]:
        from tailrace.client.group.reader_group import ReaderGroupManager

        async with connected(SETTINGS.choose_controller(controller)) as client:
            return sorted(await ReaderGroupManager(client, scope).list())

    found = run(work())
    if json:
        print_json(found)
    else:
        for name in found:
            print_line(name)


@app.command()
def info(
    scope: ScopeArgument, group: GroupArgument, controller: ControllerOption = None, json: JsonOption = False
) -> None:
    """Show readers with their segments, positions, and bytes that are not read yet."""
    found = run(_describe(SETTINGS.choose_controller(controller), scope, group))
    if json:
        print_json(found)
        return
    shown = ("id", "generation", "retention", "unread_bytes")
    fields = {name.replace("_", " "): found[name] for name in shown}
    fields["oldest unread event"] = _waited(found)
    print_fields(f"{scope}/{group}", {name: "–" if value is None else value for name, value in fields.items()})
    columns = ("stream", "unread bytes", "oldest unread", "position", "last checkpoint", "published for retention")
    names = ("stream", "unread_bytes", "waited", "position", "last_checkpoint", "published")
    streams = [{**stream, "waited": _waited(stream)} for stream in found["streams"]]
    rows = [["–" if stream[name] is None else stream[name] for name in names] for stream in streams]
    print_table("streams", columns, rows)
    if not found["readers"]:
        print_line("no reader is online")
    for reader in found["readers"]:
        silence = f"dead after {reader['dead_after_s']:g} s of silence" if reader["dead_after_s"] else "no heartbeats"
        title = f"reader {reader['reader']}: {reader['unread_bytes']:,} bytes not read, {silence}"
        print_table(title, ("segment", "offset"), list(reader["segments"].items()))
    if found["free"]:
        print_table("segments that no reader has", ("segment", "offset"), list(found["free"].items()))
    if found["waiting"]:
        print_line(f"segments that wait for their predecessors: {', '.join(found['waiting'])}")


def _waited(found: Mapping[str, Any]) -> str | None:
    """Return how long the oldest unread event has waited, for people; None: nothing is unread, or it is not known."""
    least_s, most_s = found["lag_least_s"], found["lag_most_s"]
    if not found["unread_bytes"] or (least_s is None and most_s is None):
        return None
    if least_s is None:
        return f"at most {most_s:,.0f} s ago"
    return f"at least {least_s:,.0f} s ago" if most_s is None else f"{least_s:,.0f} to {most_s:,.0f} s ago"


async def _describe(controller: str, scope: str, group: str) -> dict[str, Any]:
    """Return a group as JSON values."""
    from tailrace.client.group.report import find_view, report
    from tailrace.common.names import check_entity_name

    check_entity_name("reader group", group)
    async with connected(controller) as client:
        view = await find_view(client, check_scope_name(scope, internal=True), group)
        found = await report(client, f"{scope}/{group}", view)
    return {
        "scope": scope,
        "group": group,
        "id": str(view.group_id) if view.group_id else None,
        "generation": view.generation,
        "retention": view.retention.name.lower(),
        "unread_bytes": found.unread_bytes,
        "lag_least_s": found.lag.least_s,
        "lag_most_s": found.lag.most_s,
        "streams": [
            {
                "stream": str(stream.stream),
                "unread_bytes": stream.unread_bytes,
                "lag_least_s": stream.lag.least_s,
                "lag_most_s": stream.lag.most_s,
                "position": stream.position.to_text() if stream.position else None,
                "last_checkpoint": stream.checkpoint.to_text() if stream.checkpoint else None,
                "published": stream.published.to_text() if stream.published else None,
            }
            for stream in found.streams
        ],
        "readers": [
            {
                "reader": reader.reader,
                "segments": dict(reader.segments),
                "unread_bytes": reader.unread_bytes,
                "dead_after_s": reader.dead_after_s,
            }
            for reader in found.readers
        ],
        "free": dict(found.free),
        "waiting": found.waiting,
    }


@app.command()
def offline(
    scope: ScopeArgument,
    group: GroupArgument,
    reader: Annotated[str, typer.Argument(metavar="READER", help="The reader.", show_default=False)],
    controller: ControllerOption = None,
) -> None:
    """Declare a reader offline: others go on at its last checkpoint. Only for a reader that has ended."""

    async def work() -> None:
        from tailrace.common.errors import NotFoundError

        async with connected(SETTINGS.choose_controller(controller)) as client:
            opened = await _open(client, scope, group)
            if reader not in await opened.online_readers():
                raise NotFoundError(f"reader {reader} of reader group {scope}/{group} is not online")
            await opened.reader_offline(reader)

    run(work())


@app.command()
def reset(
    scope: ScopeArgument,
    group: GroupArgument,
    controller: ControllerOption = None,
    to: Annotated[
        list[str] | None,
        typer.Option(
            metavar="head|tail|CUT",
            help="Where to go on: head or tail of all streams, or a cut of one; may be repeated for several cuts.",
            show_default="the last checkpoint",
        ),
    ] = None,
) -> None:
    """Let a group go on elsewhere. Its readers end with an error and must be started again."""
    places = [arguments.position(text, "--to") for text in to or []]

    async def work() -> None:
        from tailrace.cli.groups import reset_group

        async with connected(SETTINGS.choose_controller(controller)) as client:
            await reset_group(client, await _open(client, scope, group), places)

    with progress_bar(f"resetting {scope}/{group}", None):
        run(work())


@app.command()
def delete(scope: ScopeArgument, group: GroupArgument, controller: ControllerOption = None) -> None:
    """Delete a group with its positions."""

    async def work() -> None:
        from tailrace.client.group.reader_group import ReaderGroupManager

        async with connected(SETTINGS.choose_controller(controller)) as client:
            await ReaderGroupManager(client, scope).delete(group)

    run(work())


async def _open(client: ClientContext, scope: str, group: str) -> Any:
    from tailrace.client.group.reader_group import ReaderGroupManager
    from tailrace.common.names import check_entity_name

    check_entity_name("reader group", group)
    return await ReaderGroupManager(client, scope).open(group)
