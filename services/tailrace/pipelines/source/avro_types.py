"""The columns that a schema of Avro means in Spark (docs/spark.md#avro). Pure."""

from __future__ import annotations

from typing import Any, Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from tailrace.common.errors import BadRequestError

_TYPES: Final[dict[str, DataType]] = {
    "boolean": BooleanType(),
    "int": IntegerType(),
    "long": LongType(),
    "float": FloatType(),
    "double": DoubleType(),
    "bytes": BinaryType(),
    "string": StringType(),
    "fixed": BinaryType(),
    "enum": StringType(),
}
_LOGICAL_TYPES: Final[dict[str, DataType]] = {
    "date": DateType(),
    "timestamp-millis": TimestampType(),
    "timestamp-micros": TimestampType(),
    "local-timestamp-millis": TimestampNTZType(),
    "local-timestamp-micros": TimestampNTZType(),
}


def columns_of(avro_schema: dict[str, Any]) -> StructType:
    """Return the columns of a record's schema, as `parse_avro_schema` returns it.

    Raises:
        BadRequestError: names a field that Spark has no type for: of several types, or part of itself.
    """
    return _Types().struct(avro_schema, ())


class _Types:
    """Named types of the schema, as they are defined on the way."""

    def __init__(self) -> None:
        self._named: dict[str, dict[str, Any]] = {}
        self._open: list[str] = []

    def struct(self, record: dict[str, Any], path: tuple[str, ...]) -> StructType:
        name = record["name"]
        if name in self._open:
            raise _no_type(path, f"a {name} is part of itself")
        self._named[name] = record
        self._open.append(name)
        fields = [self._field(each, (*path, each["name"])) for each in record["fields"]]
        self._open.pop()
        return StructType(fields)

    def _field(self, field: dict[str, Any], path: tuple[str, ...]) -> StructField:
        return StructField(field["name"], self._type(field["type"], path))

    def _type(self, schema: Any, path: tuple[str, ...]) -> DataType:
        if isinstance(schema, list):
            return self._union(schema, path)
        if isinstance(schema, str):
            schema = self._named.get(schema, {"type": schema})
        kind = schema["type"]
        if isinstance(kind, dict | list):
            return self._type(kind, path)
        match kind:
            case "record":
                return self.struct(schema, path)
            case "enum" | "fixed":
                self._named[schema["name"]] = schema
            case "array":
                return ArrayType(self._type(schema["items"], path))
            case "map":
                return MapType(StringType(), self._type(schema["values"], path))
        if schema.get("logicalType") == "decimal":
            return DecimalType(schema["precision"], schema.get("scale", 0))
        found = _LOGICAL_TYPES.get(schema.get("logicalType", "")) or _TYPES.get(kind)
        if found is None:
            raise _no_type(path, f"it is of type {kind}")
        return found

    def _union(self, schema: list[Any], path: tuple[str, ...]) -> DataType:
        """Return the one type that is not null: every column of Spark may have nulls."""
        types = [each for each in schema if each != "null"]
        if len(types) != 1:
            raise _no_type(path, f"it is one of {len(types)} types")
        return self._type(types[0], path)


def _no_type(path: tuple[str, ...], reason: str) -> BadRequestError:
    return BadRequestError(
        f"option avroSchema: Spark has no type for {'.'.join(path)}: {reason}; give a schema with the columns to read"
    )
