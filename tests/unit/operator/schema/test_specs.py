"""Specs of resources as values: defaults, units, and refusals that name the field."""

from typing import Any

import pytest

from tailrace.common.errors import InvalidSpecError
from tailrace_operator.schema.specs import (
    ControllerSpec,
    LagThreshold,
    ReaderGroupSpec,
    RetentionSpec,
    ScalingSpec,
    SegmentStoreSpec,
    StreamClusterSpec,
    StreamSpec,
    Tier2Spec,
)

MIB = 2**20
TIER2 = {"bucket": "data", "endpoint": "http://minio.storage.svc:9000", "credentialsSecret": "minio"}


def manifest(spec: dict[str, Any], name: str = "orders") -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "n", "uid": "u"}, "spec": spec}


def stream(**fields: Any) -> dict[str, Any]:
    return manifest({"cluster": "c", "scope": "shop", **fields})


def group(**fields: Any) -> dict[str, Any]:
    return manifest({"cluster": "c", "scope": "shop", "streams": ["orders"], **fields})


def test_a_cluster_has_the_defaults_of_the_dataclasses() -> None:
    spec = StreamClusterSpec.parse(manifest({"tier2": TIER2}, "prod"))
    assert spec == StreamClusterSpec(Tier2Spec("data", "http://minio.storage.svc:9000", "minio"))
    assert (spec.containers, spec.segment_store) == (16, SegmentStoreSpec(2, 2, 1536 * MIB, None))
    assert spec.controller == ControllerSpec(2, 512 * MIB, None)


def test_a_cluster_with_everything() -> None:
    spec = StreamClusterSpec.parse(
        manifest(
            {
                "containers": 64,
                "segmentStore": {"replicas": 3, "workers": 4, "memory": "4Gi", "cpu": "3500m"},
                "controller": {"replicas": 1, "memory": "1G", "cpu": "1.5"},
                "tier2": {**TIER2, "prefix": "a/b", "region": "eu-1"},
                "adoptClusterId": "01234567-89ab-cdef-0123-456789abcdef",
                "image": "localhost/tailrace:1",
                "imagePullPolicy": "Never",
            },
            "prod",
        )
    )
    assert spec.segment_store == SegmentStoreSpec(3, 4, 4096 * MIB, 3500)
    assert spec.controller == ControllerSpec(1, 10**9, 1500)
    assert spec.tier2.url == "s3://data/a/b"
    assert spec.cluster_id("other") == "01234567-89ab-cdef-0123-456789abcdef"
    assert (spec.containers, spec.image, spec.image_pull_policy) == (64, "localhost/tailrace:1", "Never")


def test_the_uid_is_the_id_of_a_cluster_that_adopts_none() -> None:
    spec = StreamClusterSpec.parse(manifest({"tier2": TIER2}, "prod"))
    assert (spec.cluster_id("u"), spec.tier2.url) == ("u", "s3://data")


def test_a_stream_has_the_defaults_of_the_dataclasses() -> None:
    spec = StreamSpec.parse(stream())
    assert spec == StreamSpec("c", "shop", "orders")
    assert (spec.scaling, spec.deletion_policy) == (ScalingSpec("Fixed", 1, 0, 0), "Retain")


def test_a_stream_with_everything() -> None:
    spec = StreamSpec.parse(
        stream(
            streamName="Orders.2",
            scaling={"type": "EventRate", "target": 100, "scaleFactor": 3, "minSegments": 2},
            retention={"type": "Time", "min": "36h", "max": "7d"},
            tags=["a", "b"],
            rolloverSize="64Mi",
            deletionPolicy="Delete",
        )
    )
    assert spec.stream_name == "Orders.2"
    assert spec.scaling == ScalingSpec("EventRate", 2, 100, 3)
    assert spec.retention == RetentionSpec("Time", 36 * 3_600_000, 7 * 86_400_000)
    assert (spec.tags, spec.rollover_size_bytes, spec.deletion_policy) == (("a", "b"), 64 * MIB, "Delete")


def test_size_retention_may_have_no_maximum() -> None:
    assert StreamSpec.parse(stream(retention={"type": "Size", "min": "1.5Gi"})).retention == RetentionSpec(
        "Size", 1536 * MIB, None
    )


def test_a_rate_policy_splits_in_two_when_it_does_not_say() -> None:
    assert StreamSpec.parse(stream(scaling={"type": "ByteRate", "target": 9})).scaling == ScalingSpec(
        "ByteRate", 1, 9, 2
    )


def test_a_reader_group_has_the_defaults_of_the_dataclasses() -> None:
    assert ReaderGroupSpec.parse(group()) == ReaderGroupSpec("c", "shop", "orders", ("shop/orders",))


def test_a_reader_group_with_everything() -> None:
    spec = ReaderGroupSpec.parse(
        group(
            groupName="g",
            streams=["b", "other/a", "shop/b"],
            start="Tail",
            retentionType="ManualStreamCut",
            checkpointIntervalMs=-1,
            lagThreshold={"bytes": "1Gi", "seconds": 60},
            deletionPolicy="Delete",
        )
    )
    assert (spec.group_name, spec.streams, spec.start) == ("g", ("shop/b", "other/a"), "Tail")
    assert (spec.retention_type, spec.checkpoint_interval_ms) == ("ManualStreamCut", None)
    assert spec.lag_threshold == LagThreshold(1024 * MIB, 60)


@pytest.mark.parametrize(
    ("found", "field", "problem"),
    [
        (manifest({}), "spec.tier2", "required"),
        (manifest({"tier2": TIER2}, "a.b"), "metadata.name", "name"),
        (manifest({"tier2": TIER2 | {"bucket": "x"}}), "spec.tier2.bucket", "at least 3"),
        (manifest({"tier2": TIER2, "containers": 0}), "spec.containers", "below 1"),
        (manifest({"tier2": TIER2, "containers": True}), "spec.containers", "is not an integer"),
        (manifest({"tier2": TIER2, "controller": {"memory": "12"}}), "spec.controller.memory", "at least 176Mi"),
        (manifest({"tier2": TIER2, "controller": {"cpu": "0m"}}), "spec.controller.cpu", "more than 0"),
        (manifest({"tier2": TIER2, "segmentStore": {"memory": "1 Gi"}}), "spec.segmentStore.memory", "does not match"),
    ],
)
def test_a_wrong_cluster_is_refused(found: dict[str, Any], field: str, problem: str) -> None:
    with pytest.raises(InvalidSpecError, match=problem) as caught:
        StreamClusterSpec.parse(found)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("fields", "field", "problem"),
    [
        ({"scope": "a_b"}, "spec.scope", "does not match"),
        ({"scope": "a\n"}, "spec.scope", "does not match"),
        ({"scaling": {"type": "Fixed", "target": 1}}, "spec.scaling", "neither target nor"),
        ({"scaling": {"type": "EventRate"}}, "spec.scaling", "need a target"),
        ({"scaling": {"minSegments": 0}}, "spec.scaling.minSegments", "below 1"),
        ({"retention": {"type": "Size", "min": "7d"}}, "spec.retention", "must be sizes"),
        ({"retention": {"type": "Time", "min": "7Gi"}}, "spec.retention", "must be durations"),
        ({"retention": {"type": "Time", "min": "25h", "max": "1d"}}, "spec.retention", "above max"),
        ({"retention": {"type": "Time", "min": "0s", "max": "0s"}}, "spec.retention.max", "must be more than 0"),
        ({"retention": {"type": "Size"}}, "spec.retention.min", "required"),
        ({"rolloverSize": "2000000Ti"}, "spec.rolloverSize", "at most 1Ei"),
        ({"tags": ["a", "a"]}, "spec.tags[1]", "is a duplicate"),
        ({"tags": ["x"] * 128}, "spec.tags", "at most 127"),
        ({"tags": [""]}, "spec.tags[0]", "at least 1"),
        ({"deletionPolicy": "delete"}, "spec.deletionPolicy", "not one of Retain, Delete"),
    ],
)
def test_a_wrong_stream_is_refused(fields: dict[str, Any], field: str, problem: str) -> None:
    with pytest.raises(InvalidSpecError, match=problem) as caught:
        StreamSpec.parse(stream(**fields))
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("fields", "field", "problem"),
    [
        ({"streams": []}, "spec.streams", "at least 1"),
        ({"streams": ["a/b/c"]}, r"spec.streams[0]", "does not match"),
        ({"flavour": "Rust", "retentionType": "ManualStreamCut"}, "spec", "publish no cuts"),
        ({"checkpointIntervalMs": 999}, "spec.checkpointIntervalMs", "at least 1000"),
        ({"lagThreshold": {}}, "spec.lagThreshold", "needs bytes, seconds"),
        ({"lagThreshold": {"seconds": 0}}, "spec.lagThreshold.seconds", "below 1"),
    ],
)
def test_a_wrong_reader_group_is_refused(fields: dict[str, Any], field: str, problem: str) -> None:
    with pytest.raises(InvalidSpecError, match=problem) as caught:
        ReaderGroupSpec.parse(group(**fields))
    assert caught.value.field == field


def test_a_resource_whose_name_is_too_long_for_a_stream_needs_another_one() -> None:
    long = manifest({"cluster": "c", "scope": "s"}, "n" * 251)
    with pytest.raises(InvalidSpecError, match="must be set") as caught:
        StreamSpec.parse(long)
    assert caught.value.field == "spec.streamName"
