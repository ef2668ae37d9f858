"""``cluster.json``: which cluster the objects below a Tier-2 prefix belong to (design §5; docs/formats/chunks.md)."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tailrace.common import limits
from tailrace.common.errors import AlreadyExistsError, NotFoundError, StartError, UnavailableError

if TYPE_CHECKING:
    from tailrace.storage.port import ObjectStore

CLUSTER_KEY: Final = "cluster.json"
_FORMAT: Final = 1
_FORMAT_MAX: Final = 999
_CLUSTER_ID: Final = re.compile(r"[0-9A-Za-z-]{1,64}")
"""A UUID, with room: errors show it, and what else somebody may have put there is nobody's business."""


async def bind_tier2(store: ObjectStore, place: str, cluster_id: str, containers: int, *, bound: bool) -> None:
    """See that Tier 2 is that of the cluster; mark it as such when it is new.

    `bound`: the cluster had it before, so that a missing mark means that the objects are missing too. `place` is what
    errors call it. Any number of owners may do this at once, for whichever cluster: one mark stays.

    Raises:
        StartError: it belongs to another cluster or to one with another number of containers, or it is not the one
        that the cluster had. UnavailableError: the store did not answer in ``limits.CLUSTER_OBJECT_ATTEMPTS``.
    """
    attempts = 1
    while True:
        try:
            mark = await _marked(store, place, ClusterIdentity(cluster_id, containers), bound=bound)
            break
        except UnavailableError:
            if attempts >= limits.CLUSTER_OBJECT_ATTEMPTS:
                raise
        attempts += 1  # a put whose outcome is unknown, too: what is there then is read, like anybody's
        await asyncio.sleep(limits.CLUSTER_OBJECT_RETRY_S)
    if mark.cluster_id != cluster_id:
        raise StartError(f"{place} belongs to cluster {mark.cluster_id}, not to {cluster_id}")
    if mark.containers != containers:
        raise StartError(f"{place} belongs to a cluster of {mark.containers} containers, not of {containers}")


async def _marked(store: ObjectStore, place: str, wanted: ClusterIdentity, *, bound: bool) -> ClusterIdentity:
    """The mark that is there, or the wanted one when there was none."""
    found = await read_identity(store, place)
    if found is not None:
        return found
    if bound:
        raise StartError(f"{place} has no {CLUSTER_KEY}: it is not the one that this cluster's data was moved to")
    content = {"format": _FORMAT, "cluster": wanted.cluster_id, "containers": wanted.containers}
    try:
        await store.put(CLUSTER_KEY, [json.dumps(content).encode()], if_absent=True)
    except AlreadyExistsError as error:  # another owner, at the same moment
        found = await read_identity(store, place)
        if found is None:
            raise UnavailableError(f"{place}: {CLUSTER_KEY} comes and goes") from error
        return found
    return wanted


@dataclass(frozen=True, slots=True)
class ClusterIdentity:
    """What ``cluster.json`` says."""

    cluster_id: str
    containers: int


async def read_cluster_id(store: ObjectStore, place: str) -> str | None:
    """The cluster that Tier 2 is marked with; None: it is not. Raises StartError: the mark is damaged or newer."""
    mark = await read_identity(store, place)
    return None if mark is None else mark.cluster_id


async def read_identity(store: ObjectStore, place: str) -> ClusterIdentity | None:
    """``cluster.json``; None: there is none. Raises StartError: it is damaged or newer."""
    try:
        text = await store.get(CLUSTER_KEY)
    except NotFoundError:
        return None
    return parse_identity(text, place)


def parse_identity(text: bytes, place: str) -> ClusterIdentity:
    """What ``cluster.json`` says, perhaps somebody else's. Raises StartError: it is damaged or newer."""
    damaged = StartError(f"{place}: {CLUSTER_KEY} is damaged")
    try:
        content = json.loads(text)
        version = content["format"]
        # Before all else: the other fields of a newer one may be of another kind.
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
