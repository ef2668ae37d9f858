"""Checks that a StreamCluster passes before its pods are created or changed. Pure.

Each problem names the field and the fix. No check changes data.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tailrace.cluster.cluster_identity import CLUSTER_KEY
from tailrace.common.budgets import controller_budgets, pod_budgets
from tailrace.common.errors import StartError
from tailrace_operator.cluster.pods import ACCESS_KEY, SECRET_KEY
from tailrace_operator.cluster.tier2 import Credentials, Tier2Error

if TYPE_CHECKING:
    from tailrace.cluster.cluster_identity import ClusterIdentity
    from tailrace.cluster.kubernetes import Manifest
    from tailrace_operator.schema.specs import StreamClusterSpec, Tier2Spec

_SCRYPT: Final[Mapping[str, Any]] = {"n": 2**12, "r": 8, "p": 1, "dklen": 16}


@dataclass(frozen=True, slots=True)
class Problem:
    """``reason``: in CamelCase. ``message``: names the field and the fix. ``transient``: waiting may fix it, too."""

    reason: str
    message: str
    transient: bool = False


def memory_problem(spec: StreamClusterSpec) -> Problem | None:
    """Check that the budgets fit into the memory of a segment store pod, and of a controller pod."""
    store = spec.segment_store
    try:
        pod_budgets(store.memory_bytes, store.workers, spec.containers)
    except StartError as error:
        return Problem("MemoryTooSmall", f"spec.segmentStore.memory: {error}: raise it, or use fewer workers")
    try:
        controller_budgets(spec.controller.memory_bytes)
    except StartError as error:
        return Problem("MemoryTooSmall", f"spec.controller.memory: {error}: raise it")
    return None


def containers_problem(spec: StreamClusterSpec, running: Manifest | None) -> Problem | None:
    """Check that the number of containers is the one that the cluster's pods run with."""
    before = containers_of(running)
    if before is None or before == spec.containers:
        return None
    return _containers_changed(before, "the cluster", f"set it to {before}")


def containers_of(stateful_set: Manifest | None) -> int | None:
    """Return the number of containers in the arguments of a StatefulSet's pods."""
    try:
        arguments = (stateful_set or {})["spec"]["template"]["spec"]["containers"][0]["args"]
        return int(arguments[arguments.index("--containers") + 1])
    except (KeyError, IndexError, ValueError, TypeError):
        return None


def mark_problem(
    spec: StreamClusterSpec,
    cluster_id: str,
    mark: ClusterIdentity | None,
    *,
    is_placed: bool,
    is_claimed: bool = False,
) -> Problem | None:
    """Check that bucket and prefix belong to this cluster, with the same number of containers.

    ``is_placed``: containers have had workers; a worker marks the place before it gets any. Bucket, prefix and
    adoptClusterId are immutable then. ``is_claimed``: the cluster has claimed a place; its number of containers is
    immutable then.
    """
    url = spec.tier2.url
    if mark is None:
        if is_placed:
            return _data_missing(spec.tier2, "this cluster has written data", "create another StreamCluster")
        if spec.adopt_cluster_id is not None:
            adopts = f"spec.adoptClusterId says that cluster {spec.adopt_cluster_id} has written data there"
            return _data_missing(spec.tier2, adopts, "remove spec.adoptClusterId")
        return None
    if mark.cluster_id != cluster_id:
        cure = (
            f"correct spec.tier2.endpoint, or bring the data of {cluster_id} back; to adopt the data there, create "
            f"another StreamCluster with spec.adoptClusterId {mark.cluster_id}"
            if is_placed
            else f"set another bucket or prefix, or, to adopt its data, set spec.adoptClusterId to {mark.cluster_id}"
        )
        belongs = f"belongs to cluster {mark.cluster_id}, not to {cluster_id}"
        return Problem("BucketOfAnotherCluster", f"spec.tier2: {url} {belongs}: {cure}")
    if mark.containers != spec.containers:
        fixed = is_placed or is_claimed
        cure = (
            f"create another StreamCluster with {mark.containers} containers"
            if fixed
            else f"set it to {mark.containers}"
        )
        return _containers_changed(mark.containers, f"the data in {url}", cure)
    return None


def _data_missing(tier2: Tier2Spec, why: str, to_begin: str) -> Problem:
    """Return the problem that the place of a cluster with data has none; `to_begin` is how to begin without it."""
    return Problem(
        "DataMissing",
        f"spec.tier2: {tier2.url} at {tier2.endpoint} has no {CLUSTER_KEY}, but {why}: correct bucket, prefix "
        f"and endpoint, or bring the data back; to begin without it, {to_begin}",
        transient=True,
    )


def credentials_of(tier2: Tier2Spec, secret: Manifest | None) -> Credentials:
    """Return the credentials in a Secret. Raises Tier2Error: the Secret or one of its keys is missing or unusable."""
    name = tier2.credentials_secret
    if secret is None:
        raise Tier2Error(
            "SecretMissing",
            f"spec.tier2.credentialsSecret: Secret {name} does not exist in this namespace: create it with the keys "
            f"{ACCESS_KEY} and {SECRET_KEY}",
        )
    found = [_decoded(secret, key) for key in (ACCESS_KEY, SECRET_KEY)]
    for key, value in zip((ACCESS_KEY, SECRET_KEY), found, strict=True):
        if not value:
            raise Tier2Error(
                "SecretIncomplete", f"spec.tier2.credentialsSecret: Secret {name} has no key {key}: add it to its data"
            )
        # The access key is in a header of each request, where other characters cannot be.
        if not (re.fullmatch(r"[!-~]+", value) if key == ACCESS_KEY else value.isprintable()):
            raise Tier2Error(
                "SecretInvalid",
                f"spec.tier2.credentialsSecret: key {key} of Secret {name} has a character that it cannot have; often "
                "it is a line break at the end: store the key without it",
            )
    return Credentials(*found)


def secret_forbidden(tier2: Tier2Spec) -> Tier2Error:
    """Return the error for a Secret that the operator may not read, so it cannot know whether it exists."""
    return Tier2Error(
        "SecretForbidden",
        f"spec.tier2.credentialsSecret: the operator may not read Secret {tier2.credentials_secret}: name another "
        "Secret, or allow it with the chart's values operator.credentialsSecrets or operator.allSecrets",
        transient=True,
    )


def fingerprint(uid: str, credentials: Credentials) -> str:
    """Return a text that changes only with the credentials of the StreamCluster with that uid.

    It is public, so scrypt makes guessing them costly. The salt makes guesses for one cluster worthless for others, and
    does not show which have the same credentials. It is not the Secret's uid: a Secret that is deleted and made again
    with the same content, as by tools that synchronize Secrets, would replace all pods.
    """
    text = f"{len(credentials.access_key)}:{credentials.access_key}{credentials.secret_key}"
    return hashlib.scrypt(text.encode(), salt=uid.encode(), **_SCRYPT).hex()


def _containers_changed(before: int, whose: str, cure: str) -> Problem:
    return Problem(
        "ContainersChanged", f"spec.containers: {whose} has {before} containers, and this number cannot change: {cure}"
    )


def _decoded(secret: Manifest, key: str) -> str:
    try:
        return base64.b64decode((secret.get("data") or {}).get(key) or "", validate=True).decode()
    except (binascii.Error, UnicodeDecodeError, TypeError):
        return ""
