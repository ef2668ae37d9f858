"""When the files of a batch stay as they are (docs/spark-jobs.md#files)."""

from __future__ import annotations

import pytest

from tailrace.common.errors import BadRequestError, DataLossError
from tailrace.pipelines.jobs.batch_files import keeps_files, position_of
from tailrace.pipelines.jobs.events import Input


def test_a_repeated_batch_replaces_files_that_have_no_more_rows() -> None:
    assert not keeps_files("f", 0, 0, fail_on_data_loss=True)
    assert not keeps_files("f", 5, 5, fail_on_data_loss=True)
    assert not keeps_files("f", 0, 5, fail_on_data_loss=True)


def test_a_repeated_batch_with_fewer_rows_keeps_the_files_or_is_an_error() -> None:
    assert keeps_files("f", 5, 4, fail_on_data_loss=False)
    with pytest.raises(DataLossError, match="f has 5 rows of this batch, which now has only 4"):
        keeps_files("f", 5, 4, fail_on_data_loss=True)


def test_the_option_of_the_source_says_whether_it_is_an_error() -> None:
    assert Input("tcp://c:1", "s/t").fail_on_data_loss
    assert not Input("tcp://c:1", "s/t", options={"FailOnDataLoss": "FALSE"}).fail_on_data_loss
    with pytest.raises(BadRequestError, match="failOnDataLoss: 'no' is none of true, false"):
        assert Input("tcp://c:1", "s/t", options={"failondataloss": "no"}).fail_on_data_loss


def test_a_position_says_nothing_of_where_the_first_batch_began() -> None:
    assert position_of(None) is None
    offset = '{"s/t": {"0": 9}, "from": {"s/t": {"0": 4}}}'
    assert position_of(offset) == {"s/t": {"0": 9}}
