"""The CustomResourceDefinitions: names, versions, columns, subresources."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from tailrace_operator.schema import grammar, pipeline, readergroup, stream, streamcluster
from tailrace_operator.schema.build import Schema, struct

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tailrace_operator.schema.build import Rule


@dataclass(frozen=True, slots=True)
class Column:
    """A column of ``kubectl get``; a wide one is shown with ``-o wide`` only."""

    name: str
    json_path: str
    description: str
    _: KW_ONLY
    kind: str = "string"
    wide: bool = False

    def schema(self) -> dict[str, Any]:
        """Return the entry of ``additionalPrinterColumns``."""
        found = {"name": self.name, "type": self.kind, "jsonPath": self.json_path, "description": self.description}
        return {**found, "priority": 1} if self.wide else found


def _condition(kind: str, part: str = "status") -> str:
    return f'.status.conditions[?(@.type=="{kind}")].{part}'


_READY: Final = (
    Column("Ready", _condition("Ready"), "Whether the resource is ready."),
    Column("Reason", _condition("Ready", "reason"), "Reason of condition Ready."),
)
_AGE: Final = Column("Age", ".metadata.creationTimestamp", "Time since the resource was created.", kind="date")


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """One kind of resource. ``scale``: paths of the desired and the actual number for ``kubectl scale``."""

    kind: str
    plural: str
    short: str
    description: str
    spec: Callable[[], Schema]
    status: Callable[[], Schema]
    rules: Callable[[], list[Rule]]
    columns: Sequence[Column]
    scale: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Return the name of the CustomResourceDefinition."""
        return f"{self.plural}.{grammar.GROUP}"

    def schema(self) -> Schema:
        """Return the ``openAPIV3Schema``."""
        kinds = {
            "apiVersion": {"type": "string", "description": "Version of the resource's schema."},
            "kind": {"type": "string", "description": "Kind of the resource."},
            "metadata": {"type": "object"},
        }
        return struct(
            self.description,
            {**kinds, "spec": self.spec(), "status": self.status()},
            required=("spec",),
            rules=self.rules(),
        )

    def manifest(self) -> dict[str, Any]:
        """Return the CustomResourceDefinition."""
        return {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": self.name, "labels": {"app.kubernetes.io/part-of": "tailrace"}},
            "spec": {
                "group": grammar.GROUP,
                "scope": "Namespaced",
                "names": {
                    "kind": self.kind,
                    "listKind": f"{self.kind}List",
                    "plural": self.plural,
                    "singular": self.kind.lower(),
                    "shortNames": [self.short],
                    "categories": [grammar.CATEGORY],
                },
                "versions": [
                    {
                        "name": grammar.VERSION,
                        "served": True,
                        "storage": True,
                        "subresources": {"status": {}, **({"scale": dict(self.scale)} if self.scale else {})},
                        "additionalPrinterColumns": [column.schema() for column in self.columns],
                        "schema": {"openAPIV3Schema": self.schema()},
                    }
                ],
            },
        }


STREAM_CLUSTER: Final = Definition(
    kind="StreamCluster",
    plural="streamclusters",
    short="tsc",
    description="A stream storage cluster: controllers and segment stores over one bucket.",
    spec=streamcluster.spec,
    status=streamcluster.status,
    rules=streamcluster.root_rules,
    columns=(
        *_READY,
        Column("Stores", ".status.readyStores", "Segment store pods that are ready.", kind="integer"),
        Column("Controllers", ".status.readyControllers", "Controller pods that are ready.", kind="integer"),
        Column("Containers", ".spec.containers", "Segment containers.", kind="integer", wide=True),
        Column("Controller", ".status.controllerUri", "URI that clients connect to.", wide=True),
        Column("Cluster Id", ".status.clusterId", "Id of the cluster in the bucket.", wide=True),
        _AGE,
    ),
)
STREAM: Final = Definition(
    kind="Stream",
    plural="streams",
    short="strm",
    description="A stream, its scope, its scaling and its retention.",
    spec=stream.spec,
    status=stream.status,
    rules=stream.root_rules,
    columns=(
        *_READY,
        Column("Scope", ".spec.scope", "Scope of the stream."),
        Column("Segments", ".status.segments", "Active segments.", kind="integer"),
        Column("Retained", ".status.bytes", "Bytes stored.", kind="integer"),
        Column("Held By", ".status.retention.heldBy.subscriber", "Reader group that holds back data from retention."),
        Column("Stream Name", ".spec.streamName", "Name of the stream; empty: that of the resource.", wide=True),
        Column("Cluster", ".spec.cluster", "StreamCluster.", wide=True),
        Column("Scaling", ".spec.scaling.type", "How the stream scales.", wide=True),
        Column("Retention", ".spec.retention.type", "Type of retention: by size or by time.", wide=True),
        Column("Epoch", ".status.epoch", "Number of times that the stream was scaled.", kind="integer", wide=True),
        Column("Deletion", ".spec.deletionPolicy", "What happens to the data when the resource is deleted.", wide=True),
        _AGE,
    ),
    scale={"specReplicasPath": ".spec.scaling.minSegments", "statusReplicasPath": ".status.segments"},
)
READER_GROUP: Final = Definition(
    kind="ReaderGroup",
    plural="readergroups",
    short="rg",
    description="A reader group: its streams, where it begins to read, and its lag.",
    spec=readergroup.spec,
    status=readergroup.status,
    rules=readergroup.root_rules,
    columns=(
        *_READY,
        Column("Scope", ".spec.scope", "Scope of the group."),
        Column("Readers", ".status.onlineReaders", "Online readers.", kind="integer"),
        Column("Lag Bytes", ".status.lagBytes", "Unread bytes.", kind="integer"),
        Column("Lag Seconds", ".status.lagSeconds", "Age of the oldest unread data.", kind="integer"),
        Column("Group Name", ".spec.groupName", "Name of the group; empty: that of the resource.", wide=True),
        Column("Lagging", _condition("Lagging"), "Whether the lag exceeds spec.lagThreshold.", wide=True),
        Column("Cluster", ".spec.cluster", "StreamCluster.", wide=True),
        Column("Flavour", ".spec.flavour", "Client family whose state format the group uses.", wide=True),
        _AGE,
    ),
)
PIPELINE: Final = Definition(
    kind="Pipeline",
    plural="pipelines",
    short="pl",
    description="A job that runs on Spark: archive, aggregate, replay, backfill, audit, or a program of yours.",
    spec=pipeline.spec,
    status=pipeline.status,
    rules=pipeline.root_rules,
    columns=(
        *_READY,
        Column("Job", ".spec.job", "Job of `tailrace pipeline`."),
        Column("Stream", ".spec.stream", "Stream that the job reads, or, with backfill, writes."),
        Column("Rows", ".status.progress.rows", "Rows read since the driver started.", kind="integer"),
        Column("Lag Bytes", ".status.progress.lagBytes", "Bytes that no batch has read.", kind="integer"),
        Column("Lag Seconds", ".status.progress.lagSeconds", "Age of the oldest unread data.", kind="integer"),
        Column("Last Batch", ".status.progress.lastBatchTime", "Time since the last commit of a batch.", kind="date"),
        Column("Output", ".spec.output", "Folder of the files.", wide=True),
        Column("Schedule", ".spec.schedule", "When the job runs.", wide=True),
        Column("Cluster", ".spec.cluster", "StreamCluster.", wide=True),
        Column("Driver", ".status.driver", "Pod of the driver.", wide=True),
        Column("Executors", ".status.executors", "Executor pods that run.", kind="integer", wide=True),
        Column("Spark UI", ".status.sparkUi", "URL of Spark's pages, inside the cluster.", wide=True),
        _AGE,
    ),
)
DEFINITIONS: Final = (STREAM_CLUSTER, STREAM, READER_GROUP, PIPELINE)
