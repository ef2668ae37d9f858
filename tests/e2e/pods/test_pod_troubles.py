"""What a pod says of that which keeps it from serving, and that it neither restarts again and again nor does harm."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from harness.minio import MinioProcess
from harness.pace import Pace
from harness.pods import Pods, StorePod, until
from harness.steadywriters import SteadyWriters
from tailrace.client import Client
from tailrace.cluster.kubernetes import LEASES

BACK_WITHIN_S = 10.0
OUTAGE_S = 8.0

pytestmark = pytest.mark.timeout(200)


async def told(pod: StorePod, words: str) -> dict[str, Any]:
    """What /readyz says once every worker gives such a reason."""
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
    await told(pod, f"Tier 2 s3://{pods.bucket}/a/prefix at {minio.endpoint} does not work: ")
    await minio.start()
    found = await told(pod, "leases: the Kubernetes API answers 403 Forbidden")
    assert found["reasons"][0].startswith(f"{pod.name}-0: ")
    pods.kubernetes.forbidden.clear()
    await told(pod, "does not exist")  # the StreamCluster
    pods.declare()
    await pods.placer.start()
    await pod.wait_ready()
    await pods.settle()
    workers = await pod.workers()
    assert [(worker["state"], worker["starts"]) for worker in workers] == [("following", 1)] * 2
    metrics = (await pod.get("/metrics")).text
    assert 'tailrace_worker_serves{worker="1"} 1.0' in metrics
    assert 'tailrace_container_running{worker="0",container=' in metrics


async def test_tier2_of_another_cluster_is_told_and_left_alone(pods: Pods, minio: MinioProcess) -> None:
    pods.declare()
    other = "00000000-0000-4000-8000-000000000001"
    first, second = pods.store(0), pods.store(1, cluster_id=other)
    for pod in (first, pods.placer):
        await pod.start()
    await first.wait_ready()
    objects = {key for key in minio.objects(pods.bucket) if not key.startswith("a/prefix/log")}
    await second.start()
    await told(second, f"belongs to cluster {first.words[first.words.index('--cluster-id') + 1]}, not to {other}")
    await asyncio.sleep(5)
    assert all(worker["starts"] <= 5 for worker in await second.workers()), "it backs off"
    assert await first.is_ready()
    assert set(pods.placed()) == {f"{first.name}-0", f"{first.name}-1"}
    left = {key for key in minio.objects(pods.bucket) if not key.startswith("a/prefix/log")}
    assert not {key for key in left - objects if "probe" in key}
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
        async with asyncio.timeout(60):
            assert await older.process.wait() == 1
        assert "was started again elsewhere" in older.log_file.read_text().splitlines()[-1]
        await pods.settle()
    finally:
        await older.kill()


async def test_an_outage_of_the_store_is_over_soon_after_it(pods: Pods, minio: MinioProcess) -> None:
    await pods.start()
    loop = asyncio.get_running_loop()
    async with Client(pods.address_of(pods.controllers[0])) as client:
        writers = await SteadyWriters.create(client, 8)
        async with writers.running():
            before = pods.placed()
            await minio.stop()
            await asyncio.sleep(OUTAGE_S)
            await minio.start()
            pace, back_at_s = Pace(), loop.time()
            await writers.progress()
            took_s = loop.time() - back_at_s
            print(f"MinIO: acknowledged again {took_s:.2f} s after its return")
            assert took_s < pace.bound_s(BACK_WITHIN_S)
            assert pods.placed() == before
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
    ending = asyncio.ensure_future(first.terminate())
    await until("it is not ready any more", lambda: _answers(first, "/readyz", 503))
    async with Client(pods.address_of(second)) as client:
        await client.streams.create_scope("made-meanwhile")
    assert await ending == 0


async def _answers(pod: Any, path: str, status: int) -> bool:
    try:
        return bool((await pod.get(path)).status_code == status)
    except httpx.HTTPError:
        return False
