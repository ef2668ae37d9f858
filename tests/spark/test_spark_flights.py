"""Real data from end to end: all flights of New York in a year, into a stream and archived, equal the original."""

from __future__ import annotations

import os
import zipfile
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd  # type: ignore[import-untyped]
import pyarrow.dataset
import pytest

from tailrace.cli.demo.flights import MEMBER, cache_folder, fetch_archive, read_events
from tailrace.cli.demo.server import Endpoints
from tailrace.client import BlockingClient, ScalingPolicy, StreamConfig

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FLIGHTS = 336_776 if os.environ.get("TAILRACE_TEST_PROFILE") == "full" else 20_000
BATCH_EVENTS = 100_000
DEADLINE_S = 900.0


def original() -> pd.DataFrame:
    """The first flights of the data set in order of departure, as text.

    Without the column ``day``, which is the name of the archive's folders; it is part of ``time_hour``.
    """
    with zipfile.ZipFile(fetch_archive(cache_folder())) as opened, opened.open(MEMBER) as member:
        flights = pd.read_csv(member, dtype=str, keep_default_na=False)
    numbers = flights[["year", "month", "day", "hour", "minute", "dep_delay"]].apply(pd.to_numeric, errors="coerce")
    departure = pd.to_datetime(numbers[["year", "month", "day", "hour", "minute"]])
    departure += pd.to_timedelta(numbers["dep_delay"].fillna(0), unit="min")
    return flights.loc[departure.sort_values(kind="stable").index].head(FLIGHTS).drop(columns="day")


def write_flights(client: BlockingClient, stream: str) -> None:
    """Write the flights as the example does, each by its plane."""
    client.streams.create_stream(stream, StreamConfig(ScalingPolicy.fixed(4)))
    flights = read_events(fetch_archive(cache_folder()))[:FLIGHTS]
    with client.writer(stream) as writer:
        for key, group in groupby(flights, key=lambda flight: flight.key):
            writer.write_events([flight.data for flight in group], routing_key=key)
        writer.flush()


@pytest.mark.timeout(DEADLINE_S)
def test_an_archive_of_flights_equals_the_original_row_for_row(
    spark: SparkSession, server: Endpoints, client: BlockingClient, scope: str, tmp_path: Path
) -> None:
    from tailrace.pipelines.jobs.archive import archive
    from tailrace.pipelines.jobs.events import Input

    expected, stream = original(), f"{scope}/flights"
    write_flights(client, stream)
    schema = ", ".join(f"`{name}` string" for name in expected.columns)
    options = {"maxEventsPerTrigger": str(BATCH_EVENTS)}
    progress = archive(spark, Input(server.controller, stream, schema, "time_hour", options), str(tmp_path))
    assert progress.rows == FLIGHTS

    stored = pyarrow.dataset.dataset(tmp_path, format="parquet", partitioning="hive").to_table().to_pandas()
    assert (stored["day"].astype(str) == stored["time_hour"].str.slice(0, 10)).all()
    columns = list(expected.columns)
    found = stored[columns].sort_values(columns, ignore_index=True)
    pd.testing.assert_frame_equal(found, expected.sort_values(columns, ignore_index=True), check_dtype=False)

    delays = "SELECT dest, count(*) AS n, sum(try_cast(arr_delay AS bigint)) AS minutes FROM flights GROUP BY dest"
    spark.read.parquet(str(tmp_path)).createOrReplaceTempView("flights")
    answer = {row.dest: (row.n, row.minutes) for row in spark.sql(delays).collect()}
    minutes = pd.to_numeric(expected["arr_delay"], errors="coerce").groupby(expected["dest"])
    sums = minutes.sum(min_count=1)
    assert answer == {dest: (n, None if pd.isna(sums[dest]) else int(sums[dest])) for dest, n in minutes.size().items()}
