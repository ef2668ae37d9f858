"""The data source ``tailrace``: which class reads streams, and which one writes them (docs/spark.md)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)

from tailrace.common.errors import BadRequestError
from tailrace.pipelines.source.options import SourceOptions, ValueFormat, parse_options

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql.types import StructType

    from tailrace.pipelines.sink.options import SinkOptions


CONTROLLER: Final = "TAILRACE_CONTROLLER"
"""The variable with the address of the controller, for those who give no option ``controller``."""


class TailraceDataSource(DataSource):
    """Streams as tables of Spark. Its methods return what reads and what writes them."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format, as in ``spark.read.format("tailrace")``."""
        return "tailrace"

    def schema(self) -> StructType:
        """Return the columns of events that are not decoded, or of Avro's schema.

        Raises:
            BadRequestError: JSON and Arrow need a schema, and so does Avro where Spark has no type for a field.
        """
        from tailrace.pipelines.source.rows import COLUMNS

        found = self.options.get("valueFormat", ValueFormat.BINARY).lower()
        if found in (ValueFormat.JSON, ValueFormat.ARROW):
            raise BadRequestError(f"valueFormat={found} needs a schema: spark.read.schema('name string, …')")
        if found == ValueFormat.AVRO:
            from tailrace.pipelines.source.avro_types import columns_of
            from tailrace.pipelines.source.avro_values import parse_avro_schema

            return columns_of(parse_avro_schema(self.options.get("avroSchema", "")))
        return COLUMNS

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return what reads a stream as a table. Raises BadRequestError for wrong options."""
        from tailrace.pipelines.source.batch import TableReader

        options = parse_options(_addressed(self.options), streaming=False)
        return TableReader(options, _checked(schema, options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return what reads a stream as it grows. Raises BadRequestError for wrong options."""
        from tailrace.pipelines.source.streaming import StreamReader

        options = parse_options(_addressed(self.options), streaming=True)
        return StreamReader(options, _checked(schema, options))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return what writes a table's rows. Raises BadRequestError for wrong options or columns."""
        from tailrace.pipelines.sink.writers import TableWriter

        return TableWriter(_sink_options(self.options, schema, overwrite, streaming=False))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Return what writes the batches of a streaming query. Raises BadRequestError for wrong options or columns."""
        from tailrace.pipelines.sink.writers import StreamWriter

        return StreamWriter(_sink_options(self.options, schema, overwrite, streaming=True))


def _sink_options(given: Mapping[str, str], schema: StructType, overwrite: bool, *, streaming: bool) -> SinkOptions:
    from tailrace.pipelines.sink import options
    from tailrace.pipelines.sink.event_values import check_columns

    if overwrite:
        raise BadRequestError("a stream is appended to, it cannot be replaced: use mode('append')")
    parsed = options.parse_options(_addressed(given), streaming=streaming)
    check_columns(schema, parsed)
    return parsed


def _addressed(given: Mapping[str, str]) -> Mapping[str, str]:
    """Return the options of a query, with the controller of the environment when they name none."""
    address = os.environ.get(CONTROLLER)
    if not address or any(name.lower() == "controller" for name in given):
        return given
    return {**given, "controller": address}


def _checked(schema: StructType, options: SourceOptions) -> StructType:
    """Return the schema of the user, or ours. Raises BadRequestError for columns that events do not have."""
    from tailrace.pipelines.source.rows import COLUMNS, INGESTED_BEFORE, METADATA

    if options.value_format is not ValueFormat.BINARY:
        for field in schema:
            if field.name in METADATA and METADATA[field.name].dataType != field.dataType:
                wanted = METADATA[field.name].dataType.simpleString()
                raise BadRequestError(f"column {field.name} says where an event is: its type is {wanted}")
        if all(name in METADATA for name in schema.fieldNames()):
            raise BadRequestError("the schema has places alone, and no field of events: leave out valueFormat")
        if options.value_format is ValueFormat.JSON:
            from pyspark.sql.types import StructType

            from tailrace.pipelines.source.json_values import check_json_schema

            check_json_schema(StructType([field for field in schema if field.name not in METADATA]))
        if options.value_format is ValueFormat.AVRO:
            from tailrace.pipelines.source.avro_values import parse_avro_schema

            parse_avro_schema(options.avro_schema)  # an error of the driver, not of each task
        return schema
    known = {field.name: field.dataType for field in (*COLUMNS, INGESTED_BEFORE)}
    for field in schema:
        if known.get(field.name) != field.dataType:
            raise BadRequestError(
                f"column {field.name}: events that are not decoded have the columns {', '.join(known)}; "
                "fields of events need valueFormat=json, avro or arrow"
            )
    return schema
