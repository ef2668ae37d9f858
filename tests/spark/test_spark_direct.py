"""Tables of Spark from Tier 2: what it has comes from there, the rest from the segment store (docs/spark-direct.md)."""

from __future__ import annotations

import asyncio
import json
import re
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException

from harness.server import READY_DEADLINE_S as READY_WITHIN_S
from tailrace.cli.demo.server import Endpoints, ServerProcess
from tailrace.client import BlockingClient, ScalingPolicy, StreamConfig

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EPHEMERAL = {"controller": 0, "rest": 0, "store": 0, "admin": 0}
COVERED_DEADLINE_S = 240.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data folder of the server of this module."""
    return tmp_path_factory.mktemp("server")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Endpoints]:
    """A server that writes its first snapshots 30 s after its start."""
    process = ServerProcess(folder, ports=EPHEMERAL, ready_within_s=READY_WITHIN_S)
    with asyncio.Runner() as runner:
        endpoints = runner.run(process.start())
        try:
            yield endpoints
        finally:
            runner.run(process.stop())


def numbers(frame: DataFrame) -> list[int]:
    return sorted(json.loads(row["value"])["n"] for row in frame.collect())


def write(client: BlockingClient, stream: str, wanted: range) -> None:
    with client.writer(stream) as writer:
        for number in wanted:
            text = json.dumps({"n": number, "filler": "x" * (number % 700)})
            writer.write_event(text.encode(), routing_key=f"k{number % 11}")
        writer.flush()


def _from_tier2(frame: DataFrame) -> list[int] | None:
    """Return what Tier 2 has; None when it does not have everything yet."""
    try:
        return numbers(frame)
    except PySparkException as error:
        if "Tier 2 does not have bytes" not in str(error):
            raise
        return None


def test_a_table_is_read_from_tier_2_and_its_rest_from_the_store(
    spark: SparkSession, server: Endpoints, client: BlockingClient, folder: Path, tmp_path: Path
) -> None:
    stream = f"direct-{secrets.token_hex(4)}/events"
    client.streams.create_scope(stream.split("/")[0])
    client.streams.create_stream(stream, StreamConfig(ScalingPolicy.fixed(2)))
    write(client, stream, range(3000))
    cut = client.streams.tail(stream).to_text()

    def table(**options: str) -> DataFrame:
        given = {"controller": server.controller, "stream": stream, "tier2": str(folder / "tier2"), **options}
        return spark.read.format("tailrace").options(**given).load()

    ends_s = time.monotonic() + COVERED_DEADLINE_S
    while (found := _from_tier2(table(direct="always", end=cut))) is None:
        assert time.monotonic() < ends_s, "no snapshot has what was written"
        time.sleep(1.0)  # between looks
    assert found == list(range(3000))
    write(client, stream, range(3000, 3500))
    client.streams.scale_to(stream, 3)
    write(client, stream, range(3500, 4000))
    assert numbers(table()) == list(range(4000))
    assert numbers(table(direct="never", tier2=str(tmp_path))) == list(range(4000)), "no Tier 2 is looked at"
    places = [(row["epoch"], row["segment"], row["offset"], row["value"]) for row in table().collect()]
    assert sorted(places) == sorted(
        (row["epoch"], row["segment"], row["offset"], row["value"]) for row in table(direct="never").collect()
    )
    decoded = spark.read.format("tailrace").options(
        controller=server.controller, stream=stream, tier2=str(folder / "tier2"), valueFormat="json"
    )
    assert sorted(row["n"] for row in decoded.schema("n bigint").load().collect()) == list(range(4000))
    with pytest.raises(PySparkException, match=re.escape("Tier 2 does not have bytes")):
        table(direct="always").collect()
    with pytest.raises(PySparkException, match="belongs to no cluster"):
        table(tier2=str(tmp_path)).collect()
    with pytest.raises(PySparkException, match="direct=always needs the option tier2"):
        table(tier2="", direct="always").collect()
