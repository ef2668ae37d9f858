"""StreamCluster: controllers and segment stores over one bucket (design §11, ADR 0013)."""

from __future__ import annotations

from typing import Final

from tailrace.common import limits
from tailrace_operator.schema import grammar, rules
from tailrace_operator.schema.build import (
    Rule,
    Schema,
    choice,
    conditions,
    immutable,
    integer,
    keyed_list,
    observed_generation,
    quantity,
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

# A map is made when segment stores run, which they do only over a place that was found to be this cluster's.
_HAS_NO_DATA = "!has(oldSelf.status) || !has(oldSelf.status.containers) || size(oldSelf.status.containers) == 0"
DATA_STAYS: Final = Rule(
    f"{_HAS_NO_DATA} || (self.spec.tier2.bucket == oldSelf.spec.tier2.bucket && "
    "self.spec.tier2.prefix == oldSelf.spec.tier2.prefix)",
    "bucket and prefix are immutable once containers are placed: the cluster's data is there",
    ".spec.tier2",
)
IDENTITY_STAYS: Final = Rule(
    f"{_HAS_NO_DATA} || (has(self.spec.adoptClusterId) == has(oldSelf.spec.adoptClusterId) && "
    "(!has(self.spec.adoptClusterId) || self.spec.adoptClusterId == oldSelf.spec.adoptClusterId))",
    "adoptClusterId is immutable once containers are placed: the cluster's data and its workers are marked with it",
    ".spec.adoptClusterId",
)


def _memory(description: str, default: str) -> Schema:
    return quantity(
        description,
        pattern=grammar.SIZE,
        maximum=grammar.SIZE_NUMBER_MAX,
        default=default,
        rules=[rules.MEMORY_AT_LEAST],
    )


def _cpu() -> Schema:
    return quantity(
        "Processors that a pod may use, as 500m or 2. Without it there is no limit.",
        pattern=grammar.CPU,
        maximum=grammar.CPU_NUMBER_MAX,
        rules=[rules.CPU_POSITIVE],
    )


def _segment_store() -> Schema:
    return struct(
        "The data plane.",
        {
            "replicas": integer(
                "Pods.", minimum=1, maximum=grammar.STORE_REPLICAS_MAX, default=grammar.STORE_REPLICAS_DEFAULT
            ),
            "workers": integer(
                "Worker processes of a pod, each with containers of its own; about one for each core.",
                minimum=1,
                maximum=limits.WORKERS_MAX,
                default=grammar.STORE_WORKERS_DEFAULT,
            ),
            "memory": _memory(
                "Memory limit of a pod. Caches and buffers of its workers are derived from it.",
                grammar.STORE_MEMORY_DEFAULT,
            ),
            "cpu": _cpu(),
        },
        defaulted=True,
        rules=[WORKERS_AT_MOST],
    )


def _controller() -> Schema:
    return struct(
        "The control plane: streams, transactions, reader groups.",
        {
            "replicas": integer(
                "Pods.", minimum=1, maximum=grammar.CONTROLLER_REPLICAS_MAX, default=grammar.CONTROLLER_REPLICAS_DEFAULT
            ),
            "memory": _memory("Memory limit of a pod.", grammar.CONTROLLER_MEMORY_DEFAULT),
            "cpu": _cpu(),
        },
        defaulted=True,
    )


def _tier2() -> Schema:
    return struct(
        "The object store that holds all data, Tier 1 logs included.",
        {
            "bucket": string(
                "Bucket, which is made when it is missing.",
                min_length=grammar.BUCKET_MIN_LENGTH,
                max_length=grammar.BUCKET_MAX_LENGTH,
                pattern=grammar.BUCKET,
            ),
            "prefix": string(
                "What the names of all objects begin with, without slashes at its ends; empty is the whole bucket. "
                "No two clusters may share it.",
                max_length=grammar.PREFIX_MAX_LENGTH,
                pattern=grammar.PREFIX,
                default="",
            ),
            "endpoint": string(
                "URL of the S3 interface, as http://minio.storage.svc:9000.",
                max_length=grammar.ENDPOINT_MAX_LENGTH,
                pattern=grammar.ENDPOINT,
            ),
            "region": string(
                "Region, where the store has regions.",
                min_length=1,
                max_length=grammar.REGION_MAX_LENGTH,
                pattern=grammar.REGION,
            ),
            "credentialsSecret": string(
                "Secret of the same namespace with the keys accessKey and secretKey.",
                min_length=1,
                max_length=grammar.OBJECT_NAME_MAX_LENGTH,
                pattern=grammar.OBJECT_NAME,
            ),
        },
        required=("bucket", "endpoint", "credentialsSecret"),
    )


def spec() -> Schema:
    """``spec`` of a StreamCluster."""
    return struct(
        "What the cluster is to be.",
        {
            "containers": integer(
                "Segment containers, the units of assignment and recovery: at least one for each worker that there may "
                "ever be.",
                minimum=1,
                maximum=limits.CONTAINERS_MAX,
                default=grammar.CONTAINERS_DEFAULT,
                rules=[immutable("containers")],
            ),
            "segmentStore": _segment_store(),
            "controller": _controller(),
            "tier2": _tier2(),
            "adoptClusterId": string(
                "Id of a cluster whose data is in the bucket already and shall be this one's. Without it the id is the "
                "resource's uid.",
                max_length=grammar.UUID_LENGTH,
                pattern=grammar.UUID,
            ),
            "image": string(
                "Image of controllers and segment stores; the operator's own when it is not given.",
                min_length=1,
                max_length=grammar.IMAGE_MAX_LENGTH,
                pattern=grammar.IMAGE,
            ),
            "imagePullPolicy": choice("When the image is pulled.", grammar.IMAGE_PULL_POLICIES),
        },
        required=("tier2",),
    )


def _containers() -> Schema:
    return keyed_list(
        "The container map: which worker is to own which container. Written by the placer.",
        "id",
        struct(
            "A container.",
            {
                "id": integer("Its number.", maximum=limits.CONTAINERS_MAX - 1),
                "worker": string("Who is to own it.", min_length=1, max_length=grammar.OBJECT_NAME_MAX_LENGTH),
                "handedOverBy": string(
                    "A living worker that is letting go of it.", max_length=grammar.OBJECT_NAME_MAX_LENGTH
                ),
            },
            required=("id", "worker"),
        ),
        max_items=limits.CONTAINERS_MAX,
    )


def _workers() -> Schema:
    return keyed_list(
        "Where the workers are reached. Written by the placer.",
        "name",
        struct(
            "A worker.",
            {
                "name": string("Its name.", min_length=1, max_length=grammar.OBJECT_NAME_MAX_LENGTH),
                "internal": string("Endpoint inside the Kubernetes cluster.", max_length=grammar.ADDRESS_MAX_LENGTH),
                "external": string("Endpoint for clients outside of it.", max_length=grammar.ADDRESS_MAX_LENGTH),
            },
            required=("name", "internal"),
        ),
        max_items=grammar.WORKERS_LISTED_MAX,
    )


def status() -> Schema:
    """``status`` of a StreamCluster."""
    return struct(
        "What the cluster is.",
        {
            "observedGeneration": observed_generation(),
            "clusterId": string("What the bucket is marked with.", max_length=grammar.UUID_LENGTH),
            "controllerUri": string("What clients connect to.", max_length=grammar.ADDRESS_MAX_LENGTH),
            "readyStores": integer("Segment store pods that are ready."),
            "readyControllers": integer("Controller pods that are ready."),
            "conditions": conditions(),
            "containers": _containers(),
            "workers": _workers(),
        },
    )


def root_rules() -> list[Rule]:
    """Rules over the whole resource."""
    return [CLUSTER_NAME, DATA_STAYS, IDENTITY_STAYS]
