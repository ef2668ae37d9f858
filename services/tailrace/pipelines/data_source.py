"""The data source ``tailrace``: which class reads streams, and which one writes them."""

from __future__ import annotations

from pyspark.sql.datasource import DataSource


class TailraceDataSource(DataSource):
    """Streams as tables of Spark. Its methods return what reads and what writes them."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format, as in ``spark.read.format("tailrace")``."""
        return "tailrace"
