"""``cluster.json``: which cluster the objects below a Tier-2 prefix belong to (design §5; docs/formats/chunks.md)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tailrace.common.errors import AlreadyExistsError, NotFoundError, StartError

if TYPE_CHECKING:
    from tailrace.storage.port import ObjectStore

CLUSTER_KEY: Final = "cluster.json"
_FORMAT: Final = 1


async def bind_tier2(store: ObjectStore, place: str, cluster_id: str, containers: int, *, bound: bool) -> None:
    """See that Tier 2 is that of the cluster; mark it as such when it is new.

    `bound`: the cluster had it before, so that a missing mark means that the objects are missing too. `place` is what
    errors call it.

    Raises:
        StartError: it belongs to another cluster, or it is not the one that the cluster had. UnavailableError.
    """
    found = await marked_cluster(store, place)
    if found is None:
        if bound:
            raise StartError(f"{place} has no {CLUSTER_KEY}: it is not the one that this cluster's data was moved to")
        content = {"format": _FORMAT, "cluster": cluster_id, "containers": containers}
        try:
            await store.put(CLUSTER_KEY, [json.dumps(content).encode()], if_absent=True)
        except AlreadyExistsError:  # another worker of the cluster, at the same moment
            found = await marked_cluster(store, place)
        else:
            found = cluster_id
    if found != cluster_id:
        raise StartError(f"{place} belongs to cluster {found}, not to {cluster_id}")


@dataclass(frozen=True, slots=True)
class ClusterMark:
    """What ``cluster.json`` says."""

    cluster_id: str
    containers: int


async def marked_cluster(store: ObjectStore, place: str) -> str | None:
    """The cluster that Tier 2 is marked with; None: it is not. Raises StartError: the mark is damaged or newer."""
    mark = await read_mark(store, place)
    return None if mark is None else mark.cluster_id


async def read_mark(store: ObjectStore, place: str) -> ClusterMark | None:
    """``cluster.json``; None: there is none. Raises StartError: it is damaged or newer."""
    try:
        text = await store.get(CLUSTER_KEY)
    except NotFoundError:
        return None
    try:
        content = json.loads(text)
        version = int(content["format"])
        if version > _FORMAT:  # before all else: its other fields may be of another kind
            raise StartError(f"{place}: {CLUSTER_KEY} of format {version} is newer than this program's {_FORMAT}")
        return ClusterMark(str(content["cluster"]), int(content["containers"]))
    except (ValueError, KeyError, TypeError) as error:
        raise StartError(f"{place}: {CLUSTER_KEY} is damaged") from error
