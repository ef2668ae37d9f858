"""Batches of Spark are in the stream exactly once, wherever drivers end and whatever they do at the same time.

Drivers run over a model of a stream's transactions: calls take turns by a seed, drivers are killed before or after any
call and started again, leases end, and drivers that are thought dead go on beside their successors.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.client.model import TransactionState
from tailrace.common import limits
from tailrace.common.errors import IllegalStateError, WriteConflictError
from tailrace.pipelines.sink.commit import Attempt, abort_batch, commit_all, commit_batch, start_run
from tailrace.pipelines.sink.options import Unresolved
from tailrace.pipelines.sink.query_record import QueryRecord, decode, encode

OPEN, COMMITTING, COMMITTED = TransactionState.OPEN, TransactionState.COMMITTING, TransactionState.COMMITTED
ABORTED, UNKNOWN = TransactionState.ABORTED, TransactionState.UNKNOWN
NEVER = 1 << 30


class Killed(BaseException):
    """A driver's process has ended."""


class Stream:
    """A stream's transactions and the record of one query."""

    def __init__(self, seed: int = 0) -> None:
        self.random = random.Random(seed)
        self.states: dict[uuid.UUID, TransactionState] = {}
        self.order: list[uuid.UUID] = []
        self.visible: list[uuid.UUID] = []
        self.stored: tuple[bytes, int] | None = None
        self.expired = 0

    def begin(self, epoch: int = 0) -> uuid.UUID:
        """Begin a transaction of an epoch."""
        made = uuid.UUID(int=(epoch << 96) | (len(self.states) + 1))
        self.states[made] = OPEN
        return made

    def merge(self) -> None:
        """Make the next decided transaction visible: of the lowest epoch the first."""
        waiting = [each for each in self.order if self.states[each] is COMMITTING]
        if waiting:
            first = min(waiting, key=lambda each: (each.int >> 96, self.order.index(each)))
            self.states[first] = COMMITTED
            self.visible.append(first)

    def expire(self, transactions: Sequence[uuid.UUID]) -> None:
        """End the leases of those that are open."""
        for each in transactions:
            if self.states[each] is OPEN:
                self.states[each] = ABORTED
                self.expired += 1


class Driver:
    """The port of one driver, which ends before its call number `killed_at`, or after it."""

    def __init__(self, stream: Stream, killed_at: int = NEVER, *, after: bool = False) -> None:
        self._stream, self._killed_at, self._after = stream, killed_at, after
        self._calls = 0

    async def _turn(self) -> None:
        """Let others run."""
        for _ in range(self._stream.random.randrange(3)):
            await asyncio.sleep(0)
        if self._stream.random.random() < 0.5:
            self._stream.merge()
        self._calls += 1
        if self._calls > self._killed_at or (self._calls == self._killed_at and not self._after):
            raise Killed

    def _done(self) -> None:
        if self._calls >= self._killed_at:
            raise Killed

    def _state(self, transaction: uuid.UUID) -> TransactionState:
        return self._stream.states.get(transaction, UNKNOWN)

    async def state(self, transaction: uuid.UUID) -> TransactionState:
        await self._turn()
        return self._state(transaction)

    async def extend(self, transaction: uuid.UUID) -> None:
        await self._turn()
        if self._state(transaction) is not OPEN:
            raise IllegalStateError("not open")

    async def commit(self, transaction: uuid.UUID) -> None:
        await self._turn()
        state = self._state(transaction)
        if state is OPEN:
            self._stream.states[transaction] = COMMITTING
            self._stream.order.append(transaction)
        elif state not in (COMMITTING, COMMITTED):
            raise IllegalStateError("not open")
        self._done()

    async def abort(self, transaction: uuid.UUID) -> None:
        await self._turn()
        if self._state(transaction) not in (OPEN, ABORTED):
            raise IllegalStateError("not open")
        self._stream.states[transaction] = ABORTED
        self._done()

    async def pause(self, seconds: float) -> None:
        assert seconds > 0
        await asyncio.sleep(0)
        self._stream.merge()

    async def load(self) -> tuple[QueryRecord, int]:
        await self._turn()
        if self._stream.stored is None:
            return QueryRecord("query", "scope/stream"), -1
        data, version = self._stream.stored
        return decode(data, "the model"), version

    async def replace(self, record: QueryRecord, version: int) -> None:
        await self._turn()
        if version != (-1 if self._stream.stored is None else self._stream.stored[1]):
            raise WriteConflictError("changed")
        self._stream.stored = (encode(record), version + 2)
        self._done()


class Query:
    """A query that is started again after each failure."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.stream = Stream(seed)
        self.contents: dict[uuid.UUID, tuple[int, int]] = {}
        self.attempts: dict[int, list[tuple[uuid.UUID, ...]]] = {}
        self.done: list[int] = []
        self.doubts = 0
        self._runs = 0
        self._left: list[asyncio.Task[None]] = []

    async def write(self, batches: int) -> None:
        """Write batches; each start goes on with the first that Spark does not know as complete."""
        while len(self.done) < batches and self.doubts == 0:
            self._runs += 1
            await self._run(f"run {self._runs}", batches)
        for each in self._left:
            await each

    async def _run(self, run: str, batches: int) -> None:
        killed_at = self.random.randrange(1, 30) if self.random.random() < 0.8 else NEVER
        driver = Driver(self.stream, killed_at, after=self.random.random() < 0.5)
        while len(self.done) < batches:
            batch = len(self.done)
            attempt = Attempt(run, batch, self._tasks(batch))
            try:
                await start_run(driver, run)
                if self.random.random() < 0.1:  # it is thought dead, and goes on beside its successor
                    self._left.append(asyncio.create_task(self._beside(attempt)))
                    return
                await commit_batch(driver, attempt, Unresolved.FAIL)
            except Killed:
                if self.random.random() < 0.3:
                    self.stream.expire([each for each in self.stream.states if self.random.random() < 0.5])
                return
            except IllegalStateError as error:
                self.doubts += "unresolved=" in str(error)
                await abort_batch(Driver(self.stream), attempt)
                return
            self.done.append(batch)

    async def _beside(self, attempt: Attempt) -> None:
        try:
            await commit_batch(Driver(self.stream), attempt, Unresolved.FAIL)
        except (IllegalStateError, WriteConflictError):
            await abort_batch(Driver(self.stream), attempt)

    def _tasks(self, batch: int) -> tuple[uuid.UUID, ...]:
        made = tuple(self.stream.begin(self.random.randrange(2)) for _ in range(self.random.randrange(1, 5)))
        self.contents.update((each, (batch, at)) for at, each in enumerate(made))
        self.attempts.setdefault(batch, []).append(made)
        return made

    def visible_batches(self) -> list[int]:
        """Return the batches in the order of the stream, each checked to be one whole attempt, in order."""
        found: list[int] = []
        rest = list(self.stream.visible)
        while rest:
            batch = self.contents[rest[0]][0]
            whole = [made for made in self.attempts[batch] if list(made) == rest[: len(made)]]
            assert whole, f"batch {batch} is not as one attempt wrote it: {[self.contents[each] for each in rest]}"
            found.append(batch)
            rest = rest[len(whole[0]) :]
        return found


@given(st.integers(0, 2**32))
def test_each_batch_is_there_once_whole_and_in_order(seed: int) -> None:
    query = Query(seed)
    asyncio.run(query.write(6))
    if query.doubts:
        assert query.stream.expired, "a doubt without an ended lease"
        return
    assert query.done == list(range(6))
    while any(state is COMMITTING for state in query.stream.states.values()):
        query.stream.merge()
    assert query.visible_batches() == query.done


def test_seeds_reach_what_they_are_for() -> None:
    doubts, repeated = 0, 0
    for seed in range(300):
        query = Query(seed)
        asyncio.run(query.write(6))
        doubts += query.doubts
        repeated += sum(len(made) > 1 for made in query.attempts.values())
    assert repeated > 300
    assert 0 < doubts < 100


# ---- one by one


@pytest.fixture
def stream() -> Stream:
    return Stream()


def record(stream: Stream) -> QueryRecord:
    assert stream.stored is not None
    return decode(stream.stored[0], "the model")


async def committed(stream: Stream, batch: int, run: str = "a") -> tuple[uuid.UUID, ...]:
    made = (stream.begin(), stream.begin())
    await commit_batch(Driver(stream), Attempt(run, batch, made), Unresolved.FAIL)
    return made


async def recorded(stream: Stream, batch: int, *, commits: int) -> tuple[uuid.UUID, ...]:
    """Record a batch of three transactions as being committed, and commit its first ones."""
    made = (stream.begin(), stream.begin(), stream.begin())
    await start_run(Driver(stream), "a")
    loaded, version = await Driver(stream).load()
    await Driver(stream).replace(loaded.committing(batch, made), version)
    for each in made[:commits]:
        await Driver(stream).commit(each)
    for _ in range(commits):
        stream.merge()
    return made


async def test_a_batch_that_is_repeated_is_left_out(stream: Stream) -> None:
    first = await committed(stream, 0)
    again = await committed(stream, 0, run="b")
    assert stream.visible == list(first)
    assert {stream.states[each] for each in again} == {ABORTED}


async def test_an_earlier_run_ends_when_a_later_one_has_started(stream: Stream) -> None:
    await committed(stream, 0)
    await start_run(Driver(stream), "b")
    with pytest.raises(IllegalStateError, match="started again elsewhere"):
        await committed(stream, 1)
    with pytest.raises(IllegalStateError, match="started again elsewhere"):
        await start_run(Driver(stream), "a")
    assert record(stream).last_batch == 0


async def test_an_old_copy_of_a_checkpoint_is_refused(stream: Stream) -> None:
    for batch in range(3):
        await committed(stream, batch)
    with pytest.raises(IllegalStateError, match=r"has written batch 2 .* batch 1: its checkpoint is an old copy"):
        await committed(stream, 1, run="b")


async def test_a_lease_that_ended_before_the_commit_fails_the_batch_and_records_nothing(stream: Stream) -> None:
    made = (stream.begin(), stream.begin())
    stream.expire(made[1:])
    attempt = Attempt("a", 0, made)
    with pytest.raises(IllegalStateError, match="not open"):
        await commit_batch(Driver(stream), attempt, Unresolved.FAIL)
    await abort_batch(Driver(stream), attempt)
    assert stream.states[made[0]] is ABORTED
    assert stream.visible == []


async def test_a_failed_batch_that_is_recorded_is_not_aborted_but_finished(stream: Stream) -> None:
    made = await recorded(stream, 0, commits=0)
    await abort_batch(Driver(stream), Attempt("a", 0, made))
    assert {stream.states[each] for each in made} == {OPEN}
    again = await committed(stream, 0, run="b")
    assert stream.visible == list(made)
    assert {stream.states[each] for each in again} == {ABORTED}


@pytest.mark.parametrize("commits", [0, 1, 3])
async def test_a_start_finishes_a_recorded_batch_before_leases_end_while_it_is_written_again(
    stream: Stream, commits: int
) -> None:
    made = await recorded(stream, 0, commits=commits)
    await asyncio.gather(*(start_run(Driver(stream), "b") for _ in range(3)))  # tasks that start together
    assert record(stream).pending is None
    assert record(stream).last_batch == 0
    stream.expire(made)
    again = await committed(stream, 0, run="b")
    assert stream.visible == list(made)
    assert {stream.states[each] for each in again} == {ABORTED}


@pytest.mark.parametrize("commits", [0, 1])
async def test_a_start_leaves_a_batch_that_it_cannot_finish_to_the_commit(stream: Stream, commits: int) -> None:
    made = await recorded(stream, 0, commits=commits)
    stream.expire(made[2:])
    before = dict(stream.states)
    await start_run(Driver(stream), "b")
    assert record(stream).pending is not None
    assert record(stream).runs[-1] == "b"
    assert stream.states == before, "neither committed in part nor aborted"


async def test_an_earlier_run_finishes_nothing(stream: Stream) -> None:
    await start_run(Driver(stream), "earlier")
    await recorded(stream, 0, commits=0)
    before = dict(stream.states)
    with pytest.raises(IllegalStateError, match="started again elsewhere"):
        await start_run(Driver(stream), "earlier")
    assert stream.states == before


async def test_a_start_does_not_wait_without_end_for_what_it_finishes(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit of the batch waits for it then, and has a deadline of its own."""

    class Slow(Driver):
        async def pause(self, seconds: float) -> None:
            await asyncio.Event().wait()

    monkeypatch.setattr(limits, "SPARK_COMMIT_DEADLINE_S", 0.01)
    monkeypatch.setattr(stream, "merge", lambda: None)
    await recorded(stream, 0, commits=0)
    await start_run(Slow(stream), "b")
    assert record(stream).pending is not None
    assert record(stream).runs[-1] == "b"


async def test_a_recorded_batch_of_which_nothing_was_committed_is_written_again(stream: Stream) -> None:
    made = await recorded(stream, 0, commits=0)
    stream.expire(made[1:2])
    again = await committed(stream, 0, run="b")
    assert stream.visible == list(again)
    assert {stream.states[each] for each in made} == {ABORTED}


@pytest.mark.parametrize("forgotten", [False, True])
async def test_a_batch_that_is_there_in_part_needs_a_decision(stream: Stream, forgotten: bool) -> None:
    made = await recorded(stream, 0, commits=1)
    stream.expire(made)
    for each in made if forgotten else ():
        stream.states[each] = UNKNOWN
    with pytest.raises(IllegalStateError, match=r"batch 0 of query query may be .*scope/stream.*unresolved=keep"):
        await committed(stream, 0, run="b")
    assert record(stream).pending is not None


@pytest.mark.parametrize("decision", [Unresolved.KEEP, Unresolved.REWRITE])
async def test_the_decision_about_a_batch_that_is_there_in_part(stream: Stream, decision: Unresolved) -> None:
    made = await recorded(stream, 0, commits=1)
    stream.expire(made)
    again = (stream.begin(),)
    await commit_batch(Driver(stream), Attempt("b", 0, again), decision)
    assert stream.visible == [made[0], *(again if decision is Unresolved.REWRITE else ())]
    assert record(stream).last_batch == 0


async def test_a_batch_that_was_given_up_and_never_came_again_needs_a_decision(stream: Stream) -> None:
    made = await recorded(stream, 0, commits=0)
    stream.expire(made)
    with pytest.raises(IllegalStateError, match=r"batch 0 of query query is not in the stream.*unresolved=keep"):
        await committed(stream, 1, run="b")
    later = (stream.begin(),)
    await commit_batch(Driver(stream), Attempt("c", 1, later), Unresolved.KEEP)
    assert stream.visible == list(later)
    assert record(stream).last_batch == 1


async def test_a_forgotten_transaction_before_a_committed_one_was_committed(stream: Stream) -> None:
    made = await recorded(stream, 0, commits=2)
    stream.states[made[0]] = UNKNOWN
    again = await committed(stream, 0, run="b")
    assert stream.visible == list(made)
    assert {stream.states[each] for each in again} == {ABORTED}


async def test_a_batch_without_rows_writes_no_record(stream: Stream) -> None:
    await commit_batch(Driver(stream), Attempt("a", 0, ()), Unresolved.FAIL)
    assert stream.stored is None


async def test_rows_of_a_table_without_a_number_are_committed_in_order_across_epochs(stream: Stream) -> None:
    made = (stream.begin(1), stream.begin(0), stream.begin(1))
    await commit_all(Driver(stream), made)
    assert stream.visible == list(made)


async def test_a_driver_whose_record_others_change_all_the_time_gives_up(stream: Stream) -> None:
    class Restless(Driver):
        async def replace(self, record: QueryRecord, version: int) -> None:
            raise WriteConflictError("changed")

    with pytest.raises(WriteConflictError, match="all the time"):
        await commit_batch(Restless(stream), Attempt("a", 0, (stream.begin(),)), Unresolved.FAIL)
