"""Pipelines as values: defaults, the arguments of their jobs, and refusals that name the field."""

from typing import Any

import pytest

from tailrace.common.errors import InvalidSpecError
from tailrace_operator.schema.pipeline_spec import (
    ApplicationSpec,
    ExecutorsSpec,
    PipelineSpec,
    SparkPodSpec,
    bucket_and_path,
)

MIB = 2**20


def pipeline(job: str | None = "archive", **fields: Any) -> dict[str, Any]:
    own = {"output": "s3a://lake/orders"} if job in ("archive", "aggregate") else {}
    spec = {"cluster": "main", "job": job, "stream": "shop/orders", **own, **fields}
    return {"metadata": {"name": "nightly", "namespace": "n", "uid": "u"}, "spec": spec}


def test_an_archive_has_defaults() -> None:
    spec = PipelineSpec.parse(pipeline())
    assert spec.driver == SparkPodSpec(1536 * MIB)
    assert spec.executors == ExecutorsSpec(1, 1, SparkPodSpec(1536 * MIB))
    assert (spec.every_s, spec.schedule, spec.suspend, spec.restarts) == (None, None, False, 6)
    assert spec.object_store is None
    assert spec.image is None
    assert (spec.application, spec.is_endless) == (None, False)


def test_an_application_is_a_file_and_its_arguments_in_their_order() -> None:
    application = {"file": "/app/main.py", "arguments": ["b", "a", "b"]}
    spec = PipelineSpec.parse(pipeline(job=None, stream=None, application=application, continuous=True))
    assert spec.application == ApplicationSpec("/app/main.py", ("b", "a", "b"))
    assert spec.is_endless
    assert (spec.job, spec.stream, spec.written) == (None, None, ())


@pytest.mark.parametrize(
    ("manifest", "field"),
    [
        (pipeline(output=None), "output is required by archive, aggregate and audit"),
        (pipeline(output="/local"), "spec.output"),
        (pipeline(output="s3a://lake"), "spec.output"),
        (pipeline(stream="orders"), "spec.stream"),
        (pipeline("purge"), "spec.job"),
        (pipeline(target="shop/copy"), "target is required by replay, only"),
        (pipeline("replay", checkpoint="s3a://lake/c"), "target is required by replay"),
        (pipeline("replay", target="shop/copy"), "checkpoint is required by replay and backfill"),
        (pipeline("backfill", checkpoint="s3a://lake/c"), "input is required by backfill"),
        (pipeline(everySeconds=5, schedule="@daily"), "everySeconds is for archive and aggregate without a schedule"),
        (
            pipeline("replay", target="shop/copy", checkpoint="s3a://lake/c", everySeconds=5),
            "everySeconds is for archive and aggregate",
        ),
        (pipeline(options=["master=local"]), "the operator sets the options master"),
        (pipeline(options=["--schema=id long"]), "spec.options[0]"),
        (pipeline(options=["key=a", "key=a"]), "is a duplicate"),
        (pipeline(schedule="hourly"), "spec.schedule"),
        (pipeline(sparkConf=["spark.ui.port"]), "spec.sparkConf[0]"),
        (pipeline(driver={"memory": "512Mi"}), "memory must be at least 1024Mi"),
        (pipeline(executors={"cores": 0}), "spec.executors.cores"),
        (pipeline(suspend="yes"), "neither true nor false"),
        ({**pipeline(), "metadata": {"name": "Nightly"}}, "a Pipeline's name"),
    ],
)
def test_refusals_name_the_field(manifest: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidSpecError) as caught:
        PipelineSpec.parse(manifest)
    assert field in str(caught.value)


def test_a_url_has_a_bucket_and_a_path() -> None:
    assert bucket_and_path("s3a://lake/orders/2026/") == ("lake", "orders/2026")
