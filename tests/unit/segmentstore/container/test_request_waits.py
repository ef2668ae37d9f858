"""What waits for room in a container is refused when the container ends, while others go on to wait."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tailrace.common.errors import ContainerStoppedError, FencedError
from tailrace.segmentstore.api import AttributeUpdate, AttributeUpdateType
from tailrace.segmentstore.container.container import Container
from tailrace.segmentstore.container.request_waits import RequestWaits
from tailrace.segmentstore.metadata.untiered_room import APPEND_BYTES

from ..conftest import World, eventually

NAME = "scope/stream/0.#epoch.0"
OTHER = "scope/stream/1.#epoch.0"
UPDATE = AttributeUpdate(b"w" * 16, AttributeUpdateType.REPLACE, 1)


async def leave(container: Container) -> None:
    container.leave()


async def fence(container: Container) -> None:
    container.core.stop(FencedError("the log has a later owner", 2))


async def close(container: Container) -> None:
    await container.close()


End = Callable[[Container], Awaitable[None]]
every_end = pytest.mark.parametrize("end", [leave, fence, close])


async def open_two(world: World) -> tuple[Container, Container]:
    """Two containers of one worker, with a segment in each."""
    container = await world.open()
    other = await world.open_beside(container)
    await container.create_segment(NAME)
    await other.create_segment(OTHER)
    return container, other


async def refused(*waiting: asyncio.Task[object]) -> None:
    async with asyncio.timeout(120):
        for task in waiting:
            with pytest.raises(ContainerStoppedError):
                await task


async def cancel(*tasks: asyncio.Task[object]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


@every_end
async def test_an_append_in_the_queue_of_the_worker_is_refused_when_its_container_ends(world: World, end: End) -> None:
    """Once it got no answer until all before it had room, which an outage of Tier 2 may not give for hours."""
    world.cache_bytes = 8 << 20
    container, other = await open_two(world)
    throttle = world.cache.throttle
    world.objects.outage = True

    async def write() -> None:
        while True:
            await other.append(OTHER, [bytes(200_000)])

    writing = [asyncio.create_task(write()) for _ in range(50)]
    await eventually(lambda: throttle.waiting == len(writing))
    waiting = asyncio.create_task(container.append(NAME, [b"x"]))
    await eventually(lambda: throttle.waiting == len(writing) + 1)
    await end(container)
    await refused(waiting)
    await eventually(lambda: throttle.waiting == len(writing))
    assert not any(task.done() for task in writing)
    await cancel(*writing)


@every_end
async def test_what_waits_for_records_of_the_worker_is_refused_when_its_container_ends(world: World, end: End) -> None:
    container, other = await open_two(world)
    room = container.core.ports.untiered
    room.max_bytes = 100 * APPEND_BYTES
    world.objects.outage = True

    async def write() -> None:
        while True:
            await other.append(OTHER, [b"x"])

    writing = asyncio.create_task(write())
    await eventually(lambda: not room.has_room)
    appends = [asyncio.create_task(container.append(NAME, [b"x"])) for _ in range(3)]
    updating = asyncio.create_task(container.update_attributes(NAME, [UPDATE]))
    await asyncio.sleep(0.05)
    assert not any(task.done() for task in (*appends, updating))
    await end(container)
    await refused(*appends, updating)
    assert not writing.done()
    await cancel(writing)


async def test_a_request_that_is_given_up_leaves_the_others_waiting() -> None:
    waits = RequestWaits()
    shared: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    given_up, other, last = (waits.behind(shared) for _ in range(3))
    given_up.cancel()
    await asyncio.sleep(0)
    assert not any(future.done() for future in (shared, other, last))
    shared.set_result(None)
    async with asyncio.timeout(120):
        await asyncio.gather(other, last)


async def test_what_waits_goes_on_in_its_order() -> None:
    waits = RequestWaits()
    shared: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    order: list[int] = []

    async def wait(number: int) -> None:
        await waits.behind(shared)
        order.append(number)

    tasks = [asyncio.create_task(wait(number)) for number in range(10)]
    await asyncio.sleep(0)
    shared.set_result(None)
    async with asyncio.timeout(120):
        await asyncio.gather(*tasks)
    assert order == list(range(10))


async def test_the_end_wakes_all_and_the_room_of_others_wakes_none_of_them_again() -> None:
    waits = RequestWaits()
    loop = asyncio.get_running_loop()
    shared, own = loop.create_future(), loop.create_future()
    futures = [waits.behind(shared), waits.behind(shared), waits.join(own)]
    waits.end()
    assert all(future.done() for future in futures)
    assert not shared.done()
    shared.set_result(None)
    await asyncio.sleep(0)
    waits.end()


async def test_the_end_may_come_when_their_room_has_just_come() -> None:
    """A container that stops completes what waits for its log first."""
    waits, errors = RequestWaits(), []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: errors.append(context))
    shared: asyncio.Future[None] = loop.create_future()
    own = waits.behind(shared)
    shared.set_result(None)
    waits.end()
    await asyncio.sleep(0)
    assert own.done()
    assert not errors
