"""A segment store pod is ready when a rollout may go on to the next one, and an outage makes none unready."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator

import pytest

from tailrace.common import limits
from tailrace.processes.segment_store_pod import StorePod, StorePodOptions, checked_budgets
from tailrace.processes.store_readiness import why_not_ready
from tailrace.processes.worker_watchdog import WorkerWatchdog
from tailrace.processes.workers import WorkerPlace, WorkerProcess, WorkerProcesses
from tailrace.segmentstore.worker.cluster_service import FOLLOWING, OPENS, WAITING
from tailrace.segmentstore.worker.not_open import Opens

OPTIONS = StorePodOptions(
    namespace="there",
    cluster="orange",
    cluster_id="6f9619ff-8b86-4011-b42d-00c04fc964ff",
    pod="orange-store-0",
    containers=16,
    workers=2,
    memory_bytes=1536 * limits.MIB,
    tier2="s3://bucket/prefix",
    s3_endpoint=None,
    s3_region=None,
    bind="127.0.0.1",
    advertise="orange-store-0.there.svc",
    store_port=12345,
    admin_port=6061,
    kubeconfig=None,
)
NOTHING, TRYING, SOME, NONE = (f"{OPENS}{each}" for each in Opens)


@pytest.fixture
def sockets() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.socket() as store, socket.socket() as admin:
        yield store, admin


@pytest.fixture
async def pod(sockets: tuple[socket.socket, socket.socket]) -> StorePod:
    """A pod whose workers have no processes: what these would report is given by `report`."""
    made = StorePod(OPTIONS)
    specs = OPTIONS.specs(checked_budgets(OPTIONS))
    made._workers = WorkerProcesses([WorkerPlace(spec, *sockets) for spec in specs])
    return made


async def report(worker: WorkerProcess, *lines: str) -> None:
    """Let the pod read what the worker's process reports."""
    process = await asyncio.create_subprocess_exec(
        "printf", "%s\n", *lines, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE
    )
    assert await worker._listen(process, WorkerWatchdog()) == ""
    await process.wait()


async def test_a_pod_that_opens_none_of_its_containers_is_not_ready(pod: StorePod) -> None:
    """Whatever keeps them closed: a rollout would go on to the next pod, and take the containers of all."""
    for worker in pod._workers.workers:
        await report(worker, "ready", FOLLOWING, NONE, f"{WAITING}container 3 has not been open for 21 s: damaged")
    found = pod._readiness()
    assert not found.ready
    assert found.reasons[0] == "orange-store-0-0: container 3 has not been open for 21 s: damaged"
    assert found.reasons[-1] == "none of the pod's containers has opened for 20 s"
    await report(pod._workers.workers[0], SOME)
    assert pod._readiness().ready, "one container that opens is enough: the others have reasons of their own"


async def test_a_pod_is_ready_again_when_it_has_none_or_an_outage_is_the_reason(pod: StorePod) -> None:
    for worker in pod._workers.workers:
        await report(worker, "ready", FOLLOWING, SOME, NONE)
    assert not pod._readiness().ready
    for worker in pod._workers.workers:
        await report(worker, NOTHING)
    assert pod._readiness().ready


async def test_a_worker_without_containers_hides_no_sibling_that_opens_none(pod: StorePod) -> None:
    first, second = pod._workers.workers
    await report(first, "ready", FOLLOWING, NOTHING)
    await report(second, "ready", FOLLOWING, NONE)
    assert not pod._readiness().ready


async def test_a_new_pod_is_ready_when_it_has_opened_its_first_container(pod: StorePod) -> None:
    """It begins without any, and the next pod's containers would be the first that it gets."""
    for worker in pod._workers.workers:
        await report(worker, "ready", FOLLOWING, NOTHING)
    found = pod._readiness()
    assert not found.ready
    assert "the new pod has no containers yet" in found.reasons[0]
    await report(pod._workers.workers[1], TRYING)
    assert pod._readiness().reasons == ["the pod's first containers are opening"]
    await report(pod._workers.workers[1], SOME)
    assert pod._readiness().ready
    await report(pod._workers.workers[1], NOTHING, TRYING)
    assert pod._readiness().ready, "it has shown that it can: one that moves is no reason"


async def test_a_new_pod_without_containers_is_ready_after_a_while(pod: StorePod) -> None:
    """There may be more workers than containers."""
    loop, workers = asyncio.get_running_loop(), pod._workers.workers
    for worker in workers:
        await report(worker, "ready", FOLLOWING, NOTHING)
    late_s = loop.time() + limits.POD_UNPROVED_S
    assert "ready when it has opened one" in why_not_ready(workers, loop.time())
    assert why_not_ready(workers, late_s) == ""
    await report(workers[0], TRYING)
    assert why_not_ready(workers, late_s) == "the pod's first containers are opening"


async def test_a_worker_that_starts_again_keeps_what_the_pod_has_shown(
    pod: StorePod, monkeypatch: pytest.MonkeyPatch
) -> None:
    for worker in pod._workers.workers:
        await report(worker, "ready", FOLLOWING, SOME)

    async def ended(place: WorkerPlace) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            "true", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )

    monkeypatch.setattr("tailrace.processes.workers._spawn", ended)
    for worker in pod._workers.workers:
        await worker._run_once()
        assert worker.opens is Opens.NOTHING_DUE, "that was the process before"
        await report(worker, "ready", FOLLOWING, NOTHING)
    assert pod._readiness().ready
