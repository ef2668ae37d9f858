"""Schema of a StreamCluster: controllers and segment stores over one bucket (docs/design.md#resources, ADR 0013)."""

from __future__ import annotations

from typing import Final

from tailrace.common import limits
from tailrace_operator.schema import fields, grammar, rules
from tailrace_operator.schema.build import (
    Rule,
    Schema,
    choice,
    conditions,
    integer,
    keyed_list,
    observed_generation,
    string,
    struct,
)

CLUSTER_NAME: Final = Rule(
    f"size(self.metadata.name) <= {grammar.CLUSTER_NAME_MAX_LENGTH} && "
    f"self.metadata.name.matches('{grammar.CLUSTER_NAME}')",
    f"a StreamCluster's name has at most {grammar.CLUSTER_NAME_MAX_LENGTH} characters: lower-case letters, digits and "
    "'-', beginning with a letter and not ending with '-'",
)
WORKERS_AT_MOST: Final = Rule(
    f"self.replicas * self.workers <= {grammar.WORKERS_ALL_MAX}",
    f"replicas × workers must be at most {grammar.WORKERS_ALL_MAX}",
)

# The map is written when segment stores run, which requires that the bucket was found to belong to this cluster.
_HAS_NO_DATA = "!has(oldSelf.status) || !has(oldSelf.status.containers) || size(oldSelf.status.containers) == 0"
DATA_STAYS: Final = Rule(
    f"{_HAS_NO_DATA} || (self.spec.tier2.bucket == oldSelf.spec.tier2.bucket && "
    "self.spec.tier2.prefix == oldSelf.spec.tier2.prefix)",
    "bucket and prefix are immutable once containers are placed, because they hold the cluster's data",
    ".spec.tier2",
)
IDENTITY_STAYS: Final = Rule(
    f"{_HAS_NO_DATA} || (has(self.spec.adoptClusterId) == has(oldSelf.spec.adoptClusterId) && "
    "(!has(self.spec.adoptClusterId) || self.spec.adoptClusterId == oldSelf.spec.adoptClusterId))",
    "adoptClusterId is immutable once containers are placed, because the data and the workers have this id",
    ".spec.adoptClusterId",
)
# From its claim on a cluster may have pods, which have this number, and a map of so many containers is made for them.
CONTAINERS_STAY: Final = Rule(
    f"({_HAS_NO_DATA}) && (!has(oldSelf.status) || !has(oldSelf.status.tier2)) || "
    "self.spec.containers == oldSelf.spec.containers",
    "containers is immutable once the cluster has claimed its place, because its pods and its data have this number",
    ".spec.containers",
)


def _segment_store() -> Schema:
    return struct(
        "Segment stores: the data plane.",
        {
            "replicas": integer(
                "Pods.", minimum=1, maximum=grammar.STORE_REPLICAS_MAX, default=grammar.STORE_REPLICAS_DEFAULT
            ),
            "workers": integer(
                "Worker processes per pod, each with its own containers; about one per core.",
                minimum=1,
                maximum=limits.WORKERS_MAX,
                default=grammar.STORE_WORKERS_DEFAULT,
            ),
            "memory": fields.memory(
                "Memory limit of a pod. The caches and buffers of its workers are derived from it.",
                grammar.STORE_MEMORY_DEFAULT,
                rules.MEMORY_AT_LEAST,
            ),
            "cpu": fields.cpu(),
        },
        defaulted=True,
        rules=[WORKERS_AT_MOST],
    )


def _controller() -> Schema:
    return struct(
        "Controllers, the control plane: streams, transactions, reader groups.",
        {
            "replicas": integer(
                "Pods.", minimum=1, maximum=grammar.CONTROLLER_REPLICAS_MAX, default=grammar.CONTROLLER_REPLICAS_DEFAULT
            ),
            "memory": fields.memory(
                "Memory limit of a pod.", grammar.CONTROLLER_MEMORY_DEFAULT, rules.CONTROLLER_MEMORY_AT_LEAST
            ),
            "cpu": fields.cpu(),
        },
        defaulted=True,
    )


def _retention() -> Schema:
    return struct(
        "How the controllers apply the retention policies of streams.",
        {
            "period": string(
                "Time between two truncations of a stream, and between the positions at which it can be truncated.",
                max_length=grammar.QUANTITY_MAX_LENGTH,
                pattern=grammar.POSITIVE_DURATION,
                default=grammar.RETENTION_PERIOD_DEFAULT,
            )
        },
        defaulted=True,
    )


def _tier2() -> Schema:
    return struct(
        "Object store that holds all data, including the logs of Tier 1.",
        {
            "bucket": string(
                "Bucket. The operator creates a missing one.",
                min_length=grammar.BUCKET_MIN_LENGTH,
                max_length=grammar.BUCKET_MAX_LENGTH,
                pattern=grammar.BUCKET,
            ),
            "prefix": string(
                "Prefix of the names of all objects, without a slash at either end; empty: the whole bucket. "
                "Two clusters cannot share or nest prefixes.",
                max_length=grammar.PREFIX_MAX_LENGTH,
                pattern=grammar.PREFIX,
                default="",
            ),
            **fields.object_store(),
        },
        required=("bucket", "endpoint", "credentialsSecret"),
    )


def spec() -> Schema:
    """Return the schema of ``spec``."""
    return struct(
        "Desired state of the cluster.",
        {
            "containers": integer(
                "Number of segment containers, the units of assignment and recovery. Choose at least the number of "
                "workers that the cluster may ever have.",
                minimum=1,
                maximum=limits.CONTAINERS_MAX,
                default=grammar.CONTAINERS_DEFAULT,
            ),
            "segmentStore": _segment_store(),
            "controller": _controller(),
            "tier2": _tier2(),
            "retention": _retention(),
            "adoptClusterId": string(
                "Id of an existing cluster whose data in the bucket this one adopts. Default: the uid of the resource.",
                max_length=grammar.UUID_LENGTH,
                pattern=grammar.UUID,
            ),
            "image": fields.image("Image of controllers and segment stores; default: the image of the operator."),
            "imagePullPolicy": choice("When the image is pulled.", grammar.IMAGE_PULL_POLICIES),
        },
        required=("tier2",),
    )


def _containers() -> Schema:
    return keyed_list(
        "Container map: the worker of each container. Written by the placer.",
        "id",
        struct(
            "A container.",
            {
                "id": integer("Number of the container.", maximum=limits.CONTAINERS_MAX - 1),
                "worker": string(
                    "Worker that the container is assigned to.", min_length=1, max_length=grammar.OBJECT_NAME_MAX_LENGTH
                ),
                "handedOverBy": string(
                    "Running worker that still has to close the container.", max_length=grammar.OBJECT_NAME_MAX_LENGTH
                ),
            },
            required=("id", "worker"),
        ),
        max_items=limits.CONTAINERS_MAX,
    )


def _workers() -> Schema:
    return keyed_list(
        "Endpoints of the workers. Written by the placer.",
        "name",
        struct(
            "A worker.",
            {
                "name": string("Name of the worker.", min_length=1, max_length=grammar.OBJECT_NAME_MAX_LENGTH),
                "internal": string("Endpoint inside the Kubernetes cluster.", max_length=grammar.ADDRESS_MAX_LENGTH),
                "external": string(
                    "Endpoint for clients outside the Kubernetes cluster.", max_length=grammar.ADDRESS_MAX_LENGTH
                ),
            },
            required=("name", "internal"),
        ),
        max_items=grammar.WORKERS_LISTED_MAX,
    )


def _claim() -> Schema:
    return struct(
        "Place in the object store that this cluster has claimed. No other StreamCluster may use it. Written before "
        "pods are created.",
        {
            "endpoint": string("Endpoint of the object store.", max_length=grammar.ENDPOINT_MAX_LENGTH),
            "bucket": string("Bucket.", max_length=grammar.BUCKET_MAX_LENGTH),
            "prefix": string("Prefix of the names of all objects.", max_length=grammar.PREFIX_MAX_LENGTH),
        },
    )


def status() -> Schema:
    """Return the schema of ``status``."""
    return struct(
        "Observed state of the cluster.",
        {
            "observedGeneration": observed_generation("reconciled"),
            "clusterId": string("Id of the cluster in the bucket.", max_length=grammar.UUID_LENGTH),
            "tier2": _claim(),
            "controllerUri": string("URI that clients connect to.", max_length=grammar.ADDRESS_MAX_LENGTH),
            "readyStores": integer("Segment store pods that are ready."),
            "readyControllers": integer("Controller pods that are ready."),
            "conditions": conditions(),
            "containers": _containers(),
            "workers": _workers(),
        },
    )


def root_rules() -> list[Rule]:
    """Return the rules over the whole resource."""
    return [CLUSTER_NAME, DATA_STAYS, IDENTITY_STAYS, CONTAINERS_STAY]
