"""Two segment store pods with two workers each, two controllers and a placer: written to while they come and go."""

from __future__ import annotations

import asyncio
import os
import signal

import psutil
import pytest

from harness.pace import Pace
from harness.pods import WORKERS, Pods, until
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

pytestmark = pytest.mark.timeout(240)


async def test_a_worker_that_is_killed_is_back_with_its_containers(pods: Pods) -> None:
    await pods.start()
    loop = asyncio.get_running_loop()
    async with Client(pods.address_of(pods.controllers[0])) as client:
        writers = await SteadyWriters.create(client, STREAMS)
        async with writers.running():
            before = pods.placed()
            assert sorted(map(len, before.values())) == [2, 2, 2, 2]
            pod = pods.stores[0]
            pods.placer.signal(signal.SIGSTOP)  # however slow this machine is: the worker is back before anybody looks
            pace, killed_at_s = Pace(), loop.time()
            os.kill(await pod.worker_pid(0), signal.SIGKILL)
            await writers.progress()
            await pod.wait_ready()
            pods.placer.signal(signal.SIGCONT)
            await asyncio.sleep(LAPSE_S + 2)
            await pods.settle()
            gap_s = writers.longest_gap_s(killed_at_s)
            assert [worker["starts"] for worker in await pod.workers()] == [2, 1]
            print(f"SIGKILL of a worker: {gap_s:.2f} s without an acknowledgement")
            assert pods.placed() == before
            assert gap_s < pace.bound_s(2 * CRASH_GAP_MAX_S), "nobody else may take the containers here"
        await writers.check(client)


async def test_the_containers_of_a_pod_that_is_killed_move(pods: Pods) -> None:
    await pods.start()
    loop = asyncio.get_running_loop()
    async with Client(pods.address_of(pods.controllers[0])) as client:
        writers = await SteadyWriters.create(client, STREAMS)
        async with writers.running():
            pace, killed_at_s = Pace(), loop.time()
            await pods.stores[0].kill()
            await writers.progress()
            gap_s = writers.longest_gap_s(killed_at_s)
            print(f"SIGKILL of a pod: {gap_s:.2f} s without an acknowledgement")
            assert gap_s < pace.bound_s(CRASH_GAP_MAX_S)
            assert set(pods.placed()) == {"orange-store-1-0", "orange-store-1-1"}
            await pods.stores[0].start()
            await pods.stores[0].wait_ready()
            await until("the pod has its share again", lambda: sorted(map(len, pods.placed().values())) == [2] * 4)
            await pods.settle()
        await writers.check(client)


async def test_a_worker_that_stands_still_acknowledges_nothing_afterwards(pods: Pods) -> None:
    """Its main process ends it once it has lost its containers, so that clients need not wait for it."""
    await pods.start()
    loop = asyncio.get_running_loop()
    async with Client(pods.address_of(pods.controllers[0])) as client:
        writers = await SteadyWriters.create(client, STREAMS)
        async with writers.running():
            pod = pods.stores[0]
            pace, stopped_at_s = Pace(), loop.time()
            os.kill(await pod.worker_pid(0), signal.SIGSTOP)
            await writers.progress()
            gap_s = writers.longest_gap_s(stopped_at_s)
            print(f"SIGSTOP of a worker: {gap_s:.2f} s without an acknowledgement")
            assert gap_s < pace.bound_s(CRASH_GAP_MAX_S + LAPSE_S)
            assert "no heartbeat" in pod.log_events("worker_killed")[0]["reason"]
            await pod.wait_ready()
            await pods.settle()
        await writers.check(client)


async def test_a_pod_that_stands_still_is_fenced_when_it_goes_on(pods: Pods) -> None:
    await pods.start()
    async with Client(pods.address_of(pods.controllers[0])) as client:
        writers = await SteadyWriters.create(client, STREAMS)
        async with writers.running():
            pod = pods.stores[0]
            pod.signal(signal.SIGSTOP)
            await until("its containers are elsewhere", lambda: not any("store-0" in name for name in pods.placed()))
            await asyncio.sleep(LAPSE_S)  # new owners acknowledge: whoever asks the controller is sent to them
            pod.signal(signal.SIGCONT)
            await writers.progress()
            await pod.wait_ready()
            await until("the pod has its share again", lambda: sorted(map(len, pods.placed().values())) == [2] * 4)
            await pods.settle()
        await writers.check(client)


async def setup_at(endpoint: Endpoint) -> c.Command:
    """What somebody answers there to a writer."""
    connection = await connect(endpoint)
    try:
        return await connection.request(c.SetupAppend(0, bytes(16), "a/b/0.#epoch.0", ""))
    finally:
        await connection.close()


async def test_a_pod_that_ends_hands_over_first(pods: Pods) -> None:
    await pods.start()
    loop = asyncio.get_running_loop()
    async with Client(pods.address_of(pods.controllers[0])) as client:
        writers = await SteadyWriters.create(client, STREAMS)
        async with writers.running():
            pod = pods.stores[0]
            main, places = psutil.Process(pod.pid), pods.map().workers
            pace, began_s = Pace(), loop.time()
            leaving = asyncio.ensure_future(pod.terminate())
            await until("its workers have ended", lambda: not main.children())
            # A client that wrote nothing meanwhile, and keeps the address until it hears that it is a wrong one.
            answers = [await setup_at(places[f"{pod.name}-{number}"].internal) for number in range(WORKERS)]
            code = await leaving
            took_s = loop.time() - began_s
            await writers.progress()
            gap_s = writers.longest_gap_s(began_s)
            print(f"SIGTERM of a pod: over after {took_s:.2f} s, {gap_s:.2f} s without an acknowledgement")
            assert code == 0
            assert [type(answer) for answer in answers] == [c.WrongHost] * WORKERS
            assert set(pods.placed()) == {"orange-store-1-0", "orange-store-1-1"}
            assert gap_s < pace.bound_s(DRAIN_GAP_MAX_S)
        await writers.check(client)


async def test_pods_that_nobody_can_take_over_from_do_not_wait(pods: Pods) -> None:
    """The last one, while Leases of another one that died are there; and all at the same time."""
    await pods.start(controllers=0)
    await pods.stores[0].kill()
    await until("its containers are elsewhere", lambda: not any("store-0" in name for name in pods.placed()))
    await until("it is not there any more", lambda: not any("store-0" in name for name in pods.map().workers))
    pace, began_s = Pace(), asyncio.get_running_loop().time()
    assert await pods.stores[1].terminate() == 0
    took_s = asyncio.get_running_loop().time() - began_s
    print(f"SIGTERM of the last pod: over after {took_s:.2f} s")
    assert took_s < pace.bound_s(ALONE_DRAIN_MAX_S)

    for pod in pods.stores:
        await pod.start()
    for pod in pods.stores:
        await pod.wait_ready()
    await pods.settle()
    pace, began_s = Pace(), asyncio.get_running_loop().time()
    assert await asyncio.gather(*(pod.terminate() for pod in pods.stores)) == [0, 0]
    took_s = asyncio.get_running_loop().time() - began_s
    print(f"SIGTERM of all pods: over after {took_s:.2f} s")
    assert took_s < pace.bound_s(ALONE_DRAIN_MAX_S)


async def test_outages_of_the_api_and_a_wiped_status_move_nothing(pods: Pods) -> None:
    await pods.start()
    loop = asyncio.get_running_loop()
    async with Client(pods.address_of(pods.controllers[1])) as client:
        writers = await SteadyWriters.create(client, STREAMS)
        async with writers.running():
            before = pods.placed()
            pace, began_s = Pace(), loop.time()
            pods.kubernetes.outage = True
            await asyncio.sleep(3 * LAPSE_S)
            pods.kubernetes.outage = False
            await asyncio.sleep(2 * LAPSE_S)
            assert pods.placed() == before
            pods.wipe_status()
            await until("the map is there again", lambda: pods.placed() == before)
            gap_s = writers.longest_gap_s(began_s)
            print(f"outage of the API and a wiped status: {gap_s:.2f} s without an acknowledgement")
            assert gap_s < pace.bound_s(DRAIN_GAP_MAX_S)
            pods.wipe_status()
            await pods.stores[1].kill()
            await writers.progress()
        await writers.check(client)
