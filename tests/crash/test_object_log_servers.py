"""Servers whose logs are objects on a real MinIO server: killed, without it for a while, and two over one cluster."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from harness.history import History
from harness.kills import (
    STREAM,
    Kill,
    between_flush_and_commit,
    both_outcomes,
    check,
    kill_again_and_again,
    progress,
    while_recovering,
    while_serving,
)
from harness.minio import MinioProcess
from harness.server import Server, StartFailedError
from harness.workload import Workload, create_stream
from tailrace.client import Client

SCENARIO_DEADLINE_S = 1800
OUTAGE_S = 5.0
AFTER_TAKEOVER_S = 5.0
SMALL = ("--cache", "128MiB", "--containers", "2")
BYTES_PER_SECOND = 2_000_000


def options(minio: MinioProcess, bucket: str) -> tuple[str, ...]:
    """Of a server whose logs and chunks are in a bucket."""
    place = ("--tier2", f"s3://{bucket}/a/prefix", "--s3-endpoint", minio.endpoint)
    return (*SMALL, "--log", "object", *place)


@pytest.fixture
async def server(minio: MinioProcess, tmp_path: Path) -> AsyncIterator[Server]:
    """A server over a bucket of its own, not started."""
    bucket = minio.new_bucket()
    made = Server(
        tmp_path / "server",
        options=options(minio, bucket),
        environment=minio.credentials,
        objects_in=minio.files_of(bucket) / "a/prefix",
    )
    async with made:
        yield made


@contextlib.asynccontextmanager
async def written_to(client: Client, seed: int) -> AsyncIterator[Workload]:
    """Writers of a new stream."""
    await create_stream(client, STREAM, 4)
    workload = Workload(client, STREAM, History(), seed, bytes_per_second=BYTES_PER_SECOND, abandon_probability=0.0)
    async with workload.running():
        await progress(workload)
        yield workload


@pytest.mark.timeout(SCENARIO_DEADLINE_S)
async def test_kills(server: Server, test_seed: int) -> None:
    kills: list[Kill] = [while_serving, between_flush_and_commit, while_recovering]
    await kill_again_and_again(server, kills, test_seed)


@pytest.mark.timeout(SCENARIO_DEADLINE_S)
async def test_an_outage_of_the_store_fails_nothing(server: Server, minio: MinioProcess, test_seed: int) -> None:
    await server.start()
    async with Client(server.controller) as client:
        async with written_to(client, test_seed) as workload:
            await minio.stop()
            await asyncio.sleep(OUTAGE_S)
            during = workload.history.acknowledged
            await asyncio.sleep(1)
            assert workload.history.acknowledged == during, "nothing is acknowledged that is not stored"
            await minio.start()
            await progress(workload)
            workload.check_alive()
            await both_outcomes(workload)
        assert not any(word.startswith("write:") for word in workload.errors), workload.errors
        assert not workload.unexpected, workload.unexpected[:20]
        await server.kill()
        await server.start()
        await workload.settle()  # a commit is durable when the call returns, and visible a little later
        await check(client, workload.history, "after the outage")


@pytest.mark.timeout(SCENARIO_DEADLINE_S)
async def test_of_two_servers_over_one_cluster_one_acknowledges(
    server: Server, minio: MinioProcess, test_seed: int
) -> None:
    """The second one has a copy of the first one's folder. The server that starts last owns every container."""
    await server.start()
    other = Server(server.folder.parent / "other", options=server.options, environment=server.environment)
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(other)
        client = await stack.enter_async_context(Client(server.controller))
        await create_stream(client, STREAM, 4)
        workload = Workload(client, STREAM, History(), test_seed, transactors=0, bytes_per_second=BYTES_PER_SECOND)
        with contextlib.suppress(asyncio.CancelledError):
            async with asyncio.TaskGroup() as group:
                writing = group.create_task(_write(workload))
                await progress(workload)
                other.folder.mkdir()
                shutil.copytree(server.data, other.data)
                await other.start()
                at_takeover = workload.history.acknowledged
                await asyncio.sleep(AFTER_TAKEOVER_S)
                workload.check_alive()
                assert workload.history.acknowledged == at_takeover, "the first one acknowledges nothing any more"
                assert not workload.unexpected, workload.unexpected[:20]
                writing.cancel()
        states = [(item["state"], item["reason"]) for item in await server.ask("/v1/containers")]
        assert [state for state, _ in states] == ["stopped"] * 2, states
        assert all("was taken by epoch" in reason for _, reason in states), states
        assert (await other.ask("/v1/health"))["ready"]
        async with Client(other.controller) as reader:
            await check(reader, workload.history, "read from the second server")
        await other.kill()
    await server.kill()
    await server.start()
    async with Client(server.controller) as reader:
        await check(reader, workload.history, "read from the first one, started again")


async def _write(workload: Workload) -> None:
    async with workload.running():
        await asyncio.get_running_loop().create_future()


async def test_a_folder_remembers_its_logs_and_refuses_others(server: Server, tmp_path: Path) -> None:
    await server.start()
    await server.stop()
    words = list(server.options)
    server.options = [*words[: words.index("--log")], *words[words.index("--log") + 2 :]]
    await server.start()  # the folder remembers
    await server.stop()
    server.options = [word if word != "object" else "file" for word in words]
    with pytest.raises(StartFailedError, match=r"the folder's logs are object logs, not file logs"):
        await server.start()
    new = Server(tmp_path / "new", options=words, environment=server.environment)
    with pytest.raises(StartFailedError, match=r"belongs to cluster"):
        await new.start()
