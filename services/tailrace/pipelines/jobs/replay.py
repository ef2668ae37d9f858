"""The job ``replay``: write a stream's events, from a cut to a cut, into another one (docs/spark-jobs.md#replay)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tailrace.client import BlockingClient
from tailrace.common import limits, names
from tailrace.common.errors import BadRequestError
from tailrace.common.stream_cut import StreamCut
from tailrace.pipelines.jobs.batch_files import Progress, position_of
from tailrace.pipelines.jobs.checkpoint import query_with_batches
from tailrace.pipelines.jobs.events import bounded
from tailrace.pipelines.jobs.segment_keys import segment_keys
from tailrace.pipelines.sink.query_table import find_record
from tailrace.pipelines.source.options import HEAD, TAIL
from tailrace.pipelines.source.positions import Navigator

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from tailrace.client.context import ClientContext
    from tailrace.client.model import StreamName
    from tailrace.pipelines.jobs.target import Target

_KEY: Final = "_routing_key"


@dataclass(frozen=True)
class Replay:
    """What to write where.

    ``start`` and ``end`` are HEAD, TAIL or a cut of the stream. ``routing_key`` is the field of events in JSON with the
    routing key; empty: each segment of the stream gets one key. ``options`` are further options of the data source.
    """

    controller: str
    stream: StreamName
    target: Target
    start: str | StreamCut = HEAD
    end: str | StreamCut = TAIL
    routing_key: str = ""
    options: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class PreparedReplay:
    """A replay that can be made: with cuts for head and tail, and a routing key for each segment, by its id."""

    replay: Replay
    start: StreamCut
    end: StreamCut
    keys: dict[int, str]


def prepare(replay: Replay) -> PreparedReplay:
    """Find the cuts of a replay, and check streams and options. Spark is not needed.

    Raises:
        NoSuchStreamError, StreamSealedError. BadRequestError: the target is the source, a cut is of another stream, the
            start is after the end, or there are no events between them.
    """
    with BlockingClient(replay.controller) as source, BlockingClient(replay.target.controller) as target:
        prepared = source.run(_prepare(source.context, replay))
        target.run(replay.target.check(target.context))
        if replay.stream == replay.target.stream and _is_one_cluster(source, target):
            raise BadRequestError(f"stream {replay.stream} would be written into itself: name another target")
    return prepared


def _is_one_cluster(first: BlockingClient, second: BlockingClient) -> bool:
    """Return whether two clients reach the same controllers: clusters may be copies with the same names and times."""
    ours, theirs = (set(each.run(each.context.controller.controllers())) for each in (first, second))
    return not ours.isdisjoint(theirs)


async def _prepare(context: ClientContext, replay: Replay) -> PreparedReplay:
    stream, navigator = replay.stream, Navigator(context, fail_on_data_loss=True)
    cuts = [await _cut(navigator, stream, where) for where in (replay.start, replay.end)]
    start, end = cuts
    if await navigator.is_beyond(stream, start.positions, end.positions):
        raise BadRequestError(f"the start is after the end, in some segments of stream {stream}")
    if not await navigator.between(stream, start.positions, end.positions):  # a run before may have read what is gone
        raise BadRequestError(f"stream {stream} has no events between start and end")
    ranges = (await context.controller.stream_history(stream)).key_ranges()
    return PreparedReplay(replay, start, end, {} if replay.routing_key else segment_keys(ranges))


async def _cut(navigator: Navigator, stream: StreamName, where: str | StreamCut) -> StreamCut:
    if isinstance(where, StreamCut) and where.scoped_name != str(stream):
        raise BadRequestError(f"the cut is of stream {where.scoped_name}, not of {stream}")
    return StreamCut(stream.scope, stream.stream, await navigator.start(stream, where))


def run_replay(spark: SparkSession, prepared: PreparedReplay, checkpoint: str) -> Progress:
    """Write the events, each once, also when a run was killed: the next one with the same checkpoint goes on.

    Return what this run has read: batches, events, and the position behind them.

    Raises:
        BadRequestError: the checkpoint is of a replay into another stream. StreamingQueryException: the query failed;
            events may lack the field of the routing key.
    """
    replay = prepared.replay
    _check_checkpoint(spark, replay.target, checkpoint)
    options = {**bounded(replay.options), "controller": replay.controller, "stream": str(replay.stream)}
    options |= {"start": prepared.start.to_text(), "end": prepared.end.to_text(), "valueFormat": "binary"}
    events = spark.readStream.format("tailrace").options(**options).load()
    rows = _with_field(events, replay.routing_key) if replay.routing_key else _with_keys(spark, events, prepared.keys)
    writer = rows.select("value", _KEY).writeStream.format("tailrace").options(**replay.target.all_options())
    writer = writer.option("routingKey", _KEY).option("checkpointLocation", checkpoint)
    query = writer.trigger(availableNow=True).start()
    try:
        return _follow(query)
    finally:
        query.stop()


def _check_checkpoint(spark: SparkSession, target: Target, checkpoint: str) -> None:
    """Raise BadRequestError when the query of a checkpoint has written batches, and not into the target."""
    query = query_with_batches(spark, checkpoint)
    if query is None:
        return
    with BlockingClient(target.controller) as client:
        record = client.run(find_record(client.context, target.stream, query))
    if record is None:
        raise BadRequestError(
            f"the checkpoint {checkpoint} is of a replay into another stream than {target.stream}: use another folder"
        )


def _with_keys(spark: SparkSession, events: DataFrame, keys: dict[int, str]) -> DataFrame:
    """Return the events with the key of their segment. A broadcast join keeps partitions and the order in them."""
    from pyspark.sql import functions as f

    rows = (f"({names.segment_number(each)}, {names.segment_epoch(each)}, '{key}')" for each, key in keys.items())
    table = spark.sql(f"SELECT * FROM VALUES {', '.join(rows)} AS keys(segment, epoch, {_KEY})")
    return events.join(f.broadcast(table), ["segment", "epoch"], "left")


def _with_field(events: DataFrame, name: str) -> DataFrame:
    """Return the events with the text of a field of their JSON; one without it fails the query."""
    from pyspark.sql import functions as f

    place = [f.col(each).cast("string") for each in ("offset", "segment", "epoch")]
    words = [f.lit(each) for each in ("the event at offset ", " of segment ", " of epoch ")]
    lacks = f.lit(f" has no field {name} of JSON, which is to be its routing key")
    message = f.concat(*(part for pair in zip(words, place, strict=True) for part in pair), lacks)
    text = f.get_json_object(f.col("value").cast("string"), f"$['{name}']")
    return events.withColumn(_KEY, f.coalesce(text, f.raise_error(message).cast("string")))


def _follow(query: StreamingQuery) -> Progress:
    """Wait until the query ends, and add up its batches."""
    rows: dict[int, int] = {}
    position = None
    ended = False
    while not ended:
        ended = bool(query.awaitTermination(limits.SPARK_PROGRESS_POLL_S))
        for each in query.recentProgress:
            number = int(each["batchId"])
            rows[number] = max(rows.get(number, 0), int(each["numInputRows"]))
            position = position_of(each["sources"][0]["endOffset"]) if each["sources"] else position
    written = [count for count in rows.values() if count]
    return Progress(len(written), sum(written), position)
