"""Options of the sink that a job leaves to its user (docs/spark-jobs.md#replay)."""

from __future__ import annotations

import pytest

from tailrace.client.model import StreamName
from tailrace.common.errors import BadRequestError
from tailrace.pipelines.jobs.target import Target

STREAM = StreamName("s", "t")


def test_an_option_of_the_sink_is_passed_on() -> None:
    options = Target("tcp://c:9090", STREAM, {"unresolved": "keep"}).all_options()
    assert options == {"unresolved": "keep", "controller": "tcp://c:9090", "stream": "s/t"}


@pytest.mark.parametrize("name", ["Value", "batch", "delivery"])
def test_an_option_that_the_job_sets_is_refused(name: str) -> None:
    """A job that writes each event once, and can be repeated, needs the sink's record of its batches."""
    with pytest.raises(BadRequestError, match=f"the sink's option {name} cannot be given"):
        Target("tcp://c:9090", STREAM, {name: "atLeastOnce"}).all_options()
