"""What an object is that no reference names (docs/spark-audit.md#orphans). Pure."""

from __future__ import annotations

from typing import NamedTuple

from tailrace.cluster.cluster_identity import CLUSTER_KEY
from tailrace.common import limits
from tailrace.pipelines.audit.rows import Status
from tailrace.segmentstore.tier2.chunk_objects import writer_of_key
from tailrace.segmentstore.tier2.snapshot import parse_key
from tailrace.segmentstore.verify.objects import container_of_key
from tailrace.storage.probe_objects import is_probe


class Newest(NamedTuple):
    """The newest snapshot of a container: the epoch of its owner, and when it was written, in ms since 1970."""

    epoch: int
    time_ms: int


def unreferenced_status(
    key: str, modified_ms: int, newest: Newest | None, *, containers: int, pending: bool, now_ms: int
) -> Status:
    """Return what an object is that no reference of its container's newest snapshot names.

    An object of an epoch below the snapshot's is an orphan: the reference of an object is committed by the owner that
    wrote it, and a later owner has all of those. Of the same epoch it may have been written since the snapshot. So it
    is an orphan only when it is older than the snapshot by ``limits.AUDIT_SETTLED_MS``. Of a later epoch it is none:
    the snapshot may be of an owner that has lost its log and does not know it yet.

    ``modified_ms`` is 0 when it is unknown. ``pending``: the snapshot has it among the objects to delete. ``newest`` is
    None for a container without a readable snapshot.
    """
    name, upload, _ = key.partition("#")  # "#": a file of an upload that is not finished
    if key == CLUSTER_KEY:
        return Status.IDENTITY
    if is_probe(key):
        return Status.PROBE
    container = container_of_key(key)
    recent = not modified_ms or now_ms - modified_ms < limits.AUDIT_SETTLED_MS
    if container is None or container >= containers:
        may_be_new = name.startswith("probe/") or (bool(upload) and name == CLUSTER_KEY)  # by a server that starts
        return Status.UNSETTLED if may_be_new and recent else Status.ORPHAN
    if key.startswith("log/"):
        return Status.LOG
    if parse_key(name) is not None:
        return Status.SNAPSHOT if not upload else Status.UNSETTLED if recent else Status.ORPHAN
    if pending:
        return Status.PENDING
    writer = writer_of_key(name)
    if writer is None:
        return Status.ORPHAN
    if newest is None:
        return Status.UNSETTLED if recent else Status.UNACCOUNTED
    if writer[1] != newest.epoch:
        return Status.ORPHAN if writer[1] < newest.epoch else Status.UNSETTLED
    settled = 0 < modified_ms <= newest.time_ms - limits.AUDIT_SETTLED_MS
    return Status.ORPHAN if settled else Status.UNSETTLED
