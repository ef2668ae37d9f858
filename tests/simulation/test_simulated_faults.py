"""Each fault of the simulated world does what its name says, and is counted under it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from sim import SimWorld
from sim.process import SimProcess
from sim.swarm import Swarm
from tailrace.common.errors import DeadlineError, DiskFullError, NotFoundError, UnavailableError

PORT = 5000


class Collector(asyncio.Protocol):
    """Keeps what arrives, and answers each piece on command."""

    def __init__(self, received: bytearray, answer: bytes = b"") -> None:
        self.received = received
        self.answer = answer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data
        if self.answer:
            self.transport.write(self.answer)


async def _listen(world: SimWorld, received: bytearray, answer: bytes = b"") -> SimProcess:
    process = world.process("server")

    async def serve() -> None:
        await world.loop.create_server(lambda: Collector(received, answer), "", PORT)

    await process.spawn(serve())
    return process


def _as_client(world: SimWorld, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    return world.process("client").spawn(work)


def test_a_partition_of_one_direction() -> None:
    with SimWorld(1) as world:
        received = bytearray()

        async def client() -> None:
            reader, writer = await asyncio.open_connection("", PORT)
            writer.write(b"1")
            assert await reader.readexactly(2) == b"ok"
            world.network.cut("server", "client", one_way=True)
            writer.write(b"2")
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(60):
                    await reader.readexactly(2)
            assert received == b"12"
            with pytest.raises(TimeoutError):
                await asyncio.open_connection("", PORT)
            world.network.join("server", "client", one_way=True)
            assert await reader.readexactly(2) == b"ok"
            world.network.cut("client", "server", one_way=True)
            writer.write(b"3")
            await asyncio.sleep(60)
            assert received == b"12"
            world.network.heal()
            assert await reader.readexactly(2) == b"ok"
            writer.close()

        async def main() -> None:
            await _listen(world, received, b"ok")
            await _as_client(world, client())

        world.run(main())
        assert world.faults()["one-way partition"] == 2


def test_an_answer_that_is_lost_with_its_connection() -> None:
    with SimWorld(2) as world:
        received = bytearray()

        async def client() -> None:
            reader, writer = await asyncio.open_connection("", PORT)
            writer.write(b"append")
            with pytest.raises(ConnectionResetError):
                await reader.readexactly(2)
            writer.close()

        async def main() -> None:
            await _listen(world, received, b"ok")
            world.network.lost_answer_chance = 1.0
            await _as_client(world, client())

        world.run(main())
        assert received == b"append"
        assert world.faults() == {"reset before the answer": 1}


def test_a_connection_whose_other_end_died_silently() -> None:
    with SimWorld(3) as world:

        async def client() -> None:
            reader, writer = await asyncio.open_connection("", PORT)
            world.crash(next(process for process in world.processes if process.name.startswith("server")))
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(3600):
                    await reader.readexactly(1)
            writer.write(b"is anybody there?")
            with pytest.raises(ConnectionResetError):
                async with asyncio.timeout(60):
                    await reader.readexactly(1)
            writer.close()

        async def main() -> None:
            await _listen(world, bytearray())
            world.network.half_open_chance = 1.0
            await _as_client(world, client())

        world.run(main())
        assert world.faults()["half-open connection"] == 1


def test_a_slow_network_is_counted() -> None:
    with SimWorld(4) as world:
        world.network.slow_chance, world.network.slow_max_s = 1.0, 5.0
        assert max(world.network.latency_s() for _ in range(50)) > 2
        assert world.faults() == {"slow network": 50}
        world.close()


def test_an_object_store_that_is_away() -> None:
    with SimWorld(5) as world:

        async def main() -> None:
            store = world.store.attach(world.process("store"))
            world.store.outage(300)
            began, errors = world.loop.time(), []
            for number in range(10):
                with pytest.raises(UnavailableError) as caught:
                    await store.put(f"key{number}", [b"x"])
                errors.append(type(caught.value))
            assert {DeadlineError, UnavailableError} == set(errors)
            assert not world.store.objects
            await asyncio.sleep(began + 301 - world.loop.time())
            await store.put("key", [b"x"])
            assert await store.get("key") == b"x"

        world.run(main())
        faults = world.faults()
        assert (faults["store outage"], faults["request in an outage"]) == (1, 10)


def test_an_object_store_that_throttles() -> None:
    with SimWorld(6) as world:

        async def main() -> None:
            store = world.store.attach(world.process("store"))
            world.store.throttle(1000)
            outcomes: list[BaseException | None] = []
            for number in range(40):
                outcomes += await asyncio.gather(store.put(f"key{number}", [b"x"]), return_exceptions=True)
            refused = [str(outcome) for outcome in outcomes if isinstance(outcome, UnavailableError)]
            assert all("SlowDown" in message for message in refused)
            assert 20 < len(refused) < 40
            assert len(refused) + len(world.store.objects) == 40
            world.store.end_episodes()
            await store.put("key", [b"x"])

        world.run(main())
        assert world.faults()["request throttled (503 SlowDown)"] > 20


def test_answers_of_a_store_that_do_not_come_and_that_break_off() -> None:
    with SimWorld(7) as world:

        async def main() -> None:
            store = world.store.attach(world.process("store"))
            world.store.timeout_chance = 1.0
            began = world.loop.time()
            with pytest.raises(DeadlineError):
                await store.put("key", [b"x"])
            assert world.loop.time() - began > 29
            world.store.timeout_chance = 0.0
            with pytest.raises(NotFoundError):
                await store.get("key")
            await store.put("key", [b"x"])
            world.store.partial_body_chance = 1.0
            with pytest.raises(UnavailableError):
                await store.get("key")
            await store.put("other", [b"x"])

        world.run(main())
        faults = world.faults()
        assert (faults["store timeout without effect"], faults["partial body"]) == (1, 1)


def test_a_disk_that_stalls() -> None:
    with SimWorld(8) as world:

        async def main() -> None:
            disk = world.disk.attach(world.process("disk"))
            disk.make_directory("/d")
            began = world.loop.time()
            world.disk.stall(20)
            await disk.sync_directory("/d")
            assert 20 <= world.loop.time() - began < 21
            await disk.sync_directory("/d")
            assert world.loop.time() - began < 22

        world.run(main())
        assert world.faults()["disk stall"] == 1


def test_a_disk_that_others_fill() -> None:
    with SimWorld(10) as world:

        async def main() -> None:
            disk = world.disk.attach(world.process("disk"))
            disk.make_directory("/d")
            world.disk.fill(60)
            assert disk.free_bytes("/d") == 0
            with pytest.raises(DiskFullError):
                await disk.create_zeroed("/d/a", 1)
            await asyncio.sleep(60)
            await disk.create_zeroed("/d/a", 1)

        world.run(main())
        assert world.faults()["disk full"] == 1


def test_a_clock_that_jumps() -> None:
    with SimWorld(9) as world:
        clock, other = world.clock("machine"), world.clock("other")
        world.jump_clock("machine", -60_000)
        assert other.now_ms() - clock.now_ms() == 60_000
        assert world.clock("machine").now_ms() == clock.now_ms(), "a new incarnation has its machine's clock"
        world.jump_clock("machine", 0)
        assert other.now_ms() == clock.now_ms()
        assert world.faults() == {"clock jump": 2}
        world.close()


def test_a_swarm_chooses_by_the_seed() -> None:
    chosen = []
    for seed in range(200):
        with SimWorld(seed) as world:
            chosen.append(Swarm(world, clocks=["a"], connections=[("a", "b")]).kinds)
            assert chosen[-1] == Swarm(world, clocks=["a"], connections=[("a", "b")]).kinds
    every = {kind for kinds in chosen for kind in kinds}
    assert all(20 < sum(kind in kinds for kinds in chosen) < 150 for kind in every)
    assert sum(not kinds for kinds in chosen) > 10
    assert len({tuple(kinds) for kinds in chosen}) > 50
    assert len(every) == 7
