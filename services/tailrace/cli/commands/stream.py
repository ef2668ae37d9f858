"""``tailrace stream``: create, list, show, update, scale, seal, truncate and delete streams, and draw their history."""

from __future__ import annotations

import datetime
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from tailrace.cli.commands import arguments
from tailrace.cli.commands.arguments import ScopeArgument, StreamArgument
from tailrace.cli.commands.policies import (
    RATE_UNITS,
    EventRateOption,
    FactorOption,
    KbRateOption,
    MinimumOption,
    RetentionSizeOption,
    RetentionTimeOption,
    RolloverOption,
    ScalingOptions,
    SegmentsOption,
    bytes_fields,
    changed_retention,
    changed_tags,
    config_fields,
    retention_fields,
    retention_policy,
    scaled_fields,
)
from tailrace.cli.output import print_fields, print_json, print_line, print_table, progress_bar
from tailrace.cli.session import connected, run
from tailrace.cli.settings import SETTINGS, ControllerOption, JsonOption
from tailrace.cli.values import HEAD
from tailrace.client.model import StreamName
from tailrace.common.errors import AlreadyExistsError, NoSuchSegmentError, NoSuchStreamError
from tailrace.common.names import check_scope_name, check_stream_name
from tailrace.common.stream_cut import StreamCut
from tailrace.common.stream_policies import ScaleType, ScalingPolicy, StreamConfig
from tailrace.common.task_groups import gather_bounded

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tailrace.client.context import ClientContext
    from tailrace.client.control.history import StreamHistory
    from tailrace.client.model import SegmentRange
    from tailrace.client.reader.batch import SegmentSlice

app = typer.Typer(help="Create, list, show, update, scale, seal, truncate and delete streams.", no_args_is_help=True)


@app.command()
def create(
    stream: StreamArgument,
    controller: ControllerOption = None,
    segments: SegmentsOption = None,
    event_rate: EventRateOption = None,
    kb_rate: KbRateOption = None,
    factor: FactorOption = None,
    minimum: MinimumOption = None,
    retention_time: RetentionTimeOption = None,
    retention_size: RetentionSizeOption = None,
    rollover_size: RolloverOption = None,
    tag: Annotated[list[str] | None, typer.Option(help="A tag; may be repeated.", show_default=False)] = None,
    exist_ok: Annotated[bool, typer.Option("--exist-ok", help="Succeed if the stream exists.")] = False,
) -> None:
    """Create a stream. Default: one segment; factor 2 for a rate policy."""
    check_scope_name(stream.scope)
    check_stream_name(stream.stream)
    options = ScalingOptions(segments=segments, event_rate=event_rate, kb_rate=kb_rate, factor=factor, minimum=minimum)
    config = StreamConfig(
        scaling=options.policy(),
        retention=retention_policy(retention_time, retention_size),
        tags=tuple(tag or ()),
        rollover_bytes=rollover_size or 0,
    )

    async def work() -> None:
        async with connected(SETTINGS.choose_controller(controller)) as client:
            if not await client.controller.create_stream(stream, config) and not exist_ok:
                raise AlreadyExistsError(f"stream {stream} exists already")

    run(work())


@app.command()
def update(
    stream: StreamArgument,
    controller: ControllerOption = None,
    segments: SegmentsOption = None,
    event_rate: EventRateOption = None,
    kb_rate: KbRateOption = None,
    factor: FactorOption = None,
    minimum: MinimumOption = None,
    retention_time: RetentionTimeOption = None,
    retention_size: RetentionSizeOption = None,
    no_retention: Annotated[bool, typer.Option("--no-retention", help="Keep everything.")] = False,
    rollover_size: RolloverOption = None,
    add_tag: Annotated[list[str] | None, typer.Option(help="A new tag; may be repeated.", show_default=False)] = None,
    remove_tag: Annotated[
        list[str] | None, typer.Option(help="A tag to remove; may be repeated.", show_default=False)
    ] = None,
) -> None:
    """Change policies, tags or rollover size, nothing else. A policy that needs other segments scales the stream."""
    options = ScalingOptions(segments=segments, event_rate=event_rate, kb_rate=kb_rate, factor=factor, minimum=minimum)
    others = (retention_time, retention_size, rollover_size, add_tag, remove_tag)
    if not no_retention and options == ScalingOptions() and all(option in (None, []) for option in others):
        raise typer.BadParameter("no change was given: set a policy, a tag or the rollover size")

    def changed(present: StreamConfig) -> StreamConfig:
        return msgspec.structs.replace(
            present,
            scaling=options.changed(present.scaling),
            retention=changed_retention(present.retention, retention_time, retention_size, no_retention),
            tags=changed_tags(present.tags, add_tag or (), remove_tag or ()),
            rollover_bytes=present.rollover_bytes if rollover_size is None else rollover_size,
        )

    changed(StreamConfig(ScalingPolicy.by_events(1, 2, 1)))  # refuse contradictory options before the first call

    async def work() -> None:
        async with connected(SETTINGS.choose_controller(controller)) as client:
            present = await client.controller.stream_config(stream)
            scales = options != ScalingOptions()
            if not scales and present.scaling.kind is ScaleType.FIXED:
                # It may have been scaled since: any update to its former number would undo that.
                count = len(await client.controller.current_segments(stream))
                if count:
                    present = msgspec.structs.replace(present, scaling=ScalingPolicy.fixed(count))
            wanted = changed(present)
            if wanted != present or scales:
                await client.controller.update_stream(stream, wanted)

    with progress_bar(f"updating {stream}", None):
        run(work())


@app.command("list")
def list_streams(
    scope: ScopeArgument,
    controller: ControllerOption = None,
    tag: Annotated[str | None, typer.Option(help="Only streams with this tag.", show_default=False)] = None,
    json: JsonOption = False,
    everything: Annotated[bool, typer.Option("--all", help="Include internal streams.")] = False,
) -> None:
    """List the streams of a scope, one per line, as SCOPE/STREAM."""
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

    async def work() -> tuple[dict[str, Any], dict[str, str]]:
        async with connected(SETTINGS.choose_controller(controller)) as client:
            return await _describe(client, stream)

    found, text = run(work())
    if json:
        print_json(found)
        return
    policies = {name: value for name, value in text.items() if value}
    print_fields(str(stream), {"state": found["state"], **policies, "head": found["head"], "tail": found["tail"]})
    if not found["segments"]:
        return
    print_table("active segments", *segment_table(found["segments"], RATE_UNITS.get(found["scaling"]["type"])))


def segment_table(
    segments: Sequence[Mapping[str, Any]], rate_unit: str | None
) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
    """Return columns and rows of a table of segments, with their rates if there is a unit for these."""
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
        for segment in segments
    ]
    if rate_unit is None:
        return columns, rows
    rates = [_rate_text(segment["rate_per_s"]) for segment in segments]
    return (*columns, rate_unit), [(*row, rate) for row, rate in zip(rows, rates, strict=True)]


def _rate_text(rate_per_s: float | None) -> str:
    return "unknown" if rate_per_s is None else f"{rate_per_s:,.1f}"


async def _describe(client: ClientContext, stream: StreamName) -> tuple[dict[str, Any], dict[str, str]]:
    """Return a stream as JSON values, and its policies as text."""
    from tailrace.client.stream_manager import StreamManager
    from tailrace.common.names import segment_epoch, segment_number

    found = await StreamManager(client).info(stream)
    state = await client.controller.describe_stream(stream, sizes=True)
    rates = {} if state.rates is None else state.rates.per_s
    rows = []
    for identifier, key_range in found.segments:
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
                "rate_per_s": rates.get(identifier),
            }
        )
    machine, text = config_fields(found.config)
    last_scale, scale_text = scaled_fields(state)
    lengths, lengths_text = bytes_fields(state)
    text.update(scale_text | lengths_text)
    if found.config.retention is not None:
        retained, retained_text = retention_fields(state)
        machine["retention"].update(retained)
        text.update(retained_text)
    described = {
        "scope": stream.scope,
        "stream": stream.stream,
        "state": "active" if found.segments else "sealed",
        **machine,
        "last_scale": last_scale,
        **lengths,
        "head": found.head.to_text(),
        "tail": found.tail.to_text(),
        "segments": rows,
    }
    return described, text


@app.command()
def history(
    stream: StreamArgument,
    controller: ControllerOption = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            "--plot",
            metavar="FILE",
            help="Draw the segments over time into a PNG.",
            callback=arguments.picture,
            show_default=False,
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Show all scales since the stream's creation; as a picture also its head and what subscribers have read."""
    from tailrace.cli import history as histories

    async def work() -> tuple[StreamHistory, dict[int, int]]:
        async with connected(SETTINGS.choose_controller(controller)) as client:
            found = await client.controller.stream_history(stream)
            return found, await _lengths(client, stream, found)

    found, lengths = run(work())
    segments = histories.segment_spans(found, lengths, round(time.time() * 1000))
    if json:
        print_json(histories.as_json(str(stream), found, segments))
    else:
        _print_history(stream, found)
    if plot is not None:
        from tailrace.cli import history_plot

        history_plot.plot(str(stream), found, segments, plot)


def _print_history(stream: StreamName, found: StreamHistory) -> None:
    rows = [
        (
            epoch.epoch,
            f"{datetime.datetime.fromtimestamp(epoch.created_ms / 1000, datetime.UTC):%Y-%m-%d %H:%M:%S}",
            len(epoch.segments),
            epoch.splits,
            epoch.merges,
            "" if epoch.reference == epoch.epoch else f"epoch {epoch.reference} again, for a commit",
        )
        for epoch in found.epochs
    ]
    print_table(f"{stream}, {found.state}", ("epoch", "since (UTC)", "segments", "splits", "merges", ""), rows)


@app.command()
def cuts(stream: StreamArgument, controller: ControllerOption = None, json: JsonOption = False) -> None:
    """List the stream cuts that retention recorded, oldest first: what the stream had at a time lies before one."""

    async def work() -> list[dict[str, Any]]:
        async with connected(SETTINGS.choose_controller(controller)) as client:
            return [
                {
                    "recorded_ms": cut.recorded_ms,
                    "cut": StreamCut(stream.scope, stream.stream, dict(cut.positions)).to_text(),
                    "positions": {str(identifier): offset for identifier, offset in cut.positions.items()},
                }
                for cut in await client.controller.stream_cuts(stream)
            ]

    found = run(work())
    if json:
        print_json(found)
        return
    for each in found:
        recorded = datetime.datetime.fromtimestamp(each["recorded_ms"] / 1000, datetime.UTC)
        print_line(f"{recorded.isoformat(timespec='milliseconds')} {each['cut']}")


async def _lengths(client: ClientContext, stream: StreamName, found: StreamHistory) -> dict[int, int]:
    """Return the lengths of the segments that no scale has sealed."""

    async def length_of(identifier: int) -> tuple[int, int] | None:
        try:
            return identifier, (await client.segments.segment_info(stream.segment(identifier))).length
        except NoSuchSegmentError:
            return None  # sealed and truncated since

    unknown = [identifier for identifier in found.epochs[-1].segments if identifier not in found.sealed_sizes]
    return dict(each for each in await gather_bounded(unknown, length_of) if each is not None)


@app.command()
def scale(
    stream: StreamArgument,
    controller: ControllerOption = None,
    segments: Annotated[
        int | None,
        typer.Option(
            min=1, help="Number of equal segments; lowers the policy's minimum if needed.", show_default=False
        ),
    ] = None,
    split: Annotated[
        list[str] | None,
        typer.Option(metavar="ID:N", help="Split a segment into N; may be repeated.", show_default=False),
    ] = None,
    merge: Annotated[
        list[str] | None,
        typer.Option(metavar="ID,ID", help="Merge neighbours; may be repeated.", show_default=False),
    ] = None,
    wait: Annotated[str, typer.Option(metavar="DURATION", help="How long to wait for the scale.")] = "5m",
    json: JsonOption = False,
) -> None:
    """Replace segments while clients write and read the stream, and wait until the scale is complete."""
    from tailrace.cli.scaling import scale_stream
    from tailrace.cli.segments import parse_merge, parse_split

    if (segments is None) == (not split and not merge):
        raise typer.BadParameter("give either --segments N, or --split ID:N and --merge ID,ID")
    for text in split or ():
        arguments.checked(parse_split, text, "--split")
    for text in merge or ():
        arguments.checked(parse_merge, text, "--merge")
    deadline_s = arguments.duration_ms(wait, "--wait") / 1000

    async def work() -> list[SegmentRange]:
        async with connected(SETTINGS.choose_controller(controller)) as client:
            return await scale_stream(
                client, stream, count=segments, splits=split or [], merges=merge or [], deadline_s=deadline_s
            )

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
    """Seal a stream: it takes no more events and stays readable."""

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
            metavar="CUT",
            help="New start of the stream: tail, a stream cut in the Java client's text form, or SEGMENT:OFFSET, "
            "where an event must begin.",
        ),
    ],
    controller: ControllerOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what the truncation would give up, and truncate nothing.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Truncate a stream: delete everything before a stream cut."""
    from tailrace.cli.truncation import parse_place

    place = arguments.checked(parse_place, cut, "CUT") or arguments.position(cut, "CUT")
    if place == HEAD:
        raise typer.BadParameter("truncating at head deletes nothing: give tail or a stream cut")

    async def work() -> tuple[StreamCut, list[SegmentSlice]]:
        from tailrace.cli.positions import check_cut_of
        from tailrace.cli.truncation import SegmentPlace, cut_at, given_up
        from tailrace.client.stream_manager import StreamManager

        async with connected(SETTINGS.choose_controller(controller)) as client:
            if isinstance(place, SegmentPlace):
                target = await cut_at(client, stream, place)
            else:
                target = place if isinstance(place, StreamCut) else await StreamManager(client).tail(stream)
            check_cut_of(target, stream)
            pieces = await given_up(client, stream, target) if dry_run or json else []
            if not dry_run:
                await client.controller.truncate_stream(stream, target.positions)
            return target, pieces

    target, pieces = run(work())
    if json:
        print_json(_given_up(stream, target, pieces, dry_run=dry_run))
    elif dry_run:
        found = _given_up(stream, target, pieces, dry_run=True)
        rows = [(each["segment"], each["from"], each["to"], each["bytes"]) for each in found["segments"]]
        title = f"{stream}: {found['bytes']:,} bytes would be given up"
        print_table(title, ("segment", "from", "to", "bytes"), rows)
        print_line(f"cut: {found['cut']}")
        print_line("dry run: nothing was truncated")


def _given_up(stream: StreamName, cut: StreamCut, pieces: Sequence[SegmentSlice], *, dry_run: bool) -> dict[str, Any]:
    """Return what a truncation gives up as JSON values."""
    return {
        "stream": str(stream),
        "cut": cut.to_text(),
        "bytes": sum(piece.end - piece.start for piece in pieces),
        "segments": [
            {"segment": piece.segment, "from": piece.start, "to": piece.end, "bytes": piece.end - piece.start}
            for piece in pieces
        ],
        "dry_run": dry_run,
    }


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
