"""A data folder that cannot be used: the server refuses to start with exit code 1 and one line that says why."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.server import Server, StartFailedError
from harness.smalldisk import small_disk

SMALL = ("--cache", "64MiB", "--containers", "1")


async def refusal(server: Server) -> str:
    """The one line of a server that does not start."""
    before = server.log_at_any_pace if server.log_file.exists() else ""
    with pytest.raises(StartFailedError) as raised:
        await server.start()
    assert raised.value.code == 1
    said = server.log_at_any_pace[len(before) :]
    assert said.count("\n") == 1, said
    assert said.startswith("tailrace: ")
    return raised.value.words.removeprefix("tailrace: ")


def manifest_of(server: Server) -> Path:
    """What says the folder's format and shape."""
    return server.data / "tailrace.json"


async def test_in_use(tmp_path: Path) -> None:
    async with Server(tmp_path / "first", options=SMALL) as first:
        await first.start()
        second = Server(tmp_path / "second", options=SMALL, data_in=first.data)
        assert await refusal(second) == f"data folder {first.data} is in use by another process"
        assert (await first.ask("/v1/health"))["ready"]
        await first.stop()
        async with second:
            await second.start()


async def test_newer_format_and_other_shape(tmp_path: Path) -> None:
    async with Server(tmp_path, options=SMALL) as server:
        await server.start()
        await server.stop()
        kept = manifest_of(server).read_text()

        server.options = ("--cache", "64MiB", "--containers", "2")
        assert await refusal(server) == f"{manifest_of(server)}: the folder has 1 containers, not 2"
        server.options = (*SMALL, "--tier2", f"file://{tmp_path}/elsewhere")
        said = await refusal(server)
        assert said == f"{manifest_of(server)}: the folder's Tier 2 is in the folder, not file://{tmp_path}/elsewhere"

        server.options = SMALL
        manifest_of(server).write_text(json.dumps({**json.loads(kept), "format": 3}))
        assert await refusal(server) == f"{manifest_of(server)}: format 3 is newer than this program's 2"
        manifest_of(server).write_text(json.dumps({**json.loads(kept), "format": 3, "containers": "as many as needed"}))
        assert await refusal(server) == f"{manifest_of(server)}: format 3 is newer than this program's 2"
        manifest_of(server).write_text(kept[: len(kept) // 2])
        assert await refusal(server) == f"{manifest_of(server)} is damaged"

        manifest_of(server).write_text(kept)
        await server.start()


async def test_a_first_start_that_failed_binds_to_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    async with Server(tmp_path, options=("--cache", "64MiB", "--tier2", f"file://{tmp_path}/file")) as server:
        assert await refusal(server) == f"Tier 2 folder {tmp_path}/file cannot be used: File exists"
        server.options = (*SMALL, "--tier2", f"file://{tmp_path}/elsewhere")
        await server.start()
        await server.stop()
        server.options = SMALL
        said = await refusal(server)
        assert said == f"{manifest_of(server)}: the folder's Tier 2 is file://{tmp_path}/elsewhere, not in it"


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """A folder on a file system that takes no writes, not even those of root."""
    with small_disk(tmp_path / "disk", 1) as disk:
        (disk.folder / "data").mkdir()
        subprocess.run(["mount", "-o", "remount,ro", str(disk.folder)], check=True)
        yield disk.folder / "data"


async def test_not_writable(read_only: Path, tmp_path: Path) -> None:
    server = Server(tmp_path / "server", options=SMALL, data_in=read_only)
    assert await refusal(server) == f"data folder {read_only} is not writable: Read-only file system"


async def test_in_place_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file")
    server = Server(tmp_path, options=SMALL)
    assert (await refusal(server)).startswith(f"data folder {server.data} is not writable: ")


async def test_log_without_manifest(tmp_path: Path) -> None:
    async with Server(tmp_path, options=SMALL) as server:
        await server.start()
        await server.stop()
        manifest_of(server).unlink()
        assert await refusal(server) == f"data folder {server.data} has a log but no tailrace.json: it is damaged"


async def test_no_room_at_all(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 4) as disk:
        server = Server(tmp_path / "server", options=SMALL, data_in=disk.folder / "data")
        assert "no space for" in await refusal(server)
