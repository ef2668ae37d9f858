"""Two segment store pods with two workers each, controllers, a placer: how long writers wait as they come and go."""

from __future__ import annotations

import asyncio
import os
import signal

import psutil
import pytest

from harness.minio import MinioProcess
from harness.pace import Tries
from harness.pods import WORKERS, Pods, StorePod, until
from harness.steadywriters import SteadyWriters
from tailrace.client import Client
from tailrace.client.connections.connection import connect
from tailrace.cluster.endpoints import Endpoint
from tailrace.wire import commands as c

STREAMS = 12
CRASH_GAP_MAX_S = 10.0
DRAIN_GAP_MAX_S = 3.0
ALONE_DRAIN_MAX_S = 20.0
LAPSE_S = 5.0
BACK_WITHIN_S = 10.0
OUTAGE_S = 8.0

pytestmark = [pytest.mark.timeout(290), pytest.mark.asyncio(loop_scope="module")]


@pytest.fixture
def pods(whole_pods: Pods) -> Pods:
    """One cluster for all tests of this file."""
    return whole_pods


async def test_a_worker_that_is_killed_is_back_with_its_containers(pods: Pods) -> None:
    loop = asyncio.get_running_loop()
    async with Client(pods.address_of(pods.controllers[0])) as client:
        writers = await SteadyWriters.create(client, STREAMS)
        async with writers.running():
            before = pods.placed()
            assert sorted(map(len, before.values())) == [2, 2, 2, 2]
            pod = pods.stores[0]
            starts = [worker["starts"] for worker in await pod.workers()]
            for attempt in Tries("SIGKILL of a worker; no other may take its containers", {"gap": 2 * CRASH_GAP_MAX_S}):
                pods.placer.signal(signal.SIGSTOP)  # on a slow machine, too, the worker is back before the placer looks
                killed_at_s = loop.time()
                os.kill(await pod.worker_pid(0), signal.SIGKILL)
                await writers.progress()
                await pod.wait_ready()
                pods.placer.signal(signal.SIGCONT)
                await asyncio.sleep(LAPSE_S + 2)
                await pods.settle()
                attempt.note("gap", writers.longest_gap_s(killed_at_s))
                assert [worker["starts"] for worker in await pod.workers()] == [starts[0] + attempt.number, starts[1]]
                assert pods.placed() == before
        await writers.check(client)


async def test_the_containers_of_a_pod_that_is_killed_move(pods: Pods) -> None:
    loop = asyncio.get_running_loop()
    async with Client(pods.address_of(pods.controllers[0])) as client:
        writers = await SteadyWriters.create(client, STREAMS)
        async with writers.running():
            for attempt in Tries("SIGKILL of a pod", {"gap": CRASH_GAP_MAX_S}):
                killed_at_s = loop.time()
                await pods.stores[0].kill()
                await writers.progress()
                attempt.note("gap", writers.longest_gap_s(killed_at_s))
                assert set(pods.placed()) == {"orange-store-1-0", "orange-store-1-1"}
                await comes_back(pods, pods.stores[0])
        await writers.check(client)


async def comes_back(pods: Pods, pod: StorePod) -> None:
    """Start a pod again, and wait until it has its share."""
    await pod.start()
    await pod.wait_ready()
    await until("the pod has its share again", lambda: sorted(map(len, pods.placed().values())) == [2] * 4)
    await pods.settle()


async def test_a_worker_that_is_stopped_acknowledges_nothing_afterwards(pods: Pods) -> None:
    """Its main process ends it once it has lost its containers, so that clients need not wait for it."""
    loop = asyncio.get_running_loop()
    async with Client(pods.address_of(pods.controllers[0])) as client:
        writers = await SteadyWriters.create(client, STREAMS)
        async with writers.running():
            pod = pods.stores[0]
            killed = len(pod.log_events("worker_killed"))
            for attempt in Tries("SIGSTOP of a worker", {"gap": CRASH_GAP_MAX_S + LAPSE_S}):
                stopped_at_s = loop.time()
                os.kill(await pod.worker_pid(0), signal.SIGSTOP)
                await writers.progress()
                attempt.note("gap", writers.longest_gap_s(stopped_at_s))
                kills = killed + attempt.number
                await until("it is killed", lambda: len(pod.log_events("worker_killed")) >= kills)  # noqa: B023
                assert "no heartbeat" in pod.log_events("worker_killed")[kills - 1]["reason"]
                await pod.wait_ready()
                await pods.settle()
        await writers.check(client)


async def setup_at(endpoint: Endpoint) -> c.Command:
    """Return the answer of that endpoint to a writer."""
    connection = await connect(endpoint)
    try:
        return await connection.request(c.SetupAppend(0, bytes(16), "a/b/0.#epoch.0", ""))
    finally:
        await connection.close()


async def test_a_pod_that_ends_hands_over_first(pods: Pods) -> None:
    loop = asyncio.get_running_loop()
    async with Client(pods.address_of(pods.controllers[0])) as client:
        writers = await SteadyWriters.create(client, STREAMS)
        async with writers.running():
            pod = pods.stores[0]
            for attempt in Tries("SIGTERM of a pod", {"gap": DRAIN_GAP_MAX_S}):
                if attempt.number > 1:
                    await comes_back(pods, pod)
                main, places = psutil.Process(pod.pid), pods.map().workers
                began_s = loop.time()
                leaving = asyncio.ensure_future(pod.terminate())
                await until("its workers have ended", lambda: not main.children())  # noqa: B023 - awaited here
                # A client that wrote nothing meanwhile keeps the address until it hears that it is a wrong one.
                answers = [await setup_at(places[f"{pod.name}-{number}"].internal) for number in range(WORKERS)]
                code = await leaving
                attempt.note("end of the process", loop.time() - began_s)
                await writers.progress()
                attempt.note("gap", writers.longest_gap_s(began_s))
                assert code == 0
                assert [type(answer) for answer in answers] == [c.WrongHost] * WORKERS
                assert set(pods.placed()) == {"orange-store-1-0", "orange-store-1-1"}
        await writers.check(client)


async def test_pods_whose_containers_no_pod_can_take_do_not_wait(pods: Pods) -> None:
    """The last one, while Leases of another one that died are there; and all at the same time."""
    loop = asyncio.get_running_loop()
    for attempt in Tries("SIGTERM of the last pod", {"end": ALONE_DRAIN_MAX_S}):
        if attempt.number > 1:
            await all_serve(pods)
        await pods.stores[0].kill()
        await until("its containers are elsewhere", lambda: not any("store-0" in name for name in pods.placed()))
        await until("it is not there any more", lambda: not any("store-0" in name for name in pods.map().workers))
        began_s = loop.time()
        assert await pods.stores[1].terminate() == 0
        attempt.note("end", loop.time() - began_s)

    for attempt in Tries("SIGTERM of all pods", {"end": ALONE_DRAIN_MAX_S}):
        await all_serve(pods)
        began_s = loop.time()
        assert await asyncio.gather(*(pod.terminate() for pod in pods.stores)) == [0, 0]
        attempt.note("end", loop.time() - began_s)


async def all_serve(pods: Pods) -> None:
    """Start all store pods, and wait until the containers are where they belong."""
    for pod in pods.stores:
        await pod.start()
    for pod in pods.stores:
        await pod.wait_ready()
    await pods.settle()


async def test_outages_of_the_api_and_a_wiped_status_move_nothing(pods: Pods) -> None:
    loop = asyncio.get_running_loop()
    async with Client(pods.address_of(pods.controllers[1])) as client:
        writers = await SteadyWriters.create(client, STREAMS)
        async with writers.running():
            before = pods.placed()
            for attempt in Tries("outage of the API, then a wiped status", {"gap": DRAIN_GAP_MAX_S}):
                began_s = loop.time()
                pods.kubernetes.outage = True
                await asyncio.sleep(3 * LAPSE_S)
                pods.kubernetes.outage = False
                await asyncio.sleep(2 * LAPSE_S)
                assert pods.placed() == before
                pods.wipe_status()
                await until("the map is there again", lambda: pods.placed() == before)
                attempt.note("gap", writers.longest_gap_s(began_s))
            pods.wipe_status()
            await pods.stores[1].kill()
            await writers.progress()
        await writers.check(client)


async def test_an_outage_of_the_store_is_over_soon_after_it(pods: Pods, minio: MinioProcess) -> None:
    loop = asyncio.get_running_loop()
    async with Client(pods.address_of(pods.controllers[0])) as client:
        writers = await SteadyWriters.create(client, 8)
        async with writers.running():
            before = pods.placed()
            for attempt in Tries(f"object store away for {OUTAGE_S:g} s", {"after its return": BACK_WITHIN_S}):
                stopped_at_s = loop.time()
                await minio.stop()
                await asyncio.sleep(OUTAGE_S)
                away_until_s = await minio.start()
                await writers.progress()
                attempt.note("after its return", loop.time() - away_until_s)
                paused_s = min(writer.longest_gap_s(stopped_at_s, loop.time()) for writer in writers.writers)
                assert paused_s > OUTAGE_S / 2, f"a writer paused for {paused_s:.2f} s only: the store was not away"
                assert pods.placed() == before
        await writers.check(client)
