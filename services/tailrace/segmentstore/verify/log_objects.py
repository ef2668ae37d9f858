"""Accounts for the objects of one object log: claims, valid frames, marks, and what the next owner removes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.log.object_keys import ObjectKind, ObjectName, kept_marks
from tailrace.segmentstore.verify.report import Orphan

if TYPE_CHECKING:
    from tailrace.log.closed_object import ClosedObjectLog
    from tailrace.segmentstore.verify.report import ContainerReport
    from tailrace.storage.port import ObjectStore


async def account_for_log(log: ClosedObjectLog, store: ObjectStore, report: ContainerReport) -> None:
    """List the log's objects after its frames are read. All claims must exist, and the marks that a search needs."""
    for place, position, reason in await log.damaged_claims():
        report.problem(reason, place=place, position=position)
    last_mark = await log.last_mark()
    needed = set(kept_marks(last_mark))
    async for info in store.list(log.directory.rstrip("/")):
        name, claimed = log.keys.parse(info.key), log.keys.claim_of(info.key)
        if claimed is not None and 1 <= claimed <= log.last_claim:
            report.report.log_objects += 1
        elif claimed is not None:
            report.problem(
                f"some of claims {log.last_claim + 1} to {claimed - 1} are missing", place=f"object {info.key}"
            )
        elif name is None:
            report.report.add_orphan(Orphan(report.container, info.key, info.length_bytes))
        elif _counts(name, log, last_mark):
            report.report.log_objects += 1
            if name.kind is ObjectKind.MARK:
                needed.discard(name.number)
        else:
            report.report.log_leftovers += 1
        if name is not None and _is_lost_mark(name, log, last_mark):
            report.problem("a search for the last mark does not find it", place=f"object {info.key}")
    for number in sorted(needed):
        report.problem("it does not exist", place=f"object {log.keys.mark(log.previous_epoch, number)}")


def _is_lost_mark(name: ObjectName, log: ClosedObjectLog, last_mark: int) -> bool:
    return name.kind is ObjectKind.MARK and name.epoch == log.previous_epoch and name.number > last_mark


def _counts(name: ObjectName, log: ClosedObjectLog, last_mark: int) -> bool:
    if name.kind is ObjectKind.FRAME:
        return name.number >= log.log_start and log.index.epoch_of(name.number) == name.epoch
    if name.epoch != log.previous_epoch:
        return False
    return name.kind is ObjectKind.START or name.number in kept_marks(last_mark)
