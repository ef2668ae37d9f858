"""A worker that has not come up when its pod ends does not outlive the drains of the others.

With its Lease, which says nothing of an end, it would be given their containers (docs/design.md#ownership).
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from harness.apiserver import kubeconfig
from tailrace.common import limits
from tailrace.processes.workers import WorkerPlace, WorkerProcess
from tailrace.segmentstore.worker.cluster_service import ClusterStoreSpec

DEADLINE_S = 120.0


@pytest.fixture
async def worker(tmp_path: Path) -> AsyncIterator[WorkerProcess]:
    """A worker that cannot come up, because no answer of the Kubernetes API reaches it."""
    with contextlib.ExitStack() as stack:
        silent, store, admin = (stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3))
        spec = ClusterStoreSpec(
            namespace="there",
            cluster="orange",
            cluster_id="6f9619ff-8b86-4011-b42d-00c04fc964ff",
            container_count=4,
            worker="orange-store-0-0",
            host="127.0.0.1",
            port=store.getsockname()[1],
            tier2="memory://",
            s3_endpoint=None,
            s3_region=None,
            cache_bytes=256 * limits.MIB,
            attribute_bytes=64 * limits.MIB,
            kubeconfig=str(kubeconfig(tmp_path, f"http://127.0.0.1:{silent.getsockname()[1]}")),
            tried=True,
        )
        running = WorkerProcess(0, WorkerPlace(spec, store, admin))
        running.begin()
        yield running
        await running.close()


async def until(holds: Callable[[], object]) -> None:
    """Wait until something holds."""
    async with asyncio.timeout(DEADLINE_S):
        while not holds():  # noqa: ASYNC110 - of another process
            await asyncio.sleep(0.001)


async def test_a_worker_that_is_starting_ends_before_the_others_have_left(worker: WorkerProcess) -> None:
    await until(lambda: worker.reason)
    assert (worker.state, worker.starts) == ("starting", 1), worker.reason
    await worker.leave(DEADLINE_S)
    assert worker.pid is None
    await until(worker.over.is_set)
    assert (worker.state, worker.starts) == ("left", 1)


async def test_a_worker_whose_process_is_being_made_ends_as_well(worker: WorkerProcess) -> None:
    while not worker.starts:  # noqa: ASYNC110 - looks in each turn of the loop; a process takes several
        await asyncio.sleep(0)
    assert worker.pid is None
    await worker.leave(DEADLINE_S)
    await until(worker.over.is_set)
    assert (worker.state, worker.starts) == ("left", 1)
