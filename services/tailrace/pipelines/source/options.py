"""Options of the source (docs/spark.md#options). Pure."""

from __future__ import annotations

import datetime
import enum
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tailrace.client.model import StreamName
from tailrace.common.errors import BadRequestError
from tailrace.common.stream_cut import StreamCut, parse_stream_cut
from tailrace.pipelines.direct.store_location import OPTIONS as TIER2_OPTIONS
from tailrace.pipelines.direct.store_location import StoreLocation
from tailrace.pipelines.option_values import choice, count, lower_names, required

if TYPE_CHECKING:
    from collections.abc import Mapping

HEAD: Final = "head"
TAIL: Final = "tail"
_NAMES: Final = (
    "controller",
    "stream",
    "streams",
    "tag",
    "start",
    "end",
    "maxBytesPerTrigger",
    "maxEventsPerTrigger",
    "maxPartitionBytes",
    "minPartitionBytes",
    "group",
    "valueFormat",
    "avroSchema",
    "mode",
    "failOnDataLoss",
    "direct",
    *TIER2_OPTIONS,
)
DIRECT: Final = ("auto", "always", "never")
"""Whether tables are read from Tier 2: where it has the bytes; or an error where it has not; or not at all."""

MAX_PARTITION_BYTES: Final = 128 << 20
"""What a task reads of one segment unless the options say otherwise: as much as Spark's tasks read of files."""
_DATE: Final = re.compile(r"\d{4}-\d\d-\d\d")


class ValueFormat(enum.StrEnum):
    """What events are: bytes, or each an object of JSON, a record of Avro, a stream of Arrow's format."""

    BINARY = "binary"
    JSON = "json"
    AVRO = "avro"
    ARROW = "arrow"


@dataclass(frozen=True)
class Moment:
    """A time in ms since 1970, by the clocks of the controllers."""

    time_ms: int


@dataclass(frozen=True)
class Tag:
    """A tag of streams in a scope."""

    scope: str
    name: str


@dataclass(frozen=True)
class SourceOptions:
    """Where to read from, and how.

    ``streams`` is empty for a query that reads the streams of a ``tag``.
    ``start`` and ``end`` are HEAD, TAIL, a cut or a time; a streaming query stops reading at an ``end`` that is a cut.
    ``max_bytes`` and ``max_events`` bound a batch of a streaming query; None for no bound. ``min_partition_bytes``:
    what one task reads at least, if there are so many. ``max_partition_bytes``: what it reads at most of one segment,
    where the segment can be divided. ``avro_schema``: the text of the writers' schema.
    ``group``: the reader group
    (``scope/group``) that publishes the position, or empty. ``tier2``: where tables are read from as far as it has them
    (None: segment stores); ``direct_only``: only there.
    """

    controller: str
    streams: tuple[StreamName, ...]
    tag: Tag | None = None
    start: str | StreamCut | Moment = HEAD
    end: str | StreamCut | Moment = TAIL
    max_bytes: int | None = None
    max_events: int | None = None
    min_partition_bytes: int = 0
    max_partition_bytes: int = MAX_PARTITION_BYTES
    group: str = ""
    value_format: ValueFormat = ValueFormat.BINARY
    avro_schema: str = ""
    fail_fast: bool = False
    fail_on_data_loss: bool = True
    tier2: StoreLocation | None = None
    direct_only: bool = False


def parse_options(given: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    """Return the options of a query. Spark gives their names in lower case.

    Raises:
        BadRequestError: names the option that is unknown, missing or malformed.
    """
    options = lower_names(given, _NAMES)
    streams, tag = _streams(options), _tag(options)
    direct = choice(options, "direct", DIRECT)
    parsed = SourceOptions(
        controller=required(options, "controller"),
        streams=streams,
        tag=tag,
        start=_position(options, "start", HEAD, streams),
        end=_position(options, "end", TAIL, streams),
        max_bytes=count(options, "maxBytesPerTrigger"),
        max_events=count(options, "maxEventsPerTrigger"),
        min_partition_bytes=count(options, "minPartitionBytes", lowest=0) or 0,
        max_partition_bytes=count(options, "maxPartitionBytes") or MAX_PARTITION_BYTES,
        group=options.get("group", ""),
        value_format=ValueFormat(choice(options, "valueFormat", tuple(ValueFormat))),
        avro_schema=options.get("avroschema", ""),
        fail_fast=choice(options, "mode", ("permissive", "failfast")) == "failfast",
        fail_on_data_loss=fails_on_data_loss(options),
        tier2=None if direct == "never" else StoreLocation.from_options(options),
        direct_only=direct == "always",
    )
    if parsed.direct_only and parsed.tier2 is None:
        raise BadRequestError("direct=always needs the option tier2")
    if (parsed.value_format is ValueFormat.AVRO) != bool(parsed.avro_schema):
        raise BadRequestError("valueFormat=avro and the option avroSchema need each other")
    if parsed.max_bytes is not None and parsed.max_events is not None:
        raise BadRequestError("give maxBytesPerTrigger or maxEventsPerTrigger, not both")
    if parsed.group and parsed.tag is not None:
        raise BadRequestError("group publishes positions in streams that the options name, not in those of a tag")
    if parsed.group and parsed.group.count("/") != 1:
        raise BadRequestError(f"group {parsed.group!r} is not of the form SCOPE/GROUP")
    if streaming and "end" in options and not isinstance(parsed.end, StreamCut):
        raise BadRequestError("the end of a streaming query is a stream cut: for the tail use the trigger availableNow")
    times = [each.time_ms for each in (parsed.start, parsed.end) if isinstance(each, Moment)]
    if times != sorted(times):
        raise BadRequestError(f"option end: {options['end'][:80]!r} is before the start {options['start'][:80]!r}")
    if streaming and (parsed.tier2 is not None or direct != DIRECT[0]):
        raise BadRequestError("tier2 and direct are options of tables: a streaming query reads from the segment stores")
    only_streaming = [
        name for name in ("maxBytesPerTrigger", "maxEventsPerTrigger", "group") if name.lower() in options
    ]
    if streaming and "maxpartitionbytes" in options:
        raise BadRequestError("maxPartitionBytes is an option of tables: one task reads all of a segment in a batch")
    if not streaming and only_streaming:
        raise BadRequestError(f"{only_streaming[0]} is an option of streaming queries")
    return parsed


def fails_on_data_loss(options: Mapping[str, str]) -> bool:
    """Return whether unread data that were truncated are an error. Raises BadRequestError for another text."""
    return choice(options, "failOnDataLoss", ("true", "false")) == "true"


def _streams(options: Mapping[str, str]) -> tuple[StreamName, ...]:
    if sum(name in options for name in ("stream", "streams", "tag")) != 1:
        raise BadRequestError("give the option stream, or streams with names separated by commas, or tag")
    if "tag" in options:
        return ()
    texts = options["stream"].split() if "stream" in options else options["streams"].replace(",", " ").split()
    streams = tuple(dict.fromkeys(StreamName.parse(text) for text in texts))
    if not streams or ("stream" in options and len(streams) != 1):
        raise BadRequestError("the option stream names one stream, SCOPE/STREAM")
    return streams


def _tag(options: Mapping[str, str]) -> Tag | None:
    if "tag" not in options:
        return None
    scope, slash, name = options["tag"].partition("/")
    if not scope or not slash or not name:
        raise BadRequestError(f"option tag: {options['tag'][:80]!r} is not of the form SCOPE/TAG")
    return Tag(scope, name)


def _moment(name: str, text: str) -> Moment:
    """Return a time in ISO 8601, in UTC if it has no zone. Raises BadRequestError."""
    try:
        time = datetime.datetime.fromisoformat(text)
    except ValueError as error:
        raise BadRequestError(f"option {name}: {text[:80]!r} is no time in ISO 8601 ({error})") from error
    zoned = time if time.tzinfo is not None else time.replace(tzinfo=datetime.UTC)
    return Moment(round(zoned.timestamp() * 1000))


def _position(
    options: Mapping[str, str], name: str, default: str, streams: tuple[StreamName, ...]
) -> str | StreamCut | Moment:
    text = options.get(name, default)
    if text in (HEAD, TAIL):
        return text
    if _DATE.match(text):
        return _moment(name, text)
    try:
        cut = parse_stream_cut(text)
    except BadRequestError as error:
        raise BadRequestError(
            f"option {name}: {text[:80]!r} is neither head, tail, a time nor a stream cut ({error})"
        ) from error
    if cut is None:
        return default
    if len(streams) != 1 or cut.scoped_name != str(streams[0]):
        raise BadRequestError(
            f"option {name}: the cut is of the stream {cut.scoped_name}, which is not the one to read"
        )
    return cut
