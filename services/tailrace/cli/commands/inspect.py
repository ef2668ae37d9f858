"""``tailrace inspect``: show the contents of a running server, or verify the data of a stopped one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import quote

import typer

from tailrace.cli.output import print_fields, print_json, print_line, print_table
from tailrace.cli.settings import DEFAULT_ADMIN, JsonOption
from tailrace.common import limits
from tailrace.common.errors import DeadlineError, IllegalStateError, NotFoundError, TailraceError, UnavailableError
from tailrace.common.quantities import size_text

app = typer.Typer(help="Show the contents of a running server; verify the data of a stopped one.", no_args_is_help=True)

AdminOption = Annotated[
    str, typer.Option("--admin", envvar="TAILRACE_ADMIN", metavar="URL", help="Admin interface of the server.")
]
SegmentArgument = Annotated[
    str, typer.Argument(metavar="SEGMENT", help="Full name, for example demo/sensors/0.#epoch.0.", show_default=False)
]
LimitOption = Annotated[int | None, typer.Option(min=1, help="Maximum number to show.", show_default="all")]
REQUEST_DEADLINE_S: Final = 30.0


def _get(admin: str, path: str, parameters: dict[str, str | int] | None = None) -> Any:
    import httpx

    url = f"{admin.rstrip('/')}{path}"
    try:
        reply = httpx.get(url, params=parameters, timeout=REQUEST_DEADLINE_S, trust_env=False)
    except httpx.ReadTimeout as error:
        raise DeadlineError(f"the admin interface at {admin} has not answered for {REQUEST_DEADLINE_S:g} s") from error
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise UnavailableError(f"the admin interface at {admin} cannot be reached: {error}") from error
    if reply.is_success:
        return reply.json()
    raise _error(admin, reply.status_code, reply.text)


def _error(admin: str, status: int, text: str) -> TailraceError:
    import json

    try:
        content = json.loads(text)
        reason = str(content.get("error") or content.get("detail") or content)
    except (ValueError, AttributeError):
        reason = text.strip() or f"HTTP status {status}"
    if status == 404 and reason != "Not Found":  # other HTTP servers reply so, for example the REST interface
        return NotFoundError(reason)
    return IllegalStateError(f"the admin interface at {admin} answered {status}: {reason}")


def _pages(
    admin: str,
    path: str,
    parameters: dict[str, str | int],
    key: Callable[[dict[str, Any]], object],
    limit: int | None,
    page_max: int = limits.INSPECT_PAGE_MAX,
) -> Iterator[dict[str, Any]]:
    """Return the items of a paged list; each page continues after the `key` of the last item."""
    left = limit
    after = ""
    while left is None or left > 0:
        size = page_max if left is None else min(left, page_max)
        page = _get(admin, path, {**parameters, "limit": size, **({"after": after} if after else {})})
        yield from page
        if len(page) < size:
            return
        after = str(key(page[-1]))
        left = None if left is None else left - len(page)


@app.command()
def containers(admin: AdminOption = DEFAULT_ADMIN, json: JsonOption = False) -> None:
    """List segment containers: state, epoch, segments, bytes of the log and bytes not yet in Tier 2."""
    found = _get(admin, "/v1/containers")
    if json:
        print_json(found)
        return
    columns = ("id", "state", "epoch", "segments", "log", "not tiered", "to delete", "sequence")
    rows = [
        (
            item["container_id"],
            f"{item['state']}: {item['reason']}" if item["reason"] else item["state"],
            item["epoch"],
            item["segments"],
            size_text(item["log_bytes"]),
            size_text(item["untiered_bytes"]),
            item["pending_deletes"],
            item["last_sequence"],
        )
        for item in found
    ]
    print_table("containers", columns, rows)


@app.command()
def segments(
    admin: AdminOption = DEFAULT_ADMIN,
    prefix: Annotated[str, typer.Option(help="Only names with this prefix, for example demo/.")] = "",
    container: Annotated[
        int | None, typer.Option(min=0, help="Only segments of this container.", show_default="all")
    ] = None,
    limit: LimitOption = None,
    json: JsonOption = False,
) -> None:
    """List segments with their lengths, including internal ones."""
    parameters: dict[str, str | int] = {"prefix": prefix, **({} if container is None else {"container": container})}
    found = list(_pages(admin, "/v1/segments", parameters, itemgetter("name"), limit))
    if json:
        print_json(found)
        return
    columns = ("segment", "container", "kind", "start", "length", "sealed")
    rows = [
        (item["name"], item["container"], _kind(item["kind"]), item["start_offset"], item["length"], item["sealed"])
        for item in found
    ]
    print_table(f"{len(found):,} segments", columns, rows)


def _kind(number: int) -> str:
    from tailrace.segmentstore.api import SegmentKind

    return (SegmentKind(number).name or str(number)).lower().replace("|", ", ")


@app.command()
def attributes(
    segment: SegmentArgument, admin: AdminOption = DEFAULT_ADMIN, limit: LimitOption = None, json: JsonOption = False
) -> None:
    """List the attributes of a segment, for example the last event number of each writer."""
    found = list(_pages(admin, f"/v1/segments/{quote(segment)}/attributes", {}, itemgetter("id"), limit))
    if json:
        print_json(found)
    else:
        rows = [(item["id"], item["value"]) for item in found]
        print_table(f"{len(found):,} attributes of {segment}", ("attribute", "value"), rows)


@app.command()
def chunks(
    segment: SegmentArgument, admin: AdminOption = DEFAULT_ADMIN, limit: LimitOption = None, json: JsonOption = False
) -> None:
    """List the chunks of Tier 2 that hold a segment's bytes, and those that begin with an event for certain."""

    def end(item: dict[str, Any]) -> int:
        return int(item["start_offset"]) + int(item["length_bytes"])

    path = f"/v1/segments/{quote(segment)}/chunks"
    found = list(_pages(admin, path, {}, end, limit, limits.INSPECT_CHUNKS_PAGE_MAX))
    if json:
        print_json(found)
        return
    columns = ("object", "start", "length", "exists", "begins event")
    keys = ("object_key", "start_offset", "length_bytes", "exists", "begins_event")
    rows = [tuple(item.get(key, False) for key in keys) for item in found]
    print_table(f"{len(found):,} chunks of {segment}", columns, rows)


@app.command()
def streams(
    admin: AdminOption = DEFAULT_ADMIN,
    prefix: Annotated[str, typer.Option(help="Only streams with this prefix, for example demo/.")] = "",
    limit: LimitOption = None,
    json: JsonOption = False,
) -> None:
    """List what streams retain, and what the objects that they need really hold in Tier 2."""
    found = list(_pages(admin, "/v1/streams", {"prefix": prefix}, itemgetter("stream"), limit))
    if json:
        print_json(found)
        return
    rows = [
        (item["stream"], item["segments"], size_text(item["retained_bytes"]), size_text(item["held_bytes"]))
        for item in found
    ]
    print_table(f"{len(found):,} streams", ("stream", "segments", "retained", "held in Tier 2"), rows)


@app.command()
def cache(admin: AdminOption = DEFAULT_ADMIN, json: JsonOption = False) -> None:
    """Show the cache and the memory budgets of the server, or of each of its workers that serves."""
    found = _get(admin, "/v1/cache")
    if json:
        print_json(found)
    elif "workers" not in found:  # one process serves all containers
        _print_cache(found)
    else:
        for worker in found["workers"]:
            _print_cache(worker, f" of worker {worker.pop('worker')}")
        if not found["workers"]:
            print_line("no worker serves")


def _print_cache(found: dict[str, Any], whose: str = "") -> None:
    budgets = found.pop("budgets")
    print_fields(
        f"cache{whose}",
        {
            name.removesuffix("_bytes").replace("_", " "): size_text(value) if name.endswith("_bytes") else value
            for name, value in found.items()
        },
    )
    print_fields(f"budgets{whose}", {name: size_text(value) for name, value in budgets.items()})


@app.command()
def verify(
    data: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder of a stopped server.", show_default=".tailrace, without --tier2"),
    ] = None,
    tier2: Annotated[
        str,
        typer.Option(metavar="URL", help="Tier 2 of the folder, or Tier 2 alone.", show_default="the folder's own"),
    ] = "",
    s3_endpoint: Annotated[
        str | None, typer.Option(metavar="URL", help="Endpoint of an S3-compatible object store.", show_default=False)
    ] = None,
    json: JsonOption = False,
) -> None:
    """Verify that every byte of a stopped server is readable and every object is accounted for.

    With --tier2 and without --data: verify Tier 2 with the logs in it, or with its newest snapshots.
    """
    import logging

    from tailrace.cli.output import progress_bar
    from tailrace.cli.session import run
    from tailrace.cli.verify_output import print_report
    from tailrace.common.logs import configure_logs
    from tailrace.common.real_ports import SystemEntropy
    from tailrace.segmentstore.verify.folder import verify_folder, verify_tier2

    configure_logs(logging.ERROR)  # the report has the errors
    entropy = SystemEntropy()
    with progress_bar("verifying", 1.0) as bar:
        if data is None and tier2:
            report = run(verify_tier2(tier2, s3_endpoint=s3_endpoint, entropy=entropy, progress=bar.set))
        else:
            folder = data or Path(".tailrace")
            report = run(verify_folder(folder, tier2=tier2, s3_endpoint=s3_endpoint, entropy=entropy, progress=bar.set))
    if json:
        print_json(report.as_json())
    else:
        print_report(str(data or tier2 or ".tailrace"), report)
    if not report.healthy:
        raise typer.Exit(1)
