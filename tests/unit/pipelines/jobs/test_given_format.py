"""`--schema … --option valueFormat=arrow`: the option is passed to the data source, as docs/spark-jobs.md says."""

from __future__ import annotations

from typing import Any, cast

import pytest

from tailrace.pipelines.jobs.events import Input


class Reader:
    """Spark's reader: names of options in any case, the last value counts."""

    def __init__(self) -> None:
        self.given: dict[str, str] = {}
        self.readStream = self

    def options(self, **options: str) -> Reader:
        for name, value in options.items():
            self.option(name, value)
        return self

    def option(self, name: str, value: str) -> Reader:
        self.given[name.lower()] = value
        return self

    def format(self, _: str) -> Reader:
        return self

    schema = format

    def load(self) -> Any:
        return self


@pytest.mark.parametrize(
    ("options", "used"), [({}, "json"), ({"valueFormat": "arrow"}, "arrow"), ({"valueformat": "avro"}, "avro")]
)
def test_the_format_that_is_given_counts(options: dict[str, str], used: str) -> None:
    spark = Reader()
    Input("tcp://c:1", "s/t", "a long", options=options).open(cast("Any", spark))
    assert spark.given["valueformat"] == used
