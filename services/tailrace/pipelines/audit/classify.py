"""What an object is that no reference names (docs/spark-audit.md#orphans). Pure."""

from __future__ import annotations

from typing import NamedTuple

from tailrace.cluster.cluster_identity import CLUSTER_KEY
from tailrace.common import limits
from tailrace.pipelines.audit.rows import Status
from tailrace.segmentstore.tier2.chunk_objects import writer_of_key
from tailrace.segmentstore.tier2.snapshot import parse_key
from tailrace.segmentstore.verify.objects import container_of_key


class Newest(NamedTuple):
    """The newest snapshot of a container: the epoch of its owner, and when it was written, in ms since 1970."""

    epoch: int
    time_ms: int


def unreferenced_status(
    key: str, modified_ms: int, newest: Newest | None, *, containers: int, pending: bool, now_ms: int
) -> Status:
    """Return what an object is that no reference of its container's newest snapshot names.

    An object of an epoch below the snapshot's is an orphan: the reference of an object is committed by the owner that
    wrote it, and a later owner has all of those. Of the same or a later epoch it may have been written since the
    snapshot. So it is an orphan only when it is older than the snapshot by ``limits.AUDIT_SETTLED_MS``.

    ``pending``: the snapshot has it among the objects to delete. ``newest`` is None for a container without a readable
    snapshot.
    """
    if key == CLUSTER_KEY:
        return Status.IDENTITY
    container = container_of_key(key)
    recent = now_ms - modified_ms < limits.AUDIT_SETTLED_MS
    if container is None or container >= containers:
        is_probe = key.startswith("probe/")  # a server that starts writes one and deletes it
        return Status.UNSETTLED if is_probe and recent else Status.ORPHAN
    if key.startswith("log/"):
        return Status.LOG
    if parse_key(key) is not None:
        return Status.SNAPSHOT
    if pending:
        return Status.PENDING
    writer = writer_of_key(key.partition("#")[0])  # "#": a file of an interrupted upload
    if writer is None:
        return Status.ORPHAN
    if newest is None:
        return Status.UNSETTLED if recent else Status.UNACCOUNTED
    settled = modified_ms + limits.AUDIT_SETTLED_MS <= newest.time_ms
    return Status.ORPHAN if writer[1] < newest.epoch or settled else Status.UNSETTLED
