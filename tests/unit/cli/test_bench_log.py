"""`tailrace bench log`: what is left in the object store after a failure."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from tailrace.cli.bench import log
from tailrace.common.errors import DataLossError, UnavailableError
from tailrace.log.object import ObjectLog
from tailrace.storage.folder_objects import FolderObjects

DEADLINE_S = 120.0


def files_below(folder: Path, pattern: str = "**/*") -> list[Path]:
    return [path for path in folder.glob(pattern) if path.is_file()]


async def fail(folder: Path) -> None:
    """Put objects, and fail."""
    async with log.own_folder(f"file://{folder}", None) as store:
        for number in range(5):
            await store.put(f"log/{number}", [b"x"])
        raise DataLossError("it failed")


async def test_nothing_is_left_when_it_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "PAGE_OBJECTS", 2)
    with pytest.raises(DataLossError, match="it failed"):
        await fail(tmp_path)
    assert files_below(tmp_path) == []


async def test_nothing_is_left_when_it_is_stopped(tmp_path: Path) -> None:
    async def measure() -> None:
        async with log.own_folder(f"file://{tmp_path}", None) as store:
            await log._measure("log", partial(ObjectLog, store, 1), 1e6, 0.0, lambda _: None)

    measuring = asyncio.create_task(measure())
    async with asyncio.timeout(DEADLINE_S):
        while len(files_below(tmp_path, "*/log/**/*")) < 10:  # noqa: ASYNC110  # files say nothing by themselves
            await asyncio.sleep(0.001)
        measuring.cancel()
        with pytest.raises(asyncio.CancelledError):
            await measuring
    assert files_below(tmp_path) == []


async def test_a_store_that_fails_does_not_hide_the_first_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def refuse(self: FolderObjects, keys: Sequence[str]) -> None:
        if any(key.startswith("log") for key in keys):
            raise UnavailableError("delete is refused")

    monkeypatch.setattr(FolderObjects, "delete", refuse)
    with pytest.raises(DataLossError, match="it failed"):
        await fail(tmp_path)
    err = capsys.readouterr().err
    assert err.startswith(f"tailrace: objects of the benchmark may be left in file://{tmp_path}/bench-")
    assert err.endswith(": delete is refused\n")
