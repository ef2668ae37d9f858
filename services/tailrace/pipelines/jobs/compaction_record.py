"""The record of a join of folders, and the steps that carry it out (docs/formats/spark.md#joins)."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from tailrace.common import limits
from tailrace.common.errors import CorruptionError, DataLossError
from tailrace.pipelines.checked_record import pack, unpack

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tailrace.pipelines.jobs.job_files import JobFiles

MAGIC: Final = b"TRSJ"
VERSION: Final = 1
BATCH_FOLDER: Final = "batch={:08d}"
COMPACTION_FOLDER: Final = "_compaction"
RECORD: Final = f"{COMPACTION_FOLDER}/join"
COMPLETE: Final = "_SUCCESS"
_FOLDER: Final = re.compile(r"joined-[0-9a-f]{32}")


@dataclass(frozen=True)
class Join:
    """A join that is decided.

    ``numbers`` of the folders that become one, the last of them. ``replaced``: the files that this one has before.
    ``folder`` has the ``joined`` files, by their paths in it with their lengths in bytes, until they move.
    """

    numbers: tuple[int, ...]
    replaced: tuple[str, ...]
    folder: str
    joined: Mapping[str, int]


def is_data(path: str) -> bool:
    """Return whether a path in a folder is one of a file with rows, as readers of Parquet decide."""
    return not any(part.startswith(("_", ".")) for part in path.split("/"))


def carry_out(files: JobFiles, output: str, join: Join) -> None:
    """Put the joined files in the place of the folders. When it breaks off anywhere, it can begin again.

    The joined files leave their folder one by one, after the files that they replace are gone. So each step finds
    either what it has to do, or that it was done.

    Raises:
        DataLossError: joined files are missing, in both places. Nothing was deleted.
    """
    *sources, last = join.numbers
    target, folder = f"{output}/{BATCH_FOLDER.format(last)}", f"{output}/{COMPACTION_FOLDER}/{join.folder}"
    there = files.files(target) | files.files(folder)
    missing = [name for name, length in join.joined.items() if there.get(name) != length]
    if missing:
        raise DataLossError(f"{len(missing)} joined files are missing, such as {folder}/{missing[0]}: the folders stay")
    files.delete(f"{target}/{COMPLETE}")
    for number in sources:
        files.delete(f"{output}/{BATCH_FOLDER.format(number)}")
    for name in join.replaced:
        files.delete(f"{target}/{name}")
    for name in join.joined:
        files.move(f"{folder}/{name}", f"{target}/{name}")
    files.write(f"{target}/{COMPLETE}", b"")
    files.sync(target)
    files.delete(f"{output}/{RECORD}")
    files.delete(f"{output}/{COMPACTION_FOLDER}")


def finish(files: JobFiles, output: str) -> Join | None:
    """Carry out the join that a run before has decided, and return it; remove what one has left undecided.

    Raises:
        CorruptionError: the record is damaged. FormatVersionError: a newer program wrote it.
        DataLossError: see `carry_out`.
    """
    place = f"{output}/{RECORD}"
    record = files.read(place, limits.SPARK_COMPACTION_RECORD_BYTES)
    if record is None:
        files.delete(f"{output}/{COMPACTION_FOLDER}")
        return None
    join = decode(record, place)
    carry_out(files, output, join)
    return join


class _Payload(msgspec.Struct, frozen=True, array_like=True):
    numbers: tuple[int, ...]
    replaced: tuple[str, ...]
    folder: str
    joined: dict[str, int]


_DECODER: Final = msgspec.msgpack.Decoder(_Payload)


def encode(join: Join) -> bytes:
    """Return the bytes of a record."""
    payload = msgspec.msgpack.encode(_Payload(join.numbers, join.replaced, join.folder, dict(join.joined)))
    return pack(MAGIC, VERSION, payload)


def decode(data: bytes, place: str) -> Join:
    """Return the join of stored bytes.

    Raises:
        CorruptionError: they are damaged. FormatVersionError: a newer program wrote them.
    """
    found = unpack(MAGIC, VERSION, data, place, _DECODER)
    numbers = found.numbers
    if len(numbers) < 2 or numbers[0] < 0 or any(a >= b for a, b in itertools.pairwise(numbers)):
        raise CorruptionError(place, "the folders of the record are no increasing numbers")
    names = (*found.replaced, *found.joined)
    if not all(map(is_data, names)) or any(name.startswith("/") for name in names):
        raise CorruptionError(place, "the record names files that no job writes")
    if not _FOLDER.fullmatch(found.folder) or not found.joined.keys().isdisjoint(found.replaced):
        raise CorruptionError(place, "the record names a folder, or joined files, that no job writes")
    return Join(numbers, found.replaced, found.folder, found.joined)
