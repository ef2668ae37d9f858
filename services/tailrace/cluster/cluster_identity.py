"""Reads and writes ``cluster.json``: the cluster that owns a Tier-2 prefix.

See docs/design.md#tier-2, docs/formats/chunks.md.
"""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tailrace.common import limits
from tailrace.common.errors import AlreadyExistsError, NotFoundError, StartError, UnavailableError
from tailrace.storage.port import make_durable

if TYPE_CHECKING:
    from tailrace.storage.port import ObjectStore

CLUSTER_KEY: Final = "cluster.json"
_FORMAT: Final = 1
_FORMAT_MAX: Final = 999
_CLUSTER_ID: Final = re.compile(r"[0-9A-Za-z-]{1,64}")
"""A UUID, with room. Errors show the id, so other text in its place must not pass."""


async def bind_tier2(store: ObjectStore, place: str, cluster_id: str, containers: int, *, bound: bool) -> None:
    """Check that Tier 2 belongs to the cluster; write the identity when it is new.

    `bound`: the cluster used it before, so a missing identity means that the objects are missing too. Errors call it
    `place`. Any number of servers, of any cluster, may do this at once: one identity stays.

    Raises:
        StartError: it belongs to another cluster or to one with another number of containers, or the identity is
        missing although `bound`. UnavailableError: no answer in ``limits.CLUSTER_OBJECT_ATTEMPTS`` attempts.
    """
    attempts = 1
    while True:
        try:
            found = await _read_or_write(store, place, ClusterIdentity(cluster_id, containers), bound=bound)
            break
        except UnavailableError:
            if attempts >= limits.CLUSTER_OBJECT_ATTEMPTS:
                raise
        attempts += 1  # also after a put with an unknown outcome: the next attempt reads what is stored
        await asyncio.sleep(limits.CLUSTER_OBJECT_RETRY_S)
    if found.cluster_id != cluster_id:
        raise StartError(f"{place} belongs to cluster {found.cluster_id}, not to {cluster_id}")
    if found.containers != containers:
        raise StartError(f"{place} belongs to a cluster of {found.containers} containers, not of {containers}")


async def _read_or_write(store: ObjectStore, place: str, wanted: ClusterIdentity, *, bound: bool) -> ClusterIdentity:
    """Return the stored identity; store and return the wanted one when there is none."""
    found = await read_identity(store, place)
    if found is not None:
        if not bound:  # else it was durable then, and may be in a store that can only be read now
            await make_durable(store, "")  # another process may have put it and not have ended
        return found
    if bound:
        raise StartError(f"{place} has no {CLUSTER_KEY}: it is not the Tier 2 that holds this cluster's data")
    content = {"format": _FORMAT, "cluster": wanted.cluster_id, "containers": wanted.containers}
    try:
        await store.put(CLUSTER_KEY, [json.dumps(content).encode()], if_absent=True)
    except AlreadyExistsError as error:  # another owner, at the same moment
        found = await read_identity(store, place)
        if found is None:
            raise UnavailableError(f"{place}: {CLUSTER_KEY} exists, but a read did not find it") from error
        return found
    return wanted


@dataclass(frozen=True, slots=True)
class ClusterIdentity:
    """The content of ``cluster.json``."""

    cluster_id: str
    containers: int


async def read_cluster_id(store: ObjectStore, place: str) -> str | None:
    """Return the id of the cluster that owns Tier 2; None: no cluster. Raises StartError: it is damaged or newer."""
    identity = await read_identity(store, place)
    return None if identity is None else identity.cluster_id


async def read_identity(store: ObjectStore, place: str) -> ClusterIdentity | None:
    """Read ``cluster.json``; None when it does not exist. Raises StartError: it is damaged or newer."""
    try:
        text = await store.get(CLUSTER_KEY)
    except NotFoundError:
        return None
    return parse_identity(text, place)


def parse_identity(text: bytes, place: str) -> ClusterIdentity:
    """Parse ``cluster.json``, which another program may have written. Raises StartError: it is damaged or newer."""
    damaged = StartError(f"{place}: {CLUSTER_KEY} is damaged")
    try:
        content = json.loads(text)
        version = content["format"]
        # First: other fields of a newer format may have other types.
        if type(version) is int and _FORMAT < version <= _FORMAT_MAX:
            raise StartError(f"{place}: {CLUSTER_KEY} of format {version} is newer than this program's {_FORMAT}")
        cluster_id, containers = content["cluster"], content["containers"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise damaged from error
    if not (version == _FORMAT and type(version) is int and type(containers) is int and isinstance(cluster_id, str)):
        raise damaged
    if not _CLUSTER_ID.fullmatch(cluster_id):
        raise damaged
    return ClusterIdentity(cluster_id, containers)
