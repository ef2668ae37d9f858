"""A cluster at full speed, with transactions, while its pods are killed, ended and started again."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Iterator

import psutil
import pytest

from harness.history import History
from harness.kills import STREAM, both_outcomes, check, progress
from harness.pace import Tries
from harness.pods import Pods, StorePod, until
from harness.steadywriters import SteadyWriters
from harness.workload import Workload, create_stream
from tailrace.cli.values import parse_size
from tailrace.client import Client

BYTES_PER_SECOND = 3_000_000
DRAIN_GAP_MAX_S = 3.0
LOADED_S = 5.0


@contextlib.asynccontextmanager
async def memory_watched(pods: Pods) -> AsyncIterator[dict[str, int]]:
    """The most that each store pod had at once, all of its processes together."""
    most: dict[str, int] = {}

    async def watch() -> None:
        while True:
            for pod in pods.stores:
                with contextlib.suppress(psutil.Error):
                    most[pod.name] = max(most.get(pod.name, 0), sum(used_bytes(pod)))
            await asyncio.sleep(0.5)

    watching = asyncio.ensure_future(watch())
    try:
        yield most
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


def used_bytes(pod: StorePod) -> Iterator[int]:
    """Of each process of a pod, its share of what several have in common."""
    if pod.process is None:
        return
    main = psutil.Process(pod.process.pid)
    for process in (main, *main.children(recursive=True)):
        yield process.memory_full_info().pss


@pytest.mark.timeout(290)
async def test_nothing_is_lost_while_pods_come_and_go(pods: Pods, test_seed: int) -> None:
    await pods.start()
    loop = asyncio.get_running_loop()
    async with Client(pods.address_of(pods.controllers[0])) as client, memory_watched(pods) as memory:
        await create_stream(client, STREAM, 8)
        steady = await SteadyWriters.create(client, 4)
        history = History()
        workload = Workload(client, STREAM, history, test_seed, bytes_per_second=BYTES_PER_SECOND)
        async with workload.running(), steady.running():
            await progress(workload)
            os.kill(await pods.stores[0].worker_pid(1), signal.SIGKILL)
            await steady.progress()
            await pods.stores[0].wait_ready()
            await asyncio.sleep(LOADED_S)

            for attempt in Tries("SIGTERM of a pod under load", {"gap": DRAIN_GAP_MAX_S}):
                began_s = loop.time()
                assert await pods.stores[1].terminate() == 0
                attempt.note("end of the process", loop.time() - began_s)
                await steady.progress()
                attempt.note("gap", steady.longest_gap_s(began_s))
                await pods.stores[1].start()
                await pods.stores[1].wait_ready()
                await until("the pod has its share again", lambda: sorted(map(len, pods.placed().values())) == [2] * 4)
                await asyncio.sleep(LOADED_S)

            await both_outcomes(workload)
            await pods.stores[0].kill()
            await steady.progress()
            await progress(workload)
            workload.check_alive()
        await workload.settle()
        await check(client, history, "after everything")
        assert not workload.unexpected, workload.unexpected[:20]
        await steady.check(client)
        print(f"{history.acknowledged} events acknowledged; most memory of the pods: {memory}")
        figure = parse_size(pods.stores[0].words[pods.stores[0].words.index("--memory") + 1])
        assert memory
        assert all(used <= figure for used in memory.values()), memory
