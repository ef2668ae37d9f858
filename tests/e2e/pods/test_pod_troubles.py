"""What a pod reports while something keeps it from serving; it neither restarts again and again nor does harm."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from typing import Any

import httpx
import pytest

from harness.minio import MinioProcess
from harness.pods import CLUSTER, WORKERS, PodProcess, Pods, StorePod, until
from harness.steadywriters import SteadyWriters
from tailrace.client import Client
from tailrace.cluster.kubernetes import LEASES
from tailrace.cluster.leases import container_lease_name, read_container_lease, read_worker_lease, worker_lease_name

LAPSE_S = 5.0
STREAMS = 12

pytestmark = pytest.mark.timeout(290)


async def reason(pod: StorePod, words: str) -> dict[str, Any]:
    """Wait until every worker gives such a reason in /readyz; return the answer."""
    found: dict[str, Any] = {}

    async def says_so() -> bool:
        try:
            answer = await pod.get("/readyz")
        except httpx.HTTPError:
            return False
        found.update(answer.json())
        return answer.status_code == 503 and all(words in worker["reason"] for worker in found["workers"])

    await until(f"{pod.name} says {words!r}", says_so, 40.0)
    assert (await pod.get("/healthz")).status_code == 200
    return found


async def test_without_right_to_leases_then_without_cluster_then_without_store(pods: Pods, minio: MinioProcess) -> None:
    """All of it may pass: the pod waits, and is ready in the end, by the processes that it began with."""
    pods.kubernetes.forbidden.add(LEASES.plural)
    pod = pods.store(0)
    await minio.stop()
    await pod.start()
    await reason(pod, f"Tier 2 s3://{pods.bucket}/a/prefix at {minio.endpoint} is not available: ")
    await minio.start()
    found = await reason(pod, "leases: the Kubernetes API answers 403 Forbidden")
    assert found["reasons"][0].startswith(f"{pod.name}-0: ")
    pods.kubernetes.forbidden.clear()
    await reason(pod, "does not exist")  # the StreamCluster
    pods.declare()
    await pods.placer.start()
    await pod.wait_ready()
    await pods.settle()
    workers = await pod.workers()
    assert [(worker["state"], worker["starts"]) for worker in workers] == [("following", 1)] * 2
    metrics = (await pod.get("/metrics")).text
    assert 'tailrace_worker_serves{worker="1"} 1.0' in metrics
    assert 'tailrace_container_running{worker="0",container=' in metrics


async def test_tier2_of_another_cluster_is_reported_and_left_alone(pods: Pods, minio: MinioProcess) -> None:
    pods.declare()
    other = "00000000-0000-4000-8000-000000000001"
    first, second = pods.store(0), pods.store(1, cluster_id=other)
    for pod in (first, pods.placer):
        await pod.start()
    await first.wait_ready()
    await pods.settle()
    objects = {key for key in minio.objects(pods.bucket) if not key.startswith("a/prefix/log")}
    await second.start()
    await reason(second, f"belongs to cluster {first.words[first.words.index('--cluster-id') + 1]}, not to {other}")
    await asyncio.sleep(5)
    assert all(worker["starts"] <= 5 for worker in await second.workers()), "it backs off"
    await first.wait_ready()
    assert set(pods.placed()) == {f"{first.name}-0", f"{first.name}-1"}

    async def probes_are_deleted() -> bool:
        left = {key for key in minio.objects(pods.bucket) if not key.startswith("a/prefix/log")}
        return not {key for key in left - objects if "probe" in key}

    await until("no probe is left between two starts of a worker", probes_are_deleted, 60.0)
    assert await second.terminate() == 0


async def test_the_younger_of_two_pods_of_one_name_stays(pods: Pods) -> None:
    pods.declare()
    older = pods.store(0)
    for pod in (older, pods.placer):
        await pod.start()
    await older.wait_ready()
    pods.stores.remove(older)
    younger = pods.store(0)
    younger.name = "younger"  # of its log
    await younger.start()
    try:
        await younger.wait_ready()
        assert older.process is not None
        async with asyncio.timeout(120):
            assert await older.process.wait() == 1
        errors = [line for line in older.log_file.read_text().splitlines() if not line.startswith("{")]
        assert "was started elsewhere" in errors[-1]
        await pods.settle()
    finally:
        await older.kill()


async def test_a_wrong_epoch_in_a_lease_closes_no_container(pods: Pods) -> None:
    await pods.start(stores=1, controllers=0)
    (pod,), core = pods.stores, pods.kubernetes.core
    placed = pods.placed()[f"{pod.name}-0"]
    for number in placed:
        lease = core.get(LEASES, container_lease_name(CLUSTER, number))
        lease["metadata"]["annotations"]["tailrace.io/epoch"] = "1000000"
        core.replace(LEASES, lease)
    os.kill(await pod.worker_pid(0), signal.SIGKILL)

    async def opened_again() -> bool:
        return {event["container"] for event in pod.log_events("epoch_too_high")} == set(placed)

    await until("the worker has met the epochs", opened_again, 40.0)
    await pods.settle()
    leases = [read_container_lease(core.get(LEASES, container_lease_name(CLUSTER, number))) for number in placed]
    assert all(lease is not None and lease.epoch < 10 for lease in leases)

    async def has_no_reason() -> bool:
        return (await pod.get("/readyz")).json()["reasons"] == []

    await until("the pod has nothing to report", has_no_reason)


async def test_a_container_that_cannot_be_opened_is_reported_by_a_pod_that_is_ready(
    pods: Pods, minio: MinioProcess
) -> None:
    await pods.start(stores=1, controllers=0)
    (pod,) = pods.stores
    number, *others = pods.placed()[f"{pod.name}-0"]
    pods.placer.signal(signal.SIGSTOP)  # on a slow machine, too, the worker is back before the placer looks
    before = Counter(event["container"] for event in pod.log_events("container_opened"))
    worker_pid = await pod.worker_pid(0)
    os.kill(pod.pid, signal.SIGSTOP)  # it starts the worker again when the log is damaged, not before
    os.kill(worker_pid, signal.SIGKILL)
    for key in minio.objects(pods.bucket):
        if key.startswith(f"a/prefix/log/{number}/") and key.endswith("/start"):
            minio.put(pods.bucket, key, b"no START frame")
    os.kill(pod.pid, signal.SIGCONT)

    async def says_so() -> bool:
        answer = await pod.get("/readyz")
        reasons = answer.json()["reasons"]
        words = f": container {number} has not been open for "
        return answer.status_code == 200 and len(reasons) == 1 and words in reasons[0]

    await until("the pod is ready and reports the container", says_so, 60.0)

    async def worker_says_so() -> bool:
        return any(worker["reason"].startswith(f"container {number} ") for worker in await pod.workers())

    await until("the worker reports it as well", worker_says_so)

    def lease_says_so() -> bool:
        lease = pods.kubernetes.core.get(LEASES, worker_lease_name(CLUSTER, f"{pod.name}-0"))
        stored = read_worker_lease(lease)
        return stored is not None and stored.not_open.startswith(f"container {number} is not open: corruption in ")

    await until("the worker's Lease says so, at one of its next renewals", lease_says_so, 60.0)

    def others_are_open() -> bool:
        opened = Counter(event["container"] for event in pod.log_events("container_opened")) - before
        assert number not in opened
        return opened.keys() >= set(others)

    await until("the worker's other containers are open", others_are_open)


async def test_a_pod_that_can_open_none_of_its_containers_is_not_ready(pods: Pods, minio: MinioProcess) -> None:
    """A rollout stops at it. An outage that comes afterwards is no reason to go on."""
    await pods.start(stores=1, controllers=0)
    (pod,) = pods.stores
    pods.placer.signal(signal.SIGSTOP)  # on a slow machine, too, the workers are back before the placer looks
    worker_pids = [await pod.worker_pid(number) for number in range(WORKERS)]
    os.kill(pod.pid, signal.SIGSTOP)  # it starts the workers again when the logs are damaged, not before
    for worker_pid in worker_pids:
        os.kill(worker_pid, signal.SIGKILL)
    for key in minio.objects(pods.bucket):
        if key.startswith("a/prefix/log/") and key.endswith("/start"):
            minio.put(pods.bucket, key, b"no START frame")
    os.kill(pod.pid, signal.SIGCONT)

    async def is_not_ready() -> bool:
        answer = await pod.get("/readyz")
        return answer.status_code == 503 and "none of the pod's containers has opened" in answer.json()["reasons"][-1]

    await until("the pod is not ready, and says why", is_not_ready)
    assert all(worker["state"] == "following" for worker in await pod.workers())
    assert (await pod.get("/healthz")).status_code == 200, "it is not started again for that"
    await minio.stop()

    async def knows_of_the_outage() -> bool:
        return all("object store has not answered" in worker["reason"] for worker in await pod.workers())

    await until("the workers report the outage", knows_of_the_outage)
    assert await is_not_ready()
    await minio.start()


async def test_a_pod_that_is_stopped_is_fenced_when_it_continues(pods: Pods) -> None:
    await pods.start()
    async with Client(pods.address_of(pods.controllers[0])) as client:
        writers = await SteadyWriters.create(client, STREAMS)
        async with writers.running():
            pod = pods.stores[0]
            pod.signal(signal.SIGSTOP)
            await until("its containers are elsewhere", lambda: not any("store-0" in name for name in pods.placed()))
            await asyncio.sleep(LAPSE_S)  # new owners acknowledge: clients that ask the controller are sent to them
            pod.signal(signal.SIGCONT)
            await writers.progress()
            await pod.wait_ready()
            await until("the pod has its share again", lambda: sorted(map(len, pods.placed().values())) == [2] * 4)
            await pods.settle()
        await writers.check(client)


async def test_controllers_serve_without_stores_and_one_that_ends_is_not_ready_first(pods: Pods) -> None:
    pods.declare()
    first, second = pods.controller(0), pods.controller(1)
    for controller in (first, second):
        await controller.start()
    await until("they are alive", lambda: _answers(first, "/healthz", 200))
    answer = await first.get("/readyz")
    assert answer.status_code == 503
    assert answer.json()["reasons"]
    for pod in (pods.store(0), pods.placer):
        await pod.start()
    for controller in (first, second):
        await controller.wait_ready()
    async with Client(pods.address_of(second)) as client:
        for attempt in range(1, 4):  # it answers for CONTROLLER_LINGER_S, in which this test may get no processor
            seen = await _is_not_ready_first(first)
            await client.streams.create_scope(f"made-meanwhile-{attempt}")
            if seen:
                break
            await first.start()
            await first.wait_ready()
    assert seen, "it ended without an answer that it is not ready"


async def _is_not_ready_first(controller: PodProcess) -> bool:
    """End a controller; whether it said that it is not ready, before it ended well."""
    ending = asyncio.ensure_future(controller.terminate())
    seen = False
    while not ending.done() and not seen:
        seen = await _answers(controller, "/readyz", 503)
    assert await ending == 0
    return seen


async def _answers(pod: Any, path: str, status: int) -> bool:
    try:
        return bool((await pod.get(path)).status_code == status)
    except httpx.HTTPError:
        return False
