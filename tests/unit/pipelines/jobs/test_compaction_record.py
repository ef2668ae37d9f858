"""A join that breaks off at any step is finished by the next run (docs/formats/spark.md#joins)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.common.errors import CorruptionError, DataLossError, FormatVersionError
from tailrace.pipelines.checked_record import HEADER, pack
from tailrace.pipelines.jobs.compaction_record import (
    COMPACTION_FOLDER,
    MAGIC,
    RECORD,
    Join,
    carry_out,
    decode,
    encode,
    finish,
    is_data,
)

from ..damaged_records import damaged

PAGE = Path(__file__).parents[4] / "docs" / "formats" / "spark.md"
FOLDER = f"joined-{7:032x}"
JOIN = Join(
    (3, 4, 7),
    ("day=2013-01-01/part-a.parquet",),
    FOLDER,
    {"day=2013-01-01/part-j.parquet": 2, "day=2013-01-02/part-k.parquet": 1},
)
JOINED = f"out/{COMPACTION_FOLDER}/{FOLDER}"
joins = st.builds(
    Join,
    st.lists(st.integers(0, 2**40), min_size=2, max_size=5, unique=True).map(sorted).map(tuple),
    st.lists(st.sampled_from(("part-a.parquet", "day=1/part-b.parquet")), max_size=3).map(tuple),
    st.just(FOLDER),
    st.dictionaries(st.sampled_from(("part-j.parquet", "day=1/part-k.parquet")), st.integers(0, 2**40)),
)


class BreakOffError(Exception):
    """The process ends here."""


class MemoryFiles:
    """Files in memory; changes break off after some steps. A move is two steps, as in an object store."""

    def __init__(self, content: dict[str, bytes], steps: int | None = None) -> None:
        self.content = content
        self.steps = steps

    def _step(self) -> None:
        if self.steps is not None:
            self.steps -= 1
            if self.steps < 0:
                raise BreakOffError

    def folders(self, path: str) -> list[str]:
        return sorted({each.split("/")[0] for each in self.files(path) if "/" in each})

    def files(self, path: str) -> dict[str, int]:
        start = f"{path}/"
        return {name.removeprefix(start): len(value) for name, value in self.content.items() if name.startswith(start)}

    def read(self, path: str, length_max_bytes: int) -> bytes | None:
        return self.content.get(path)

    def write(self, path: str, content: bytes) -> None:
        self._step()
        self.content[path] = content

    def move(self, source: str, target: str) -> None:
        if target not in self.content:
            self._step()
            self.content[target] = self.content[source]
        self._step()
        self.content.pop(source, None)

    def delete(self, path: str) -> None:
        for name in sorted(self.content):
            if name == path or name.startswith(f"{path}/"):
                self._step()
                del self.content[name]

    def sync(self, path: str) -> None:
        self._step()


def before() -> dict[str, bytes]:
    """Three folders of an output, the files that take their place, and others."""
    return {
        "out/batch=00000002/day=2013-01-01/part-x.parquet": b"other",
        "out/batch=00000003/day=2013-01-01/part-y.parquet": b"3",
        "out/batch=00000003/_SUCCESS": b"",
        "out/batch=00000004/_SUCCESS": b"",
        "out/batch=00000007/day=2013-01-01/part-a.parquet": b"7",
        "out/batch=00000007/_SUCCESS": b"",
        "out/batch=00000008/day=2013-01-01/part-z.parquet": b"later",
        f"{JOINED}/day=2013-01-01/part-j.parquet": b"37",
        f"{JOINED}/day=2013-01-02/part-k.parquet": b"k",
        f"{JOINED}/_SUCCESS": b"",
        f"out/{RECORD}": encode(JOIN),
    }


AFTER = {
    "out/batch=00000002/day=2013-01-01/part-x.parquet": b"other",
    "out/batch=00000007/day=2013-01-01/part-j.parquet": b"37",
    "out/batch=00000007/day=2013-01-02/part-k.parquet": b"k",
    "out/batch=00000007/_SUCCESS": b"",
    "out/batch=00000008/day=2013-01-01/part-z.parquet": b"later",
}


def test_a_join_that_breaks_off_at_any_step_is_finished() -> None:
    whole = MemoryFiles(before(), 1_000)
    carry_out(whole, "out", JOIN)
    assert whole.content == AFTER
    assert whole.steps is not None
    count = 1_000 - whole.steps
    assert count >= 12
    for steps in range(count):
        files = MemoryFiles(before(), steps)
        with pytest.raises(BreakOffError):
            carry_out(files, "out", JOIN)
        for again in range(count):
            files.steps = again
            try:
                finish(files, "out")
                break
            except BreakOffError:
                continue
        assert files.content == AFTER, steps


@pytest.mark.parametrize("lost", ["gone", "short"])
def test_nothing_is_deleted_when_a_joined_file_is_missing(lost: str) -> None:
    """As when another process has removed what it took for left over."""
    content = before()
    name = f"{JOINED}/day=2013-01-02/part-k.parquet"
    if lost == "gone":
        del content[name]
    else:
        content[name] = b""
    files = MemoryFiles(dict(content))
    with pytest.raises(DataLossError, match=r"1 joined files are missing, such as .*part-k\.parquet"):
        finish(files, "out")
    assert files.content == content


def test_a_join_that_another_process_carries_out_at_once_ends_in_the_same_files() -> None:
    """Each comes to an end, or fails: no file is lost."""
    files = MemoryFiles(before())

    class Between(MemoryFiles):
        """The other process runs through before a move."""

        def move(self, source: str, target: str) -> None:
            if source in files.content:
                carry_out(files, "out", JOIN)
            super().move(source, target)

    mine = Between(files.content)
    carry_out(mine, "out", JOIN)
    assert files.content == AFTER


def test_what_no_record_decides_is_removed_and_the_folders_stay() -> None:
    content = before()
    del content[f"out/{RECORD}"]
    files = MemoryFiles(content)
    assert finish(files, "out") is None
    assert files.content == {name: value for name, value in before().items() if COMPACTION_FOLDER not in name}


def test_a_damaged_record_changes_nothing() -> None:
    content = before()
    content[f"out/{RECORD}"] = encode(JOIN)[:-1]
    files = MemoryFiles(dict(content))
    with pytest.raises(CorruptionError, match=f"out/{RECORD}"):
        finish(files, "out")
    assert files.content == content


def test_the_documented_vector() -> None:
    lines = re.findall(r"^    ([0-9a-f]+)$", PAGE.read_text().partition("## Joins")[2], re.M)
    assert "".join(lines) == encode(JOIN).hex()
    assert decode(bytes.fromhex("".join(lines)), "vector") == JOIN


@given(joins)
def test_both_ways(join: Join) -> None:
    assert decode(encode(join), "here") == join


@given(joins, st.data())
def test_damage_is_found(join: Join, data: st.DataObject) -> None:
    for bad in damaged(encode(join), data):
        with pytest.raises(CorruptionError, match="here"):
            decode(bad, "here")


def test_a_newer_version_is_refused() -> None:
    with pytest.raises(FormatVersionError, match="version 2, this program reads up to 1"):
        decode(pack(MAGIC, 2, encode(JOIN)[HEADER.size :]), "here")


@pytest.mark.parametrize(
    "join",
    [
        Join((3,), (), FOLDER, {}),
        Join((3, 3), (), FOLDER, {}),
        Join((-1, 3), (), FOLDER, {}),
        Join((1, 3), ("../batch=00000002/part-x.parquet",), FOLDER, {}),
        Join((1, 3), ("/etc/passwd",), FOLDER, {}),
        Join((1, 3), ("_SUCCESS",), FOLDER, {}),
        Join((1, 3), (), FOLDER, {"_SUCCESS": 0}),
        Join((1, 3), ("part-a.parquet",), FOLDER, {"part-a.parquet": 1}),
        Join((1, 3), (), "../batch=00000002", {}),
    ],
)
def test_a_record_that_no_program_writes_is_damage(join: Join) -> None:
    with pytest.raises(CorruptionError, match="here"):
        decode(encode(join), "here")


def test_files_with_rows_are_those_that_readers_take() -> None:
    assert is_data("day=2013-01-01/part-a.parquet")
    assert is_data("part-a.parquet")
    assert not is_data("_SUCCESS")
    assert not is_data("_temporary/0/part-a.parquet")
    assert not is_data(".part-a.parquet.crc")
