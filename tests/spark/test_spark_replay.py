"""`tailrace pipeline replay` on a real Spark and real servers (docs/spark-jobs.md#replay)."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness.server import READY_DEADLINE_S as READY_WITHIN_S
from harness.sparkcommands import kill_when_it_writes
from tailrace.cli.demo.server import Endpoints, ServerProcess
from tailrace.client import BlockingClient, ScalingPolicy, StreamConfig, StreamName
from tailrace.common.errors import BadRequestError, NoSuchStreamError, StreamSealedError
from tailrace.common.stream_cut import StreamCut
from tailrace.pipelines.jobs.replay import Replay, prepare
from tailrace.pipelines.jobs.target import Target

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tailrace.pipelines.jobs.batch_files import Progress

KEYS = 7
EPHEMERAL = {"controller": 0, "rest": 0, "store": 0, "admin": 0}


@pytest.fixture
def streams(client: BlockingClient, scope: str) -> tuple[str, str]:
    """Two new streams with two segments each: to read, and to write."""
    names = (f"{scope}/from", f"{scope}/to")
    for name in names:
        client.streams.create_stream(name, StreamConfig(ScalingPolicy.fixed(2)))
    return names


@pytest.fixture(scope="module")
def other_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoints]:
    """The addresses of another cluster."""
    process = ServerProcess(tmp_path_factory.mktemp("other"), ports=EPHEMERAL, ready_within_s=READY_WITHIN_S)
    with asyncio.Runner() as runner:
        try:
            yield runner.run(process.start())
        finally:
            runner.run(process.stop())


def write(client: BlockingClient, stream: str, numbers: range) -> None:
    """Write a numbered event for each number; its key is the number modulo KEYS."""
    with client.writer(stream) as writer:
        for number in numbers:
            writer.write_event(_event(number), routing_key=f"k{number % KEYS}")
        writer.flush()


def _event(number: int) -> bytes:
    return b'{"n": %d,\t"key":"k%d"}' % (number, number % KEYS)


def events(client: BlockingClient, stream: str) -> list[list[bytes]]:
    """Return the events of each segment of a stream, in their order."""
    pieces = client.slices(stream)
    return [[event for some in client.read_slice(piece) for event in some] for piece in pieces]


def check(client: BlockingClient, stream: str, numbers: range) -> None:
    """Check that a stream has each event once with its bytes, and those of each key in one segment, in order."""
    segments = events(client, stream)
    assert sorted(each for some in segments for each in some) == sorted(map(_event, numbers))
    found = defaultdict(list)
    for index, some in enumerate(segments):
        for each in some:
            fields = json.loads(each)
            found[fields["key"]].append((index, fields["n"]))
    assert all(places == sorted(places, key=lambda place: place[1]) for places in found.values())
    assert all(len({index for index, _ in places}) == 1 for places in found.values())


def replay(spark: SparkSession, job: Replay, folder: Path) -> Progress:
    from tailrace.pipelines.jobs.replay import run_replay

    return run_replay(spark, prepare(job), str(folder))


def job(server: Endpoints, streams: tuple[str, str], **changes: object) -> Replay:
    target = Target(server.controller, StreamName.parse(streams[1]))
    return Replay(server.controller, StreamName.parse(streams[0]), target, **changes)  # type: ignore[arg-type]


def forget_last_commit(folder: Path) -> None:
    """Remove the last entry of a checkpoint's commits, as if the driver had ended before it wrote that."""
    last = max(int(each.name) for each in (folder / "commits").glob("[0-9]*"))
    for name in (str(last), f".{last}.crc"):
        (folder / "commits" / name).unlink()


def test_without_a_key_events_are_in_order_over_scales_and_a_repeated_batch_is_left_out(
    spark: SparkSession, server: Endpoints, client: BlockingClient, streams: tuple[str, str], tmp_path: Path
) -> None:
    write(client, streams[0], range(400))
    for segment in client.streams.tail(streams[0]).positions:
        client.streams.split_segment(streams[0], segment, 2)
    write(client, streams[0], range(400, 800))
    progress = replay(spark, job(server, streams), tmp_path)
    assert (progress.rows, progress.batches) == (800, 2)
    assert progress.position == {streams[0]: {str(k): v for k, v in client.streams.tail(streams[0]).positions.items()}}
    check(client, streams[1], range(800))
    assert all(events(client, streams[1])), "both segments of the target have events"
    forget_last_commit(tmp_path)
    write(client, streams[0], range(800, 900))
    replay(spark, job(server, streams), tmp_path)
    check(client, streams[1], range(900))
    assert replay(spark, job(server, streams), tmp_path).rows == 0


def test_a_replay_from_a_cut_goes_on_when_the_cut_is_truncated(
    spark: SparkSession, server: Endpoints, client: BlockingClient, streams: tuple[str, str], tmp_path: Path
) -> None:
    write(client, streams[0], range(10))
    start = client.streams.tail(streams[0])
    write(client, streams[0], range(10, 100))
    replay(spark, job(server, streams, start=start), tmp_path)
    for segment in start.positions:
        client.streams.split_segment(streams[0], segment, 2)
    write(client, streams[0], range(100, 150))
    assert replay(spark, job(server, streams, start=start), tmp_path).rows == 50
    client.streams.truncate_stream(streams[0], client.streams.tail(streams[0]))
    assert replay(spark, job(server, streams, start=start), tmp_path).rows == 0
    write(client, streams[0], range(150, 200))
    assert replay(spark, job(server, streams, start=start), tmp_path).rows == 50
    check(client, streams[1], range(10, 200))


def test_with_a_key_events_are_in_order_in_other_segments_and_only_from_cut_to_cut(
    spark: SparkSession, server: Endpoints, client: BlockingClient, streams: tuple[str, str], tmp_path: Path
) -> None:
    write(client, streams[0], range(100))
    start = client.streams.tail(streams[0])
    write(client, streams[0], range(100, 300))
    end = client.streams.tail(streams[0])
    client.streams.scale_to(streams[0], 3)
    write(client, streams[0], range(300, 400))
    client.streams.scale_to(streams[1], 5)
    wanted = job(server, streams, start=start, end=end, routing_key="key", options={"maxBytesPerTrigger": "3000"})
    progress = replay(spark, wanted, tmp_path)
    assert progress.rows == 200
    assert progress.batches > 1
    check(client, streams[1], range(100, 300))
    assert replay(spark, job(server, streams, routing_key="key"), tmp_path).rows == 100
    check(client, streams[1], range(100, 400))


def test_wrong_runs_are_named(
    spark: SparkSession, server: Endpoints, client: BlockingClient, streams: tuple[str, str], tmp_path: Path
) -> None:
    from pyspark.errors import PySparkException

    from tailrace.pipelines.jobs.session import reason_of

    write(client, streams[0], range(10))
    middle = client.streams.tail(streams[0])
    write(client, streams[0], range(10, 20))
    with pytest.raises(PySparkException) as failed:
        replay(spark, job(server, streams, routing_key="town"), tmp_path / "a")
    reason = reason_of(str(failed.value))
    assert reason.startswith("the event at offset ")
    assert reason.endswith(" of epoch 0 has no field town of JSON, which is to be its routing key")
    assert not any(events(client, streams[1]))
    replay(spark, job(server, streams), tmp_path / "b")
    other = (streams[0], streams[0] + "-2")
    client.streams.create_stream(other[1])
    with pytest.raises(BadRequestError, match=f"is of a replay into another stream than {other[1]}"):
        replay(spark, job(server, other), tmp_path / "b")
    with pytest.raises(PySparkException, match=f"the query has read stream {streams[0]} beyond the cut"):
        replay(spark, job(server, streams, end=middle), tmp_path / "b")
    check(client, streams[1], range(20))


def test_what_cannot_be_replayed_is_named_without_spark(
    server: Endpoints, client: BlockingClient, streams: tuple[str, str]
) -> None:
    source, target = streams
    with pytest.raises(BadRequestError, match=f"stream {source} has no events between start and end"):
        prepare(job(server, streams))
    write(client, source, range(100))
    tail = client.streams.tail(source)
    prepare(job(server, streams, end=tail))
    with pytest.raises(BadRequestError, match=f"the start is after the end, in some segments of stream {source}"):
        prepare(job(server, streams, start="tail", end="head"))
    with pytest.raises(BadRequestError, match=f"stream {source} has no events between start and end"):
        prepare(job(server, streams, start=tail))
    with pytest.raises(BadRequestError, match=f"the cut is of stream {target}, not of {source}"):
        prepare(job(server, streams, start=client.streams.tail(target)))
    with pytest.raises(BadRequestError, match=f"the cut is no position of stream {source}"):
        prepare(job(server, streams, end=StreamCut(tail.scope, tail.stream, {77: 0})))
    for missing in ((f"{source}-no", target), (source, f"{target}-no")):
        with pytest.raises(NoSuchStreamError, match=r"stream .*-no does not exist"):
            prepare(job(server, missing))
    same = Target(server.controller.replace("127.0.0.1", "localhost"), StreamName.parse(source))
    assert same.controller != server.controller
    with pytest.raises(BadRequestError, match=f"stream {source} would be written into itself"):
        prepare(Replay(server.controller, StreamName.parse(source), same))
    with pytest.raises(BadRequestError, match="the sink's option Value cannot be given"):
        prepare(
            Replay(
                server.controller,
                StreamName.parse(source),
                Target(server.controller, StreamName.parse(target), {"Value": "x"}),
            )
        )
    client.streams.seal_stream(target)
    with pytest.raises(StreamSealedError, match=f"stream {target} is sealed"):
        prepare(job(server, streams))


def test_a_stream_is_replayed_into_another_cluster(
    spark: SparkSession,
    server: Endpoints,
    other_server: Endpoints,
    client: BlockingClient,
    streams: tuple[str, str],
    tmp_path: Path,
) -> None:
    write(client, streams[0], range(100))
    name = StreamName.parse(streams[0])
    with BlockingClient(other_server.controller) as other:
        other.streams.create_scope(name.scope)
        other.streams.create_stream(name)
        replay(spark, Replay(server.controller, name, Target(other_server.controller, name)), tmp_path)
        check(other, streams[0], range(100))


def test_a_killed_command_goes_on(
    spark: SparkSession, server: Endpoints, client: BlockingClient, streams: tuple[str, str], tmp_path: Path
) -> None:
    write(client, streams[0], range(2000))
    options = ("--checkpoint", str(tmp_path), "--option", "maxEventsPerTrigger=50", "--controller", server.controller)
    before = kill_when_it_writes(client, streams[1], "replay", *streams, *options)
    assert 0 < before < 2000
    progress = replay(spark, job(server, streams), tmp_path)
    assert 2000 - before <= progress.rows <= 2000
    check(client, streams[1], range(2000))
