"""Which connection gives way to a newcomer when all places are taken."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tailrace.segmentstore.server.places import Places
from tailrace.wire import commands as c

SEGMENT = "scope/stream/0.#epoch.0"
GREEDY, FAIR = "127.0.0.2", "127.0.0.3"
W = bytes(range(16))


async def test_idle_connections_of_one_host_shut_no_other_out(few: Any) -> None:
    fair = await few.connect(host=FAIR)
    idle = [await few.connect(host=GREEDY) for _ in range(2)]
    newcomer = await few.connect(host="127.0.0.4")
    await idle[0].expect_end()
    await newcomer.create(SEGMENT)
    for client in (fair, idle[1]):
        await client.expect_silence()
    assert few.server.refused_total == 0


async def test_the_one_that_is_idle_for_longest_gives_way(few: Any) -> None:
    first, second, third = [await few.connect(host=GREEDY) for _ in range(3)]
    await first.create(SEGMENT)
    await few.connect(host=FAIR)
    await second.expect_end()
    for client in (first, third):
        await client.expect_silence()


async def test_one_with_a_writer_or_a_waiting_read_or_a_transient_segment_stays(few: Any) -> None:
    writer, reader, owner = [await few.connect(host=GREEDY) for _ in range(3)]
    await writer.create(SEGMENT)
    await writer.setup(W, SEGMENT)
    reader.send(c.ReadSegment(SEGMENT, 0, 10, "", 7))
    await few.until(lambda: few.server.unanswered == 1)
    transient = await owner.call(c.CreateTransientSegment(3, W, SEGMENT, ""))
    assert isinstance(transient, c.SegmentCreated)
    refused = await few.connect(hello=False, host=FAIR)
    await refused.expect_end()
    assert few.server.refused_total == 1
    writer.send(c.AppendBlockEnd(W, 0, b"abc", 1, 1, 1))
    assert isinstance(await writer.receive(), c.DataAppended)
    assert (await reader.expect(c.SegmentRead)).data == b"abc"
    await few.connect(host=FAIR)
    await reader.expect_end()  # it waits no more
    await owner.expect_silence()


async def test_a_newcomer_of_a_host_that_has_most_and_none_idle_is_refused(few: Any) -> None:
    fair = await few.connect(host=FAIR)
    for number in range(2):
        client = await few.connect(host=GREEDY)
        await client.create(f"{SEGMENT}{number}")
        await client.setup(W, f"{SEGMENT}{number}")
    refused = await few.connect(hello=False, host=GREEDY)
    await refused.expect_end()
    await fair.expect_silence()


async def test_a_flood_of_one_host_takes_places_from_itself_alone(few: Any) -> None:
    fair = await few.connect(host=FAIR)
    for _ in range(30):
        await few.connect(host=GREEDY)
    await fair.expect_silence()
    await few.until(lambda: few.server.connections == 3)


@dataclass(eq=False)
class Guest:
    """A connection, with what a model knows of it."""

    peer: str
    idle_since: int | None
    reasons: list[str] = field(default_factory=list)

    def give_up(self, reason: str) -> None:
        self.reasons.append(reason)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 20)), max_size=80))
def test_the_choice_is_that_of_a_model_that_looks_at_all(steps: list[tuple[int, int]]) -> None:
    places, guests = Places(), list[Guest]()
    for moment, (action, number) in enumerate(steps):
        guest = guests[number % len(guests)] if guests else None
        if action == 0 or guest is None:
            newcomer = Guest("abc"[number % 3], moment)
            places.join(newcomer)
            guests.append(newcomer)
            if len(guests) > 5:
                by_host = {host: sum(each.peer == host for each in guests) for host in "abc"}
                idle = [each for each in guests if each.idle_since is not None]
                expected = min(idle, key=lambda each: (-by_host[each.peer], each.idle_since))
                assert places.make_room(newcomer) == (expected is not newcomer)
                assert bool(expected.reasons) == (expected is not newcomer)
                places.leave(expected)
                guests.remove(expected)
        elif action == 1:
            places.works(guest)
            guest.idle_since = None
        elif action == 2 and guest.idle_since is None:
            places.rests(guest)
            guest.idle_since = moment
        elif action == 3:
            places.leave(guest)
            guests.remove(guest)
        assert places.taken == len(guests)
