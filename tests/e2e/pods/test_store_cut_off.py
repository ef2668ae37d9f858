"""A pod that the object store does not answer, while it answers the other one and Kubernetes answers both."""

from __future__ import annotations

import asyncio

import pytest

from harness.minio import MinioProcess
from harness.pace import Tries
from harness.pods import Pods, until
from harness.steadywriters import SteadyWriters
from harness.tcprelay import relay
from tailrace.client import Client

STREAMS = 12
GAP_MAX_S = 25.0

pytestmark = pytest.mark.timeout(290)


async def test_containers_of_a_pod_that_is_cut_off_from_the_object_store_move(pods: Pods, minio: MinioProcess) -> None:
    """Its writers wait for a bounded time; it says what is wrong; it takes containers again when the store answers."""
    loop = asyncio.get_running_loop()
    async with relay(minio.endpoint) as network:
        pods.declare()
        pods.controller(0)
        pods.store(0, s3_endpoint=network.endpoint)
        pods.store(1)
        await pods.complete()
        cut_off, other = pods.stores
        async with Client(pods.address_of(pods.controllers[0])) as client:
            writers = await SteadyWriters.create(client, STREAMS)
            async with writers.running():
                for attempt in Tries("object store away from one pod", {"gap": GAP_MAX_S}):
                    network.cut()
                    cut_at_s = loop.time()

                    def all_moved() -> bool:
                        return all(worker.startswith(f"{other.name}-") for worker in pods.placed())

                    await until("its containers have moved", all_moved)
                    await writers.progress()
                    attempt.note("gap", writers.longest_gap_s(cut_at_s))
                    answer = await cut_off.get("/readyz")
                    assert "the object store has not answered for" in str(answer.json()["reasons"])
                    metrics = (await cut_off.get("/metrics")).text
                    silent = [line for line in metrics.splitlines() if "tailrace_worker_store_silent_seconds{" in line]
                    assert len(silent) == 2, metrics
                    assert all(float(line.rpartition(" ")[2]) >= 10.0 for line in silent)
                    network.heal()
                    await pods.settle()
            await writers.check(client)
