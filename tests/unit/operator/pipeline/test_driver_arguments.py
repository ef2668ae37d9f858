"""Arguments of a driver's container: each job's own, an application's as they are given, all of them literally."""

from typing import Any

import pytest

from tailrace_operator.pipeline.arguments import driver_arguments
from tailrace_operator.pipeline.plan import Plan
from tailrace_operator.schema.pipeline_spec import PipelineSpec
from tailrace_operator.schema.specs import Tier2Spec

TIER2 = Tier2Spec("tailrace", "http://minio.n:9000", "minio", "trial", "eu-1")
ORDERS = {"stream": "shop/orders"}
LAKE = {"output": "s3a://lake/orders"}


def arguments(**fields: Any) -> list[str]:
    manifest = {"metadata": {"name": "nightly", "namespace": "n", "uid": "u"}, "spec": {"cluster": "main", **fields}}
    return driver_arguments(Plan("nightly", "n", "u", PipelineSpec.parse(manifest), TIER2, "spark:1", ""))


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"job": "archive", **ORDERS, **LAKE}, ["archive", "shop/orders", "s3a://lake/orders"]),
        (
            {
                "job": "aggregate",
                **ORDERS,
                **LAKE,
                "options": ["window=1 day", "key=dest", "key=carrier"],
                "everySeconds": 30,
            },
            [
                "aggregate",
                "shop/orders",
                "s3a://lake/orders",
                "--window=1 day",
                "--key=dest",
                "--key=carrier",
                "--every=30",
            ],
        ),
        (
            {"job": "replay", **ORDERS, "target": "shop/copy", "checkpoint": "s3a://lake/c", "schedule": "0 3 * * *"},
            ["replay", "shop/orders", "shop/copy", "--checkpoint=s3a://lake/c"],
        ),
        (
            {
                "job": "backfill",
                **ORDERS,
                "input": "s3a://lake/in/*.parquet",
                "checkpoint": "s3a://lake/c",
                "options": ["order-by=at"],
            },
            ["backfill", "s3a://lake/in/*.parquet", "shop/orders", "--checkpoint=s3a://lake/c", "--order-by=at"],
        ),
        (
            {"job": "audit", "output": "s3a://lake/audits", "options": ["ignore-orphans"]},
            [
                "audit",
                "s3://tailrace/trial",
                "s3a://lake/audits",
                "--option=tier2Endpoint=http://minio.n:9000",
                "--dated",
                "--no-page",
                "--option=tier2Region=eu-1",
                "--ignore-orphans",
            ],
        ),
    ],
)
def test_each_job_gets_its_arguments(fields: dict[str, Any], expected: list[str]) -> None:
    found = arguments(**fields)
    assert found[: 1 + len(expected)] == ["driver", *expected]
    assert found[1 + len(expected)].startswith("--master=")


def test_an_application_gets_its_own_arguments_alone() -> None:
    application = {"file": "s3a://lake/late.py", "arguments": ["--limit", "5", "$(HOME)", "5"]}
    found = arguments(application=application)
    assert found == ["application", "s3a://lake/late.py", "--limit", "5", "$$(HOME)", "5"]


def test_settings_of_the_specification_win_over_those_of_a_job() -> None:
    given = ["spark.sql.session.timeZone=CET", "spark.master=local", "spark.ui.enabled=false"]
    found = arguments(job="archive", **ORDERS, **LAKE, sparkConf=given)
    assert "--conf=spark.sql.session.timeZone=CET" in found
    assert "--conf=spark.ui.enabled=false" in found
    assert "--conf=spark.ui.enabled=true" not in found
    assert not [text for text in found if text.startswith("--conf=spark.master")]
