"""Fields that several resources have: a pod's limits, an image, an object store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace_operator.schema import grammar, rules
from tailrace_operator.schema.build import quantity, string

if TYPE_CHECKING:
    from tailrace_operator.schema.build import Rule, Schema


def memory(description: str, default: str, at_least: Rule) -> Schema:
    """Return the memory limit of a pod."""
    return quantity(
        description, pattern=grammar.SIZE, maximum=grammar.SIZE_NUMBER_MAX, default=default, rules=[at_least]
    )


def cpu() -> Schema:
    """Return the CPU limit of a pod."""
    return quantity(
        "CPU limit of a pod, for example 500m or 2. Without it there is no limit.",
        pattern=grammar.CPU,
        maximum=grammar.CPU_NUMBER_MAX,
        rules=[rules.CPU_POSITIVE],
    )


def image(description: str) -> Schema:
    """Return the name of an image."""
    return string(description, min_length=1, max_length=grammar.IMAGE_MAX_LENGTH, pattern=grammar.IMAGE)


def object_store() -> dict[str, Schema]:
    """Return where an S3 store is, and its credentials."""
    return {
        "endpoint": string(
            "URL of the S3 interface, for example http://minio.storage.svc:9000.",
            max_length=grammar.ENDPOINT_MAX_LENGTH,
            pattern=grammar.ENDPOINT,
        ),
        "region": string(
            "Region, if the object store has regions.",
            min_length=1,
            max_length=grammar.REGION_MAX_LENGTH,
            pattern=grammar.REGION,
        ),
        "credentialsSecret": string(
            "Secret in the same namespace, with the keys accessKey and secretKey.",
            min_length=1,
            max_length=grammar.OBJECT_NAME_MAX_LENGTH,
            pattern=grammar.OBJECT_NAME,
        ),
    }
