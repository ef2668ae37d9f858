"""Read a stream's events as the jobs do: decoded from JSON, with the time of each (docs/spark-jobs.md)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from tailrace.common import limits
from tailrace.common.errors import BadRequestError
from tailrace.pipelines.source.options import fails_on_data_loss

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_NUMBERS: Final = ("integer", "long", "double")
_TIMES: Final = ("timestamp", "date", "string")
_TIME_MAX_MS: Final = (2**63 - 1) // 1000
"""Spark holds times in microseconds."""
_BOUNDS: Final = frozenset({"maxbytespertrigger", "maxeventspertrigger"})


@dataclass(frozen=True)
class Input:
    """The events of a stream.

    ``schema``, as SQL writes columns (``"key string, n long"``), decodes events from JSON, or as the option
    ``valueFormat`` says. Without one they have the columns of the data source, with the bytes in ``value``.
    ``time_field`` is the column with the time of an event: a TIMESTAMP, a DATE, text in ISO 8601, or a number of
    milliseconds since 1970; empty for none. ``options`` are further options of the data source.
    """

    controller: str
    stream: str
    schema: str = ""
    time_field: str = ""
    options: dict[str, str] = field(default_factory=dict)

    @property
    def fail_on_data_loss(self) -> bool:
        """Return what the option says. Raises BadRequestError."""
        return fails_on_data_loss({name.lower(): value for name, value in self.options.items()})

    def with_bounded_batches(self) -> Input:
        """Return it with a bound on the bytes of a batch, if the options have none."""
        return replace(self, options=bounded(self.options))

    def open(self, spark: SparkSession) -> DataFrame:
        """Return the events as a streaming table. Raises BadRequestError for a column that they lack."""
        reader = spark.readStream.format("tailrace").options(**self.options)
        reader = reader.option("controller", self.controller).option("stream", self.stream)
        if self.schema:
            reader = reader.schema(self.schema)
            if not any(name.lower() == "valueformat" for name in self.options):
                reader = reader.option("valueFormat", "json")
        events = reader.load()
        if self.time_field:
            check_columns(events, "time field", (self.time_field,))
        return events

    def time(self, events: DataFrame) -> Column:
        """Return the time of each event as a TIMESTAMP, null where it has none. Raises BadRequestError."""
        from pyspark.sql import functions as f

        column = f.col(self.time_field)
        kind = events.schema[self.time_field].dataType.typeName()
        if kind in _NUMBERS:
            time_ms = column.try_cast("long")
            return f.when(time_ms.between(-_TIME_MAX_MS, _TIME_MAX_MS), f.timestamp_millis(time_ms))
        if kind not in _TIMES:
            raise BadRequestError(f"the time field {self.time_field} is of type {kind}: no time")
        return column.try_cast("timestamp")


def bounded(options: dict[str, str]) -> dict[str, str]:
    """Return options of the data source with a bound on the bytes of a batch, if they have none on bytes or events."""
    if _BOUNDS.isdisjoint(name.lower() for name in options):
        return {**options, "maxBytesPerTrigger": str(limits.SPARK_JOB_BATCH_BYTES)}
    return options


def check_columns(events: DataFrame, what: str, wanted: tuple[str, ...]) -> None:
    """Raise BadRequestError when the events lack a column."""
    for name in wanted:
        if name not in events.columns:
            raise BadRequestError(f"{what} {name}: the events have the columns {', '.join(events.columns)}")
