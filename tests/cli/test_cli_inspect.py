"""Looking into a running server from the command line."""

from __future__ import annotations

import time
from pathlib import Path

from harness.server import Server


def test_containers_segments_and_cache(cli, scope: str) -> None:
    stream = f"{scope}/seen"
    cli.ok("stream", "create", stream, "--segments", "2")
    cli.ok("write", stream, text="one\n" * 100)
    containers = cli.value("inspect", "containers")
    assert [(item["container_id"], item["state"]) for item in containers] == [(n, "running") for n in range(4)]
    assert "running" in cli.ok("inspect", "containers")
    found = cli.value("inspect", "segments", "--prefix", f"{scope}/seen/")
    assert [item["name"] for item in found] == [f"{stream}/0.#epoch.0", f"{stream}/1.#epoch.0"]
    assert sum(item["length"] for item in found) == 100 * 11
    assert cli.value("inspect", "segments", "--prefix", f"{scope}/seen/", "--limit", "1") == found[:1]
    own = cli.value("inspect", "segments", "--container", str(found[0]["container"]))
    assert found[0]["name"] in [item["name"] for item in own]
    assert {item["container"] for item in own} == {found[0]["container"]}
    assert f"{stream}/0.#epoch.0" in cli.ok("inspect", "segments", "--prefix", f"{scope}/")
    cache = cli.value("inspect", "cache")
    assert cache["max_bytes"] >= cache["used_bytes"] > 0
    assert cache["budgets"]["cache"] == 256 * 2**20
    assert "256.0 MiB" in cli.ok("inspect", "cache")


def test_attributes_and_chunks(cli, scope: str) -> None:
    stream = f"{scope}/detail"
    cli.ok("stream", "create", stream)
    cli.ok("write", stream, text="one\ntwo\n")
    segment = f"{stream}/0.#epoch.0"
    attributes = cli.value("inspect", "attributes", segment)
    assert 2 in [item["value"] for item in attributes], "the writer's last event number"
    assert all(len(item["id"]) == 32 for item in attributes)
    assert attributes[0]["id"] in cli.ok("inspect", "attributes", segment)
    assert isinstance(cli.value("inspect", "chunks", segment), list)
    assert "chunks of" in cli.ok("inspect", "chunks", segment)
    for kind in ("attributes", "chunks"):
        assert cli.fails("inspect", kind, f"{scope}/nothing/0.#epoch.0") == (
            f"tailrace: segment {scope}/nothing/0.#epoch.0 does not exist"
        )
    assert "container" in cli.fails("inspect", "segments", "--container", "99")


def test_chunks_are_as_long_as_the_stream_says(cli, scope: str) -> None:
    stream = f"{scope}/rolled"
    cli.ok("stream", "create", stream, "--rollover-size", "1MiB")
    cli.ok("write", stream, text=("x" * 1015 + "\n") * 6144)  # flushed from 4 MiB on
    deadline_s = time.monotonic() + 120
    chunks: list[dict[str, int]] = []
    while sum(chunk["length_bytes"] for chunk in chunks) < 4_000_000:
        assert time.monotonic() < deadline_s
        time.sleep(0.1)
        chunks = cli.value("inspect", "chunks", f"{stream}/0.#epoch.0")
    assert max(chunk["length_bytes"] for chunk in chunks) <= 2**20
    assert cli.value("stream", "info", stream)["rollover_bytes"] == 2**20
    assert "1.0 MiB" in cli.ok("stream", "info", stream)
    cli.ok("stream", "update", stream, "--rollover-size", "0")
    assert cli.value("stream", "info", stream)["rollover_bytes"] is None


def test_what_streams_hold_in_tier_2(cli, scope: str) -> None:
    stream = f"{scope}/held"
    cli.ok("stream", "create", stream, "--segments", "2")
    cli.ok("write", stream, text="0123456789\n" * 100)
    (found,) = cli.value("inspect", "streams", "--prefix", stream)
    assert (found["stream"], found["segments"]) == (stream, 2)
    assert found["retained_bytes"] == 100 * 18
    assert found["held_bytes"] >= 0
    assert "held in Tier 2" in cli.ok("inspect", "streams", "--prefix", f"{scope}/")
    assert cli.value("inspect", "streams", "--limit", "1") != []


async def test_the_cache_of_each_worker(cli, tmp_path: Path) -> None:
    async with Server(tmp_path / "server", workers=2) as server:
        await server.start()
        shown = cli.ok("inspect", "cache", "--admin", server.admin).splitlines()
        titles = [line for line in shown if not line.startswith(" ")]
        assert titles == [f"{what} of worker {number}" for number in range(2) for what in ("cache", "budgets")]
        assert len([line for line in shown if line.split() == ["cache", "128.0", "MiB"]]) == 2
        workers = cli.value("inspect", "cache", "--admin", server.admin)["workers"]
        assert [worker["worker"] for worker in workers] == [0, 1]
        assert [worker["budgets"]["cache"] for worker in workers] == [128 * 2**20] * 2
        await server.stop()
