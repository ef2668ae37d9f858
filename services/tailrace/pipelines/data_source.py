"""The data source ``tailrace``: which class reads streams, and which one writes them (docs/spark.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader

from tailrace.common.errors import BadRequestError
from tailrace.pipelines.source.options import SourceOptions, parse_options

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class TailraceDataSource(DataSource):
    """Streams as tables of Spark. Its methods return what reads and what writes them."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format, as in ``spark.read.format("tailrace")``."""
        return "tailrace"

    def schema(self) -> StructType:
        """Return the columns of events that are not decoded. Raises BadRequestError: JSON needs a schema."""
        from tailrace.pipelines.source.rows import COLUMNS

        if self.options.get("valueFormat", "binary").lower() == "json":
            raise BadRequestError("valueFormat=json needs a schema: spark.read.schema('name string, …')")
        return COLUMNS

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return what reads a stream as a table. Raises BadRequestError for wrong options."""
        from tailrace.pipelines.source.batch import TableReader

        options = parse_options(self.options, streaming=False)
        return TableReader(options, _checked(schema, options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return what reads a stream as it grows. Raises BadRequestError for wrong options."""
        from tailrace.pipelines.source.streaming import StreamReader

        options = parse_options(self.options, streaming=True)
        return StreamReader(options, _checked(schema, options))


def _checked(schema: StructType, options: SourceOptions) -> StructType:
    """Return the schema of the user, or ours. Raises BadRequestError for columns that events do not have."""
    from tailrace.pipelines.source.rows import COLUMNS

    if options.is_json:
        return schema
    known = {field.name: field.dataType for field in COLUMNS}
    for field in schema:
        if known.get(field.name) != field.dataType:
            raise BadRequestError(
                f"column {field.name}: events that are not decoded have the columns {', '.join(known)}; "
                "fields of JSON need valueFormat=json"
            )
    return schema
