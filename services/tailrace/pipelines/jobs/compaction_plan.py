"""Which folders of batches a job joins into one (docs/spark-jobs.md#compaction). Pure."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tailrace.common import limits

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class BatchFolder:
    """A complete folder: the number of its batch, and the bytes of its files. ``is_final``: it is not joined."""

    number: int
    length_bytes: int
    is_final: bool = False


def next_join(folders: Sequence[BatchFolder], target_bytes: int) -> Sequence[BatchFolder]:
    """Return neighbours that are due to be joined, in the order of their numbers; empty when none are.

    They are due when they have `target_bytes` together, or when there are many and the largest has at most half of
    their bytes. So each time that a row is written again it is among at least twice the bytes of its folder, but for
    the last time, and folders below `target_bytes` are never many more than SPARK_COMPACTION_FOLDERS_MIN.
    """
    ordered = sorted(folders, key=lambda each: each.number)
    for is_small, group in itertools.groupby(ordered, lambda each: _is_small(each, target_bytes)):
        if is_small:
            run = list(group)
            due = _that_are_large(run, target_bytes) or _that_are_many(run)
            if due:
                return due
    return ()


def _is_small(folder: BatchFolder, target_bytes: int) -> bool:
    return folder.length_bytes < target_bytes and not folder.is_final


def _that_are_large(run: list[BatchFolder], target_bytes: int) -> Sequence[BatchFolder]:
    totals = itertools.accumulate(each.length_bytes for each in run)
    count = next((index + 1 for index, total in enumerate(totals) if total >= target_bytes), 0)
    return run[:count] if count <= limits.SPARK_COMPACTION_FOLDERS_MAX else ()


def _that_are_many(run: list[BatchFolder]) -> Sequence[BatchFolder]:
    for start in range(len(run) - limits.SPARK_COMPACTION_FOLDERS_MIN + 1):
        group = run[start : start + limits.SPARK_COMPACTION_FOLDERS_MAX]
        sizes = [each.length_bytes for each in group]
        if 2 * max(sizes) <= sum(sizes):
            return group
    return ()
