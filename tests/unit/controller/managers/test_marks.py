"""The positions that writers note: what a correct writer may name after scales and restarts, and what is stored."""

from __future__ import annotations

from typing import Any

from tailrace.common.ranges import equal_ranges
from tailrace.controller.metadata.records import WriterMark, decode
from tailrace.controller.metadata.stream_store import StreamKey
from tailrace.rpc import controller_pb2 as pb

KEY = StreamKey("scope", "stream")
SUCCESS, INVALID_POSITION = pb.TimestampResponse.SUCCESS, pb.TimestampResponse.INVALID_POSITION
HALVES = [(0.0, 0.5), (0.5, 1.0)]
WHOLE = [(0.0, 1.0)]


async def note(api: Any, time: int, position: dict[int, int], writer: str = "w") -> int:
    cut = pb.StreamCut(streamInfo=api.info, cut=position)
    request = pb.TimestampFromWriter(writer=writer, timestamp=time, position=cut)
    return int((await api.call("noteTimestampFromWriter", request)).result)


def stored(world: Any, writer: str = "w") -> tuple[int, dict[int, int]]:
    """The time and position of a writer's mark."""
    mark = decode(WriterMark, world.metadata.dump_table(KEY.table)[KEY.writer(writer)], "test")
    return mark.timestamp, mark.position


async def halved(api: Any) -> list[int]:
    """A stream of two segments that may be merged; their ids."""
    await api.setup(1)
    return list(await api.scaled([0], HALVES))


async def test_a_writer_notes_times_after_a_merge_although_it_still_names_a_replaced_segment(
    api: Any, world: Any
) -> None:
    """It writes only keys of the other one, so it does not learn that this one was replaced."""
    left, right = await halved(api)
    assert await note(api, 10, {left: 100, right: 99}) == SUCCESS
    (merged,) = await api.scaled([left, right], WHOLE)
    assert await note(api, 11, {right: 99, merged: 18}) == SUCCESS
    assert await note(api, 12, {right: 99, merged: 27}) == SUCCESS
    assert await note(api, 13, {right: 99, merged: 26}) == INVALID_POSITION
    assert await note(api, 14, {right: 99}) == INVALID_POSITION
    assert stored(world) == (12, {merged: 27}), "the replaced segment lies before the other one"


async def test_the_first_position_may_name_a_replaced_segment(api: Any, world: Any) -> None:
    left, right = await halved(api)
    (merged,) = await api.scaled([left, right], WHOLE)
    assert await note(api, 11, {right: 99, merged: 18}) == SUCCESS
    assert await note(api, 12, {right: 99, merged: 27}) == SUCCESS
    assert stored(world) == (12, {merged: 27})


async def test_a_writer_notes_times_after_a_scale_that_moves_the_edges(api: Any, world: Any) -> None:
    await api.setup(2)
    assert await note(api, 10, {0: 100, 1: 50}) == SUCCESS
    first, second, third = await api.scaled([0, 1], equal_ranges(3))
    for time in (11, 12, 13):
        assert await note(api, time, {1: 50, first: time, second: time}) == SUCCESS
        assert stored(world) == (time, {1: 50, first: time, second: time}), "it reaches keys of the third one"
    assert await note(api, 14, {1: 51, first: 14, second: 14}) == SUCCESS
    assert await note(api, 15, {third: 0, first: 14, second: 14}) == SUCCESS
    assert stored(world) == (15, {first: 14, second: 14, third: 0})


async def test_a_writer_notes_times_after_several_scales_that_it_learned_of_in_part(api: Any, world: Any) -> None:
    first, second = await halved(api)
    assert await note(api, 10, {first: 100, second: 50}) == SUCCESS
    (merged,) = await api.scaled([first, second], WHOLE)
    assert await note(api, 11, {second: 50, merged: 10}) == SUCCESS
    left, right = await api.scaled([merged], HALVES)
    assert await note(api, 12, {second: 50, left: 3}) == SUCCESS, "for other keys it knows of no later segment"
    assert stored(world) == (12, {merged: 10, left: 3})
    (whole,) = await api.scaled([left, right], WHOLE)
    assert await note(api, 13, {second: 50, whole: 0}) == SUCCESS
    assert stored(world) == (13, {whole: 0})


async def test_a_writer_that_restarts_keeps_its_position_where_it_has_not_written_since(api: Any, world: Any) -> None:
    await api.setup(2)
    assert await note(api, 30, {0: 492, 1: 174}) == SUCCESS
    assert await note(api, 32, {1: 186}) == SUCCESS
    assert stored(world) == (32, {0: 492, 1: 186})
    assert await note(api, 33, {0: 491, 1: 186}) == INVALID_POSITION
    left = (await api.scaled([0], [(0.0, 0.25), (0.25, 0.5)]))[0]
    assert await note(api, 34, {left: 7}) == SUCCESS
    assert stored(world) == (34, {0: 492, 1: 186, left: 7}), "segment 0 has keys that no other position reaches"
    assert await note(api, 34, {left: 7}) == SUCCESS, "the same call again"


async def test_a_note_reads_the_epochs_that_its_position_names_and_no_others(make_api: Any, world: Any) -> None:
    first = make_api(await world.start(sole=True))
    await first.setup(2)
    right = 1
    for _ in range(12):
        _, right = await first.scaled([right], [(0.5, 1.0)])
    await first.controller.close()
    api = make_api(await world.start(sole=True))
    read: list[bytes] = []
    get = world.metadata.get

    async def counted(table: str, keys: Any) -> Any:
        read.extend(key for key in keys if b"/e/" in key)
        return await get(table, keys)

    world.metadata.get = counted
    assert await note(api, 1, {0: 5, right: 5}) == SUCCESS
    assert len(set(read)) == 2


async def test_a_writer_that_was_removed_counts_again_when_it_notes_the_same_time(api: Any, world: Any) -> None:
    """Its new position reaches no further than the last one, so both together are the last one."""
    await api.setup(2)
    assert await note(api, 10, {0: 5, 1: 7}) == SUCCESS
    await api.call("removeWriter", pb.RemoveWriterRequest(writer="w", stream=api.info))
    assert await note(api, 10, {1: 7}) == SUCCESS
    found = decode(WriterMark, world.metadata.dump_table(KEY.table)[KEY.writer("w")], "test")
    assert (found.timestamp, found.position, found.alive) == (10, {0: 5, 1: 7}, True)
