"""``tailrace stream``: create, list, look at, scale, seal, truncate and delete streams."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tailrace.cli.commands import arguments
from tailrace.cli.commands.arguments import ScopeArgument, StreamArgument
from tailrace.cli.commands.policies import config_fields, retention_policy, scaling_policy
from tailrace.cli.output import print_fields, print_json, print_line, print_table, progress_bar
from tailrace.cli.session import connected, run
from tailrace.cli.settings import SETTINGS, ControllerOption, JsonOption
from tailrace.cli.values import HEAD
from tailrace.client.model import StreamConfig, StreamName
from tailrace.common.errors import AlreadyExistsError, NoSuchStreamError
from tailrace.common.names import check_scope_name, check_stream_name
from tailrace.common.streamcut import StreamCut

if TYPE_CHECKING:
    from tailrace.client.context import ClientContext
    from tailrace.client.model import SegmentRange

app = typer.Typer(help="Create, list, look at, scale, seal, truncate and delete streams.", no_args_is_help=True)


@app.command()
def create(
    stream: StreamArgument,
    controller: ControllerOption = None,
    segments: Annotated[int | None, typer.Option(min=1, help="A fixed number of segments.", show_default="1")] = None,
    event_rate: Annotated[
        int | None, typer.Option(min=1, help="Scale by events per second and segment.", show_default=False)
    ] = None,
    kb_rate: Annotated[
        int | None, typer.Option(min=1, help="Scale by kilobytes per second and segment.", show_default=False)
    ] = None,
    factor: Annotated[
        int | None, typer.Option(min=2, help="Into how many segments one splits.", show_default="2")
    ] = None,
    minimum: Annotated[int | None, typer.Option("--min", min=1, help="Never fewer segments.", show_default="1")] = None,
    retention_time: Annotated[
        str | None, typer.Option(metavar="MIN[:MAX]", help="Keep by age, for example 1d:7d.", show_default=False)
    ] = None,
    retention_size: Annotated[
        str | None, typer.Option(metavar="MIN[:MAX]", help="Keep by size, for example 1GiB:10GiB.", show_default=False)
    ] = None,
    tag: Annotated[list[str] | None, typer.Option(help="A tag; may be repeated.", show_default=False)] = None,
    exist_ok: Annotated[bool, typer.Option("--exist-ok", help="A stream that exists is no error.")] = False,
) -> None:
    """Create a stream."""
    check_scope_name(stream.scope)
    check_stream_name(stream.stream)
    config = StreamConfig(
        scaling=scaling_policy(segments, event_rate, kb_rate, factor, minimum),
        retention=retention_policy(retention_time, retention_size),
        tags=tuple(tag or ()),
    )

    async def work() -> None:
        async with connected(SETTINGS.choose_controller(controller)) as client:
            if not await client.controller.create_stream(stream, config) and not exist_ok:
                raise AlreadyExistsError(f"stream {stream} exists already")

    run(work())


@app.command("list")
def list_streams(
    scope: ScopeArgument,
    controller: ControllerOption = None,
    tag: Annotated[str | None, typer.Option(help="Only streams with this tag.", show_default=False)] = None,
    json: JsonOption = False,
    everything: Annotated[bool, typer.Option("--all", help="Internal streams too.")] = False,
) -> None:
    """List the streams of a scope, one a line, as SCOPE/STREAM."""
    check_scope_name(scope, internal=True)

    async def work() -> list[StreamName]:
        async with connected(SETTINGS.choose_controller(controller)) as client:
            return sorted([name async for name in client.controller.list_streams(scope, tag=tag)])

    found = [str(name) for name in run(work()) if everything or not name.stream.startswith("_")]
    if json:
        print_json(found)
    else:
        for name in found:
            print_line(name)


@app.command()
def info(stream: StreamArgument, controller: ControllerOption = None, json: JsonOption = False) -> None:
    """Show configuration, segments, and the cuts at head and tail."""

    async def work() -> dict[str, Any]:
        async with connected(SETTINGS.choose_controller(controller)) as client:
            return await _describe(client, stream)

    found = run(work())
    if json:
        print_json(found)
        return
    head, tail = found["head"], found["tail"]
    fields = {"state": found["state"], **{k: v for k, v in found["text"].items() if v}, "head": head, "tail": tail}
    print_fields(str(stream), fields)
    columns = ("segment", "number", "epoch", "keys", "start", "length")
    rows = [
        (
            str(segment["id"]),
            segment["number"],
            segment["epoch"],
            f"{segment['low']:.6g} – {segment['high']:.6g}",
            segment["start_offset"],
            segment["length"],
        )
        for segment in found["segments"]
    ]
    print_table("active segments", columns, rows)


async def _describe(client: ClientContext, stream: StreamName) -> dict[str, Any]:
    from tailrace.cli.positions import head_cut, tail_cut
    from tailrace.common.names import segment_epoch, segment_number

    config = await client.controller.stream_config(stream)
    segments = await client.controller.current_segments(stream)
    head = await head_cut(client, stream)
    tail = await tail_cut(client, stream)
    rows = []
    for identifier, key_range in segments:
        properties = await client.segments.segment_info(stream.segment(identifier))
        rows.append(
            {
                "id": identifier,
                "number": segment_number(identifier),
                "epoch": segment_epoch(identifier),
                "low": key_range.low,
                "high": key_range.high,
                "start_offset": properties.start_offset,
                "length": properties.length,
            }
        )
    machine, text = config_fields(config)
    return {
        "scope": stream.scope,
        "stream": stream.stream,
        "state": "active" if segments else "sealed",
        **machine,
        "head": head.to_text(),
        "tail": tail.to_text(),
        "segments": rows,
        "text": text,
    }


@app.command()
def scale(
    stream: StreamArgument,
    controller: ControllerOption = None,
    segments: Annotated[
        int | None,
        typer.Option(min=1, help="So many equal segments; lowers the policy's minimum if needed.", show_default=False),
    ] = None,
    split: Annotated[
        list[str] | None,
        typer.Option(metavar="ID:N", help="Split a segment into N; may be repeated.", show_default=False),
    ] = None,
    merge: Annotated[
        list[str] | None,
        typer.Option(metavar="ID,ID", help="Merge neighbours; may be repeated.", show_default=False),
    ] = None,
    wait: Annotated[str, typer.Option(metavar="DURATION", help="How long to wait until it is done.")] = "5m",
    json: JsonOption = False,
) -> None:
    """Replace segments by others, while the stream is written and read; waits until it is done."""
    from tailrace.cli.scaling import scale_stream

    if (segments is None) == (not split and not merge):
        raise typer.BadParameter("give either --segments N, or --split ID:N and --merge ID,ID")
    deadline_s = arguments.duration_ms(wait) / 1000

    async def work() -> list[SegmentRange]:
        async with connected(SETTINGS.choose_controller(controller)) as client:
            return await scale_stream(client, stream, segments, split or [], merge or [], deadline_s)

    with progress_bar(f"scaling {stream}", None):
        active = run(work())
    if json:
        print_json([{"id": identifier, "low": low, "high": high} for identifier, (low, high) in active])
    else:
        rows = [(str(identifier), f"{low:.6g} – {high:.6g}") for identifier, (low, high) in active]
        noun = "segment" if len(rows) == 1 else "segments"
        print_table(f"{stream}: {len(rows)} active {noun}", ("segment", "keys"), rows)


@app.command()
def seal(stream: StreamArgument, controller: ControllerOption = None) -> None:
    """Seal a stream: nothing can be written any more, all can be read."""

    async def work() -> None:
        async with connected(SETTINGS.choose_controller(controller)) as client:
            await client.controller.seal_stream(stream)

    run(work())


@app.command()
def truncate(
    stream: StreamArgument,
    cut: Annotated[
        str,
        typer.Argument(
            metavar="CUT", help="Drop what lies before: tail, or a stream cut in the Java client's text form."
        ),
    ],
    controller: ControllerOption = None,
) -> None:
    """Drop everything before a stream cut."""
    place = arguments.position(cut)
    if place == HEAD:
        raise typer.BadParameter("nothing lies before head")

    async def work() -> None:
        from tailrace.cli.positions import check_cut_of, tail_cut

        async with connected(SETTINGS.choose_controller(controller)) as client:
            target = await tail_cut(client, stream) if not isinstance(place, StreamCut) else place
            check_cut_of(target, stream)
            await client.controller.truncate_stream(stream, target.positions)

    run(work())


@app.command()
def delete(
    stream: StreamArgument,
    controller: ControllerOption = None,
    force: Annotated[bool, typer.Option("--force", help="Seal it first.")] = False,
) -> None:
    """Delete a sealed stream."""

    async def work() -> None:
        async with connected(SETTINGS.choose_controller(controller)) as client:
            if force and await client.controller.stream_exists(stream):
                await client.controller.seal_stream(stream)
            if not await client.controller.delete_stream(stream):
                raise NoSuchStreamError(f"stream {stream} does not exist")

    run(work())
