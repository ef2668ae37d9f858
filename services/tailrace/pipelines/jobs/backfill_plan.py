"""How a backfill divides its input into batches (docs/spark-jobs.md#backfill). Pure.

A repeated run must write the same rows in the same batches. So the plan is kept in the job's checkpoint folder, and
what it was made of is compared.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from tailrace.common.errors import BadRequestError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


INCARNATION: Final = "incarnation"
"""The setting that says which of the streams of one name is written. Plans of older versions lack it."""


class InputFile(NamedTuple):
    """A file with rows: its size in bytes, and a text that changes with its content.

    ``lowest`` is the text of the lowest value of the column to order by; None for a null, and without such a column.
    """

    path: str
    size: int
    state: str
    lowest: str | None = None


@dataclass(frozen=True)
class Batch:
    """Rows of the input: those of ``files``, or, if there are none, those of a range of the column to order by.

    The range is from ``start``, inclusive, to ``end``, exclusive, as texts. None: from the lowest row, or a null, and
    to the highest.
    """

    files: tuple[str, ...] = ()
    start: str | None = None
    end: str | None = None


@dataclass(frozen=True)
class Plan:
    """What a backfill writes. ``query`` names it in the sink's record; ``settings`` are those that choose the rows.

    ``files`` has the state of each file, by its path.
    """

    query: str
    settings: Mapping[str, str]
    files: Mapping[str, str]
    batches: tuple[Batch, ...] = field(default=())

    def check(self, settings: Mapping[str, str], files: Sequence[InputFile]) -> None:
        """Raise BadRequestError when settings or files are not those of the plan."""
        for name, value in settings.items():
            if name == INCARNATION and self.settings.get(name, value) != value:
                raise BadRequestError(
                    f"stream {self.settings['stream']} was deleted and created again since the backfill began: use "
                    "another checkpoint folder to write into the new one"
                )
            if name != INCARNATION and self.settings.get(name) != value:
                raise BadRequestError(
                    f"the checkpoint is of a backfill with {name} {self.settings.get(name)!r}, not {value!r}: use "
                    "another folder for another backfill"
                )
        states = {each.path: each.state for each in files}
        for path in sorted(self.files.keys() | states.keys()):
            if self.files.get(path) != states.get(path):
                what = "is new" if path not in self.files else "is gone" if path not in states else "has changed"
                raise BadRequestError(
                    f"the input is not that of the checkpoint: {path} {what}. Backfill new files by themselves, with "
                    "another checkpoint folder"
                )


def batches_of_files(files: Sequence[InputFile], most_bytes: int) -> tuple[Batch, ...]:
    """Return batches of whole files in the order of their paths, each of at most so many bytes, or of one file."""
    batches: list[Batch] = []
    paths: list[str] = []
    size = 0
    for each in sorted(files):
        if paths and size + each.size > most_bytes:
            batches.append(Batch(tuple(paths)))
            paths, size = [], 0
        paths.append(each.path)
        size += each.size
    return (*batches, Batch(tuple(paths)))


def batches_of_ranges(files: Sequence[InputFile], most_bytes: int) -> tuple[Batch, ...]:
    """Return batches of ranges that follow each other. `files` are in the order of their lowest values, nulls first.

    A range begins at the lowest value of a file. It has about so many bytes when files do not overlap, and at least the
    files that begin at one value.
    """
    bounds: list[str | None] = [None]
    first, size = files[0].lowest, 0
    for each in files:
        if size + each.size > most_bytes and each.lowest is not None and each.lowest != first:
            bounds.append(each.lowest)
            first, size = each.lowest, 0
        size += each.size
    return tuple(Batch((), start, end) for start, end in zip(bounds, [*bounds[1:], None], strict=True))
