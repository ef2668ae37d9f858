"""The CustomResourceDefinitions, whole: names, versions, columns, subresources."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from tailrace_operator.schema import grammar, readergroup, stream, streamcluster
from tailrace_operator.schema.build import Schema, struct

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tailrace_operator.schema.build import Rule


@dataclass(frozen=True, slots=True)
class Column:
    """A column of ``kubectl get``; a wide one is there with ``-o wide`` only."""

    name: str
    json_path: str
    description: str
    kind: str = "string"
    wide: bool = False

    def schema(self) -> dict[str, Any]:
        """As it stands in ``additionalPrinterColumns``."""
        found = {"name": self.name, "type": self.kind, "jsonPath": self.json_path, "description": self.description}
        return {**found, "priority": 1} if self.wide else found


def _condition(kind: str, part: str = "status") -> str:
    return f'.status.conditions[?(@.type=="{kind}")].{part}'


_READY: Final = (
    Column("Ready", _condition("Ready"), "Whether all is as it should be."),
    Column("Reason", _condition("Ready", "reason"), "Why, in one word."),
)
_AGE: Final = Column("Age", ".metadata.creationTimestamp", "Since the resource was made.", "date")


@dataclass(frozen=True, slots=True)
class Definition:
    """One kind of resource. ``scale``: paths of the wanted and of the present number for ``kubectl scale``."""

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
        """Of the CustomResourceDefinition."""
        return f"{self.plural}.{grammar.GROUP}"

    def schema(self) -> Schema:
        """``openAPIV3Schema``."""
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
        """The CustomResourceDefinition."""
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
    "StreamCluster",
    "streamclusters",
    "tsc",
    "A stream storage cluster: controllers and segment stores over one bucket.",
    streamcluster.spec,
    streamcluster.status,
    streamcluster.root_rules,
    (
        *_READY,
        Column("Stores", ".status.readyStores", "Segment store pods that are ready.", "integer"),
        Column("Controllers", ".status.readyControllers", "Controller pods that are ready.", "integer"),
        Column("Containers", ".spec.containers", "Segment containers.", "integer", wide=True),
        Column("Controller", ".status.controllerUri", "What clients connect to.", wide=True),
        Column("Cluster Id", ".status.clusterId", "What the bucket is marked with.", wide=True),
        _AGE,
    ),
)
STREAM: Final = Definition(
    "Stream",
    "streams",
    "strm",
    "A stream, its scope, and how it scales and forgets.",
    stream.spec,
    stream.status,
    stream.root_rules,
    (
        *_READY,
        Column("Scope", ".spec.scope", "Scope of the stream."),
        Column("Segments", ".status.segments", "Active segments.", "integer"),
        Column("Bytes", ".status.bytes", "Bytes that are kept.", "integer"),
        Column("Stream Name", ".spec.streamName", "Name of the stream; empty: the resource's own.", wide=True),
        Column("Cluster", ".spec.cluster", "StreamCluster.", wide=True),
        Column("Scaling", ".spec.scaling.type", "How the stream scales.", wide=True),
        Column("Retention", ".spec.retention.type", "What counts for retention.", wide=True),
        Column("Epoch", ".status.epoch", "How often the stream was scaled.", "integer", wide=True),
        Column("Deletion", ".spec.deletionPolicy", "What becomes of the data with the resource.", wide=True),
        _AGE,
    ),
    {"specReplicasPath": ".spec.scaling.minSegments", "statusReplicasPath": ".status.segments"},
)
READER_GROUP: Final = Definition(
    "ReaderGroup",
    "readergroups",
    "rg",
    "Readers that share streams, where they begin, and how far behind they are.",
    readergroup.spec,
    readergroup.status,
    readergroup.root_rules,
    (
        *_READY,
        Column("Scope", ".spec.scope", "Scope of the group."),
        Column("Readers", ".status.onlineReaders", "Readers that are there.", "integer"),
        Column("Lag Bytes", ".status.lagBytes", "Unread bytes.", "integer"),
        Column("Lag Seconds", ".status.lagSeconds", "Age of the oldest unread data.", "integer"),
        Column("Group Name", ".spec.groupName", "Name of the group; empty: the resource's own.", wide=True),
        Column("Lagging", _condition("Lagging"), "Whether the group is behind its threshold.", wide=True),
        Column("Cluster", ".spec.cluster", "StreamCluster.", wide=True),
        Column("Flavour", ".spec.flavour", "Whose state the group keeps.", wide=True),
        _AGE,
    ),
)
DEFINITIONS: Final = (STREAM_CLUSTER, STREAM, READER_GROUP)
