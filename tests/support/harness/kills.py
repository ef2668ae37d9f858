"""Kills of a server at chosen moments while clients use it, and the check of everything afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Protocol

import psutil

from harness import objectwatch
from harness.history import History, Outcome
from harness.server import Server
from harness.workload import Workload, create_stream, read_from_head
from tailrace.client import Client, StreamName

STREAM = StreamName("crash", "events")
SERVING_MAX_S = 2.0
RETURN_MAX_S = 1.0
RECOVERY_MAX_S = 4.0
OBJECT_DEADLINE_S = 120.0
PROGRESS_DEADLINE_S = 120.0
OUTCOMES_DEADLINE_S = 180.0

Kill = Callable[[Server, Workload, random.Random], Awaitable[None]]


async def while_serving(server: Server, workload: Workload, rng: random.Random) -> None:
    """Under load: writers have reconnected and get acknowledgements."""
    await server.wait_ready()
    await progress(workload)
    await asyncio.sleep(rng.uniform(0, SERVING_MAX_S))
    await server.kill()


async def while_clients_return(server: Server, _: Workload, rng: random.Random) -> None:
    """Just after it says that it serves: clients reconnect, workflows are resumed."""
    await server.wait_ready()
    await asyncio.sleep(rng.uniform(0, RETURN_MAX_S))
    await server.kill()


async def while_recovering(server: Server, _: Workload, rng: random.Random) -> None:
    """Before it says that it serves."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(rng.uniform(0.3, RECOVERY_MAX_S)):
            await server.wait_ready()
    await server.kill()


async def _at_object(server: Server, what: str) -> None:
    await server.wait_ready()
    watch = await asyncio.create_subprocess_exec(
        *(sys.executable, "-S", "-E", objectwatch.__file__, str(server.objects), str(server.pid), what),
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(OBJECT_DEADLINE_S):
            await watch.communicate()
    finally:
        if watch.returncode is None:
            watch.kill()
            await watch.wait()
    await server.wait_gone()


async def during_flush(server: Server, _: Workload, __: random.Random) -> None:
    """While an object is being written."""
    await _at_object(server, "part")


async def between_flush_and_commit(server: Server, _: Workload, __: random.Random) -> None:
    """When an object has just got its name, and its reference is on its way to the log at best."""
    await _at_object(server, "whole")


KILLS: tuple[Kill, ...] = (
    while_serving,
    while_clients_return,
    while_recovering,
    during_flush,
    between_flush_and_commit,
)

BEFORE_SERVING: tuple[Kill, ...] = (while_clients_return, while_recovering)


async def one_worker(server: Server, workload: Workload, rng: random.Random) -> None:
    """A worker process alone: its parent starts it again, at the same port."""
    await server.wait_ready()
    await progress(workload)
    await asyncio.sleep(rng.uniform(0, SERVING_MAX_S))
    before = len(server.log_events("worker_ended"))
    worker = rng.choice(psutil.Process(server.pid).children())
    worker.kill()
    async with asyncio.timeout(PROGRESS_DEADLINE_S):
        while len(server.log_events("worker_ended")) == before:  # noqa: ASYNC110  # another process
            await asyncio.sleep(0.05)
    await progress(workload)
    await server.kill()


async def progress(workload: Workload) -> None:
    """Wait until something more is acknowledged."""
    before = workload.history.acknowledged
    async with asyncio.timeout(PROGRESS_DEADLINE_S):
        while workload.history.acknowledged <= before:  # noqa: ASYNC110  # the history is plain data
            await asyncio.sleep(0.01)


async def both_outcomes(workload: Workload) -> None:
    """Wait until the server has committed one transaction and aborted another, as it said to the client.

    Without them, what a kill must not undo was never there.
    """
    ends_at_s = asyncio.get_running_loop().time() + OUTCOMES_DEADLINE_S
    while not {Outcome.COMMITTED, Outcome.ABORTED} <= workload.decided.keys():
        late = asyncio.get_running_loop().time() >= ends_at_s
        assert not late, f"decided {workload.decided} after {OUTCOMES_DEADLINE_S:g} s, errors {workload.errors}"
        workload.check_alive()
        await asyncio.sleep(0.01)


async def before_last_kill(server: Server, workload: Workload, kill: Kill) -> None:
    """Wait for both outcomes; a kill that meets a server on its way to serving gets one that starts again."""
    await server.wait_ready()
    await both_outcomes(workload)
    if kill in BEFORE_SERVING:
        await server.kill()
        await server.spawn()


def outcomes_of(workload: Workload) -> Counter[Outcome]:
    """How many transactions were committed and aborted, and of how many that is not known."""
    return Counter(record.outcome for record in workload.history.transactions.values())


def plan(rng: random.Random, count: int) -> list[Kill]:
    """Every kind of moment at least once, in random order."""
    kills = [*KILLS, *rng.choices(KILLS, weights=(4, 1, 1, 2, 2), k=count - len(KILLS))]
    rng.shuffle(kills)
    return kills


class Companion(Protocol):
    """Other clients that use the server during a scenario."""

    def running(self, server: Server) -> contextlib.AbstractAsyncContextManager[None]:
        """They work while the block runs, in streams of their own."""
        ...

    async def check(self, client: Client) -> None:
        """Check that every outcome that they saw holds."""
        ...


async def check(client: Client, history: History, when: str) -> None:
    """A full read from the head agrees with the outcomes that writers saw."""
    segments = await read_from_head(client, STREAM)
    violations = history.check(segments)
    kinds = Counter(violation.kind.value for violation in violations)
    assert not violations, f"{when}: {kinds}, the first ones: {violations[:20]}"


async def kill_again_and_again(
    server: Server, kills: list[Kill], seed: int, companions: tuple[Companion, ...] = ()
) -> Workload:
    """Run the whole scenario: write, kill, start again; read in the end, from cache and log, and then from Tier 2."""
    rng = random.Random(seed)
    await server.start()
    async with Client(server.controller) as client:
        await create_stream(client, STREAM, 4)
        workload = Workload(client, STREAM, History(), seed)
        async with _together(server, companions), workload.running():
            for number, kill in enumerate(kills):
                if number + 1 == len(kills):
                    await before_last_kill(server, workload, kill)
                await kill(server, workload, rng)
                workload.check_alive()
                print(f"kill {number + 1}: {kill.__name__}, {workload.history.acknowledged} events acknowledged")
                if number + 1 == len(kills):
                    await server.verify()
                await server.spawn()
            await server.wait_ready()
            await progress(workload)
        await workload.settle()
        await check(client, workload.history, "after the last start")
        for companion in companions:
            await companion.check(client)
    await server.flush()
    await server.kill()
    await server.verify()
    await server.start()
    async with Client(server.controller) as client:
        await check(client, workload.history, "with a cold cache")
        for companion in companions:
            await companion.check(client)
    health = await server.ask("/v1/health")
    assert health["ready"], health
    print(
        f"{workload.history.acknowledged} events, transactions {outcomes_of(workload)}, decided {workload.decided}, "
        f"{workload.abandoned} events of writers that went away, errors {workload.errors}"
    )
    assert not workload.unexpected, workload.unexpected[:20]
    return workload


@contextlib.asynccontextmanager
async def _together(server: Server, companions: tuple[Companion, ...]) -> AsyncIterator[None]:
    async with contextlib.AsyncExitStack() as stack:
        for companion in companions:
            await stack.enter_async_context(companion.running(server))
        yield
