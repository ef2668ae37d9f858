"""A schema of places alone has no field to decode."""

from __future__ import annotations

import pytest
from pyspark.sql.types import IntegerType, LongType, StructField, StructType

from tailrace.common.errors import BadRequestError
from tailrace.pipelines.data_source import TailraceDataSource

PLACES = StructType([StructField("_segment", IntegerType()), StructField("_offset", LongType())])
AVRO = '{"type": "record", "name": "r", "fields": [{"name": "a", "type": "long"}]}'


@pytest.mark.parametrize(
    "more", [{"valueFormat": "json"}, {"valueFormat": "avro", "avroSchema": AVRO}, {"valueFormat": "arrow"}]
)
def test_a_format_without_a_field_is_refused(more: dict[str, str]) -> None:
    """The tables that the decoders make would have no rows."""
    source = TailraceDataSource({"controller": "tcp://c:1", "stream": "s/t", **more})
    with pytest.raises(BadRequestError, match="places alone"):
        source.reader(PLACES)
    with pytest.raises(BadRequestError, match="places alone"):
        source.streamReader(PLACES)
