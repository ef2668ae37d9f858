"""Which readers of a group are dead: heartbeats in the state, and silence on the observer's clock."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.client.group.liveness import HeartbeatWriter, Watch
from tailrace.client.group.state import records as r
from tailrace.client.group.state.codec import decode_record, encode_batch, encode_initial
from tailrace.client.group.state.state import GroupState, compact, initial_state, replay
from tailrace.client.model import ReaderGroupConfig
from tailrace.common import limits
from tailrace.common.errors import ClientClosedError, IllegalStateError, NotFoundError, UnavailableError
from tailrace.common.real_ports import SystemEntropy

DEAD_AFTER_S = 10.0


def beat(reader: str, session: int, sequence: int, dead_after_ms: int = 10_000) -> r.UpdateDistanceToTail:
    return r.UpdateDistanceToTail(reader, 0, None, r.Heartbeat(session, sequence, dead_after_ms))


def state_of(*updates: r.Update) -> GroupState:
    """Return a state after updates that went through the codec."""
    state = initial_state(r.Init(ReaderGroupConfig(), {("s/t/0.#epoch.0", None): 0}, {}))
    return replay(state, decode_record(encode_batch(updates))[1])


def test_a_reader_without_heartbeats_is_never_dead() -> None:
    state = state_of(r.AddReader("java"), r.UpdateDistanceToTail("java", 0))
    watch = Watch(DEAD_AFTER_S)
    assert not any(watch.look(state, float(now)) for now in range(1000))


def test_a_silent_reader_is_dead_after_the_longer_of_both_times() -> None:
    state = state_of(r.AddReader("a"), beat("a", 1, 1), r.AddReader("b"), beat("b", 2, 1, dead_after_ms=20_000))
    watch = Watch(DEAD_AFTER_S)
    dead = [set(watch.look(state, float(now))) for now in range(22)]
    assert dead[9] == set()
    assert dead[10] == dead[19] == {"a"}
    assert dead[20] == {"a", "b"}


def test_an_outage_of_the_observer_is_not_silence_of_the_others() -> None:
    state = state_of(r.AddReader("a"), beat("a", 1, 1))
    watch = Watch(DEAD_AFTER_S)
    assert [watch.look(state, now) for now in (0.0, 4.0, 60.0, 65.0, 69.0)] == [{}] * 5
    assert set(watch.look(state, 70.0)) == {"a"}


async def test_heartbeats_go_on_after_errors_that_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """INTERNAL is such an error: a controller that starts answers so."""
    monkeypatch.setattr(limits, "READER_DEAD_AFTER_MIN_S", 0.001)
    writer, third = HeartbeatWriter(SystemEntropy(), "a", 0.06), asyncio.Event()
    errors = [ZeroDivisionError("a defect"), UnavailableError("away"), IllegalStateError("starting")]

    async def write() -> None:
        if errors:
            raise errors.pop(0)
        third.set()

    writer.start(write)
    async with asyncio.timeout(120):
        await third.wait()
    await writer.stop()


@pytest.mark.parametrize("error", [ClientClosedError(), NotFoundError("deleted")])
async def test_heartbeats_end_with_the_client_and_with_the_group(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "READER_DEAD_AFTER_MIN_S", 0.001)
    writer = HeartbeatWriter(SystemEntropy(), "a", 0.06)

    async def write() -> None:
        raise error

    writer.start(write)
    assert writer._task is not None
    async with asyncio.timeout(120):
        await writer._task
    await writer.stop()


@given(gaps=st.lists(st.floats(0.1, 5.0), max_size=60), every=st.integers(1, 2))
def test_a_reader_that_writes_in_time_is_never_dead(gaps: list[float], every: int) -> None:
    state = state_of(r.AddReader("a"), beat("a", 1, 0))
    watch = Watch(DEAD_AFTER_S)
    now = 0.0
    for number, gap in enumerate(gaps):
        now += gap
        if number % every == 0:
            replay(state, [beat("a", 1, number + 1)])
        assert (now, watch.look(state, now)) == (now, {})


def test_heartbeats_of_an_earlier_session_are_ignored() -> None:
    state = state_of(r.AddReader("a"), beat("a", 1, 1), r.RemoveReader("a", {}), beat("a", 1, 2))
    assert state.heartbeats == {}
    replay(state, [r.AddReader("a"), beat("a", 2, 1), beat("a", 1, 3)])
    assert state.heartbeats == {"a": r.Heartbeat(2, 1, 10_000)}


def test_our_compaction_keeps_heartbeats_and_without_them_writes_the_bytes_of_java() -> None:
    state = state_of(r.AddReader("a"), beat("a", 1, 1))
    (kept,) = decode_record(encode_initial(compact(state)))[1]
    assert isinstance(kept, r.Compact)
    assert initial_state(kept).heartbeats == state.heartbeats
    replay(state, [r.RemoveReader("a", {})])
    raw = encode_initial(compact(state))
    assert raw[4:8] == bytes((0, 1, 0, 3))  # format, type, version, three revisions


def test_a_foreign_revision_of_the_same_number_is_no_heartbeat() -> None:
    ours = encode_batch([beat("a", 1, 1)])
    (read,) = decode_record(ours.replace(b"TRHB", b"XXXX"))[1]
    assert isinstance(read, r.UpdateDistanceToTail)
    assert read.heartbeat is None
