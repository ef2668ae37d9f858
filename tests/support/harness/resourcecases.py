"""Valid and invalid resources, and how the API server refuses the invalid ones.

They run against `tailrace_operator.schema.specs` (tests/unit/operator) and a real API server (tests/e2e/kubernetes).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

API_VERSION: Final = "tailrace.io/v1alpha1"
PLURALS: Final = {
    "StreamCluster": "streamclusters",
    "Stream": "streams",
    "ReaderGroup": "readergroups",
    "Pipeline": "pipelines",
}
TIER2: Final = {"bucket": "data", "endpoint": "http://minio.storage.svc:9000", "credentialsSecret": "minio"}
BASES: Final[dict[str, dict[str, Any]]] = {
    "StreamCluster": {"tier2": TIER2},
    "Stream": {"cluster": "prod", "scope": "shop"},
    "ReaderGroup": {"cluster": "prod", "scope": "shop", "streams": ["orders"]},
    "Pipeline": {"cluster": "prod", "job": "archive", "stream": "shop/orders", "output": "s3a://lake/orders"},
}


@dataclass(frozen=True)
class Case:
    """A new resource: the base of its kind and `fields`. ``refused``: part of the error; empty: it is accepted."""

    title: str
    kind: str
    fields: Mapping[str, Any]
    refused: str = ""
    name: str = "case"
    without: tuple[str, ...] = ()

    def manifest(self) -> dict[str, Any]:
        """Return the manifest to apply."""
        return manifest(self.kind, self.name, self.fields, self.without)


@dataclass(frozen=True)
class Edit:
    """An existing resource, and an update with other fields."""

    title: str
    kind: str
    before: Mapping[str, Any] = field(default_factory=dict)
    after: Mapping[str, Any] = field(default_factory=dict)
    refused: str = ""
    name: str = "case"


def manifest(kind: str, name: str, fields: Mapping[str, Any], without: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return a resource of that kind with the required fields and these fields in its spec."""
    spec = {key: value for key, value in {**BASES[kind], **fields}.items() if key not in without}
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": name}, "spec": spec}


def _store(**fields: Any) -> dict[str, Any]:
    return {"segmentStore": fields}


def _tier2(**fields: Any) -> dict[str, Any]:
    return {"tier2": {**TIER2, **fields}}


def _scaling(**fields: Any) -> dict[str, Any]:
    return {"scaling": fields}


def _retention(kind: str, **bounds: str) -> dict[str, Any]:
    return {"retention": {"type": kind, **bounds}}


CLUSTER_CASES: Final = (
    Case("a cluster with what it needs", "StreamCluster", {}),
    Case(
        "a cluster with everything",
        "StreamCluster",
        {
            "containers": 1024,
            "segmentStore": {"replicas": 16, "workers": 64, "memory": "64Gi", "cpu": "63500m"},
            "controller": {"replicas": 3, "memory": "1G", "cpu": "0.5"},
            "tier2": {**TIER2, "prefix": "a/b-c/d.e", "region": "eu-central-1"},
            "adoptClusterId": "01234567-89ab-cdef-0123-456789abcdef",
            "image": "registry.example:5000/tailrace@sha256:0123",
            "imagePullPolicy": "IfNotPresent",
        },
    ),
    Case("the longest name of a cluster", "StreamCluster", {}, name="c" * 40),
    Case("a name that is too long", "StreamCluster", {}, "has at most 40 characters", "c" * 41),
    Case("a name with a dot", "StreamCluster", {}, "has at most 40 characters", "a.b"),
    Case("a name that begins with a digit", "StreamCluster", {}, "beginning with a letter", "1a"),
    Case("no Tier 2", "StreamCluster", {}, "spec.tier2", without=("tier2",)),
    Case("no containers", "StreamCluster", {"containers": 0}, "spec.containers"),
    Case("too many containers", "StreamCluster", {"containers": 1025}, "spec.containers"),
    Case("no stores", "StreamCluster", _store(replicas=0), "spec.segmentStore.replicas"),
    Case("too many workers", "StreamCluster", _store(replicas=64, workers=17), "must be at most 1024"),
    Case("memory without its unit", "StreamCluster", _store(memory="1536"), "memory must be at least 64Mi"),
    Case("memory that is no quantity", "StreamCluster", _store(memory="1536 MB"), "spec.segmentStore.memory"),
    Case(
        "quantities as numbers",
        "StreamCluster",
        {"segmentStore": {"memory": 2**31, "cpu": 2}, "controller": {"memory": 2**29, "cpu": 1}},
    ),
    Case("a number without its unit", "StreamCluster", _store(memory=1536), "memory must be at least 64Mi"),
    Case("a number below nothing", "StreamCluster", _store(memory=-(2**31)), "spec.segmentStore.memory"),
    Case("a number with more digits than a text", "StreamCluster", _store(memory=10**12), "spec.segmentStore.memory"),
    Case("a fraction as a number", "StreamCluster", _store(memory="2Gi", cpu=0.5), "spec.segmentStore.cpu"),
    Case("memory that is a truth", "StreamCluster", _store(memory=True), "spec.segmentStore.memory"),
    Case("no processor, as a number", "StreamCluster", {"controller": {"cpu": 0}}, "cpu must be more than 0"),
    Case("many processors", "StreamCluster", {"controller": {"cpu": 10_000}}, "spec.controller.cpu"),
    Case("no processor", "StreamCluster", {"controller": {"cpu": "0"}}, "cpu must be more than 0"),
    Case("controllers with little memory", "StreamCluster", {"controller": {"memory": "175Mi"}}, "at least 176Mi"),
    Case(
        "controllers with little memory, as a number",
        "StreamCluster",
        {"controller": {"memory": 176 * 2**20 - 1}},
        "memory must be at least 176Mi, for example 512Mi",
    ),
    Case("a bucket in capitals", "StreamCluster", _tier2(bucket="Data"), "spec.tier2.bucket"),
    Case("a short bucket", "StreamCluster", _tier2(bucket="ab"), "spec.tier2.bucket"),
    Case("a prefix with a slash at its end", "StreamCluster", _tier2(prefix="a/"), "spec.tier2.prefix"),
    Case("a prefix that climbs", "StreamCluster", _tier2(prefix="a/../b"), "spec.tier2.prefix"),
    Case("an endpoint without its scheme", "StreamCluster", _tier2(endpoint="minio:9000"), "spec.tier2.endpoint"),
    Case("an endpoint with a password", "StreamCluster", _tier2(endpoint="http://a:b@c"), "spec.tier2.endpoint"),
    Case("a Secret in capitals", "StreamCluster", _tier2(credentialsSecret="S"), "spec.tier2.credentialsSecret"),
    Case("an id that is none", "StreamCluster", {"adoptClusterId": "mine"}, "spec.adoptClusterId"),
    Case("an unknown pull policy", "StreamCluster", {"imagePullPolicy": "Often"}, "spec.imagePullPolicy"),
)
STREAM_CASES: Final = (
    Case("a stream with what it needs", "Stream", {}),
    Case(
        "a stream with everything",
        "Stream",
        {
            "streamName": "Orders.2-b",
            "scaling": {"type": "EventRate", "target": 1000, "scaleFactor": 2, "minSegments": 4},
            "retention": {"type": "Time", "min": "36h", "max": "7d"},
            "tags": ["shop", "a tag with spaces"],
            "rolloverSize": "64Mi",
            "deletionPolicy": "Delete",
        },
    ),
    Case("scaling by bytes", "Stream", _scaling(type="ByteRate", target=1)),
    Case("as many segments as there may be", "Stream", _scaling(minSegments=10_000)),
    Case("retention by size", "Stream", _retention("Size", min="1.5Gi", max="1536Mi")),
    Case("retention without a maximum", "Stream", _retention("Size", min="4096")),
    Case("retention of what is not read", "Stream", _retention("Time", min="0s")),
    Case("retention of a single byte", "Stream", _retention("Size", min="0", max="0.001")),
    Case("no cluster", "Stream", {}, "spec.cluster", without=("cluster",)),
    Case("no scope", "Stream", {}, "spec.scope", without=("scope",)),
    Case("an internal scope", "Stream", {"scope": "_system"}, "spec.scope"),
    Case("a scope of dots", "Stream", {"scope": ".."}, "spec.scope"),
    Case("a scope with a slash", "Stream", {"scope": "a/b"}, "spec.scope"),
    Case("a long scope", "Stream", {"scope": "s" * 256}, "spec.scope"),
    Case("the longest names", "Stream", {"scope": "s" * 255, "streamName": "n" * 250}),
    Case("a long stream name", "Stream", {"streamName": "n" * 251}, "spec.streamName"),
    Case("an empty stream name", "Stream", {"streamName": ""}, "spec.streamName"),
    Case("a resource with a name that no stream has", "Stream", {}, "streamName must be set", "n" * 251),
    Case("a long resource name and a stream name", "Stream", {"streamName": "n"}, name="n" * 253),
    Case("an unknown type of scaling", "Stream", _scaling(type="Auto"), "spec.scaling.type"),
    Case("fixed scaling with a target", "Stream", _scaling(target=5), "allows neither target nor scaleFactor"),
    Case("fixed scaling with a factor", "Stream", _scaling(type="Fixed", scaleFactor=2), "allows neither target nor"),
    Case("rates without a target", "Stream", _scaling(type="ByteRate"), "scaling need a target"),
    Case("a target of nothing", "Stream", _scaling(type="EventRate", target=0), "spec.scaling.target"),
    Case("no segments", "Stream", _scaling(minSegments=0), "spec.scaling.minSegments"),
    Case("too many segments", "Stream", _scaling(minSegments=10_001), "spec.scaling.minSegments"),
    Case("retention without a minimum", "Stream", _retention("Size", max="1Gi"), "spec.retention.min"),
    Case("retention without its type", "Stream", {"retention": {"min": "1Gi"}}, "spec.retention.type"),
    Case(
        "sizes that are durations", "Stream", _retention("Size", min="7d"), "retention must be sizes, for example 10Gi"
    ),
    Case(
        "a size and a duration",
        "Stream",
        _retention("Size", min="1Gi", max="1d"),
        "retention must be sizes, for example 10Gi",
    ),
    Case(
        "durations that are sizes",
        "Stream",
        _retention("Time", min="1Gi"),
        "retention must be durations, for example 7d",
    ),
    Case(
        "a duration without its unit",
        "Stream",
        _retention("Time", min="7"),
        "retention must be durations, for example 7d",
    ),
    Case("sizes the wrong way round", "Stream", _retention("Size", min="1Gi", max="1G"), "min must not be above max"),
    Case(
        "durations the wrong way round", "Stream", _retention("Time", min="25h", max="1d"), "min must not be above max"
    ),
    Case("a largest size of nothing", "Stream", _retention("Size", min="0", max="0.0Ki"), "max must be more than 0"),
    Case("a largest duration of nothing", "Stream", _retention("Time", min="0s", max="0d"), "max must be more than 0"),
    Case("a size without end", "Stream", _retention("Size", min="999999999999Ti"), "must be at most 1Ei"),
    Case("bounds that are no numbers", "Stream", _retention("Size", min="lots"), "spec.retention.min"),
    Case("a large rollover size", "Stream", {"rolloverSize": "1048577Ti"}, "a size must be at most 1Ei"),
    Case("a tag twice", "Stream", {"tags": ["a", "a"]}, "spec.tags[1]"),
    Case("as many tags as there may be", "Stream", {"tags": [f"tag-{number}" for number in range(127)]}),
    Case("too many tags", "Stream", {"tags": [f"tag-{number}" for number in range(128)]}, "spec.tags"),
    Case("a long tag", "Stream", {"tags": ["t" * 256]}, "spec.tags[0]"),
    Case("an unknown deletion policy", "Stream", {"deletionPolicy": "Keep"}, "spec.deletionPolicy"),
)
GROUP_CASES: Final = (
    Case("a reader group with what it needs", "ReaderGroup", {}),
    Case(
        "a reader group with everything",
        "ReaderGroup",
        {
            "groupName": "Billing",
            "streams": ["orders", "other/payments"],
            "start": "Tail",
            "flavour": "Java",
            "retentionType": "AutomaticAtLastCheckpoint",
            "checkpointIntervalMs": -1,
            "maxOutstandingCheckpoints": 10,
            "groupRefreshMs": 1000,
            "lagThreshold": {"bytes": "1Gi", "seconds": 60},
            "deletionPolicy": "Delete",
        },
    ),
    Case("a group that others made", "ReaderGroup", {"flavour": "Rust"}),
    Case("as many streams as there may be", "ReaderGroup", {"streams": [f"s{number}" for number in range(1000)]}),
    Case("too many streams", "ReaderGroup", {"streams": [f"s{number}" for number in range(1001)]}, "spec.streams"),
    Case("no streams", "ReaderGroup", {"streams": []}, "spec.streams"),
    Case("a stream twice", "ReaderGroup", {"streams": ["a", "a"]}, "spec.streams[1]"),
    Case("a stream in two scopes", "ReaderGroup", {"streams": ["a/b/c"]}, "spec.streams[0]"),
    Case("an internal group", "ReaderGroup", {"groupName": "_RGx"}, "spec.groupName"),
    Case("a name that no group has", "ReaderGroup", {}, "groupName must be set", "g" * 251),
    Case(
        "a Rust group that publishes",
        "ReaderGroup",
        {"flavour": "Rust", "retentionType": "ManualStreamCut"},
        "retentionType must be None",
    ),
    Case("checkpoints all the time", "ReaderGroup", {"checkpointIntervalMs": 999}, "must be at least 1000"),
    Case("checkpoints before time", "ReaderGroup", {"checkpointIntervalMs": -2}, "spec.checkpointIntervalMs"),
    Case("a threshold of nothing", "ReaderGroup", {"lagThreshold": {}}, "lagThreshold needs bytes, seconds"),
    Case("a large threshold", "ReaderGroup", {"lagThreshold": {"bytes": "1048577Ti"}}, "a size must be at most 1Ei"),
    Case("an unknown flavour", "ReaderGroup", {"flavour": "Go"}, "spec.flavour"),
    Case("an unknown start", "ReaderGroup", {"start": "Middle"}, "spec.start"),
)
_OF_JOBS: Final = ("job", "stream", "output")
_PROGRAM: Final = {"file": "s3a://lake/programs/late-orders.py", "arguments": ["--threshold=5"]}
_REPLAY: Final = {"job": "replay", "target": "shop/copy", "checkpoint": "s3a://lake/c"}
_BACKFILL: Final = {"job": "backfill", "input": "s3a://lake/in/*.parquet", "checkpoint": "s3a://lake/c"}
PIPELINE_CASES: Final = (
    Case("an archive", "Pipeline", {}),
    Case(
        "an archive with everything",
        "Pipeline",
        {
            "options": ["schema=id long, at timestamp", "time-field=at", "option=maxBytesPerTrigger=1000"],
            "everySeconds": 30,
            "suspend": True,
            "restarts": 0,
            "objectStore": {"endpoint": "https://s3.example", "credentialsSecret": "lake", "region": "eu-1"},
            "driver": {"memory": "2Gi", "cpu": 1},
            "executors": {"instances": 4, "cores": 2, "memory": "4Gi", "cpu": "2"},
            "sparkConf": ["spark.sql.shuffle.partitions=8"],
            "image": "registry.example/spark:1",
            "imagePullPolicy": "Always",
        },
    ),
    Case("a scheduled one", "Pipeline", {"schedule": "*/15 0-6 * * 1-5"}),
    Case("a scheduled one by a word", "Pipeline", {"schedule": "@daily"}),
    Case("a replay", "Pipeline", _REPLAY, without=("output",)),
    Case("a backfill", "Pipeline", _BACKFILL, without=("output",)),
    Case("the longest name of a pipeline", "Pipeline", {}, name="p" * 40),
    Case("a name of a pipeline that is too long", "Pipeline", {}, "has at most 40 characters", "p" * 41),
    Case("an archive without a folder", "Pipeline", {}, "output is required", without=("output",)),
    Case("a replay with a folder", "Pipeline", _REPLAY, "output is required"),
    Case("an archive with a target", "Pipeline", {"target": "shop/copy"}, "target is required by replay, only"),
    Case("an archive with an input", "Pipeline", {"input": "s3a://lake/in"}, "input is required by backfill, only"),
    Case("an archive with a checkpoint", "Pipeline", {"checkpoint": "s3a://lake/c"}, "checkpoint is required"),
    Case("an endless replay", "Pipeline", {**_REPLAY, "everySeconds": 5}, "everySeconds is for", without=("output",)),
    Case("without end and scheduled", "Pipeline", {"everySeconds": 5, "schedule": "@daily"}, "everySeconds is for"),
    Case("an unknown job", "Pipeline", {"job": "purge"}, "spec.job"),
    Case("an audit", "Pipeline", {"job": "audit", "options": ["ignore-orphans"]}, without=("stream",)),
    Case("an audit of a stream", "Pipeline", {"job": "audit"}, "stream is required by every job but audit"),
    Case(
        "an audit elsewhere",
        "Pipeline",
        {"job": "audit", "objectStore": {"endpoint": "http://minio:9000", "credentialsSecret": "minio"}},
        "audit has no objectStore",
        without=("stream",),
    ),
    Case("an application", "Pipeline", {"application": _PROGRAM}, without=_OF_JOBS),
    Case(
        "an application in the image, without end, somewhere",
        "Pipeline",
        {
            "application": {"file": "/app/main.py", "arguments": ["a", "a", ""]},
            "continuous": True,
            "serviceAccountName": "lake-reader",
            "nodeSelector": {"tailrace.io/pool": "spark", "disk": ""},
            "tolerations": [{"key": "spark", "operator": "Exists", "effect": "NoSchedule"}, {"operator": "Exists"}],
        },
        without=_OF_JOBS,
    ),
    Case("a job and an application", "Pipeline", {"application": _PROGRAM}, "either job or application"),
    Case("neither", "Pipeline", {}, "either job or application", without=_OF_JOBS),
    Case(
        "an application with options",
        "Pipeline",
        {"application": _PROGRAM, "options": ["schema=id long"]},
        "an application has arguments",
        without=_OF_JOBS,
    ),
    Case(
        "an application of Java",
        "Pipeline",
        {"application": {"file": "/app.jar"}},
        "spec.application.file",
        without=_OF_JOBS,
    ),
    Case(
        "an application without end, scheduled",
        "Pipeline",
        {"application": _PROGRAM, "continuous": True, "schedule": "@daily"},
        "continuous is for an application",
        without=_OF_JOBS,
    ),
    Case("a continuous job", "Pipeline", {"continuous": True}, "continuous is for an application"),
    Case("a label of a node with a space", "Pipeline", {"nodeSelector": {"disk": "big one"}}, "spec.nodeSelector"),
    Case("an unknown effect", "Pipeline", {"tolerations": [{"effect": "Never"}]}, "spec.tolerations[0].effect"),
    Case("an option without a value, of the operator", "Pipeline", {"options": ["json"]}, "the operator sets"),
    Case("a stream without a scope", "Pipeline", {"stream": "orders"}, "spec.stream"),
    Case("a folder of another file system", "Pipeline", {"output": "hdfs://lake/orders"}, "spec.output"),
    Case("a bucket as a folder", "Pipeline", {"output": "s3a://lake"}, "spec.output"),
    Case("a pattern as a folder", "Pipeline", {"output": "s3a://lake/or*"}, "spec.output"),
    Case("an option of the operator", "Pipeline", {"options": ["every=5"]}, "the operator sets the options"),
    Case("an option with dashes", "Pipeline", {"options": ["--schema=id long"]}, "spec.options[0]"),
    Case("an option in two lines", "Pipeline", {"options": ["schema=id\nlong"]}, "spec.options[0]"),
    Case("a schedule of four fields", "Pipeline", {"schedule": "0 3 * *"}, "spec.schedule"),
    Case("a driver with little memory", "Pipeline", {"driver": {"memory": "1000Mi"}}, "at least 1024Mi"),
    Case("no cores", "Pipeline", {"executors": {"cores": 0}}, "spec.executors.cores"),
    Case("a setting that is not Spark's", "Pipeline", {"sparkConf": ["hadoop.x=1"]}, "spec.sparkConf[0]"),
)
CASES: Final = CLUSTER_CASES + STREAM_CASES + GROUP_CASES + PIPELINE_CASES

EDITS: Final = (
    Edit("containers of a cluster without data", "StreamCluster", {}, {"containers": 17}),
    Edit("memory", "StreamCluster", {}, _store(memory="2Gi")),
    Edit("memory from a text to a number", "StreamCluster", _store(memory="2Gi"), _store(memory=2**32)),
    Edit("memory as too small a number", "StreamCluster", _store(memory=2**32), _store(memory=1), "at least 64Mi"),
    Edit("cluster", "Stream", {}, {"cluster": "other"}, "cluster is immutable"),
    Edit("scope", "Stream", {}, {"scope": "other"}, "scope is immutable"),
    Edit("another name", "Stream", {"streamName": "a"}, {"streamName": "b"}, "name of the stream, is immutable"),
    Edit("a name taken away", "Stream", {"streamName": "a"}, {}, "name of the stream, is immutable"),
    Edit("a name given", "Stream", {}, {"streamName": "a"}, "name of the stream, is immutable"),
    Edit("the same name, given", "Stream", {}, {"streamName": "case"}),
    Edit(
        "scaling, retention and tags",
        "Stream",
        _scaling(minSegments=2),
        {**_retention("Time", min="1d"), "tags": ["a"]},
    ),
    Edit("deletion policy", "Stream", {}, {"deletionPolicy": "Delete"}),
    Edit("a rate policy", "Stream", {}, _scaling(type="EventRate", target=5)),
    Edit("cluster of a group", "ReaderGroup", {}, {"cluster": "other"}, "cluster is immutable"),
    Edit("scope of a group", "ReaderGroup", {}, {"scope": "other"}, "scope is immutable"),
    Edit("flavour", "ReaderGroup", {}, {"flavour": "Rust"}, "flavour is immutable"),
    Edit("start", "ReaderGroup", {}, {"start": "Tail"}, "start is immutable"),
    Edit("name of a group", "ReaderGroup", {}, {"groupName": "g"}, "name of the reader group, is immutable"),
    Edit("all of a pipeline", "Pipeline", {}, {"output": "s3a://other/orders", "everySeconds": 5, "suspend": True}),
    Edit("streams of a group", "ReaderGroup", {}, {"streams": ["a", "b"]}),
)
