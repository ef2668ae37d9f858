"""A checkpoint that is an old copy, one batch behind: its next batch has the number of the last complete one."""

from __future__ import annotations

import asyncio
import uuid
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from tailrace.client.model import StreamName, TransactionState
from tailrace.common.errors import IllegalStateError, WriteConflictError
from tailrace.pipelines.sink import task, writers
from tailrace.pipelines.sink.options import SinkOptions
from tailrace.pipelines.sink.query_record import QueryRecord
from tailrace.pipelines.sink.task import TaskMessage, write_task
from tailrace.pipelines.sink.writers import StreamWriter

OPTIONS = SinkOptions("tcp://c:1", StreamName("s", "t"))


class Server:
    """A stream, its transactions and the record of one query."""

    def __init__(self) -> None:
        self.record, self.version = QueryRecord("query", "s/t", incarnation=0), 0
        self.states: dict[uuid.UUID, TransactionState] = {}
        self.events: dict[uuid.UUID, list[bytes]] = {}

    @property
    def visible(self) -> list[bytes]:
        """Events of committed transactions."""
        return [
            event for each, state in self.states.items() if state.name == "COMMITTED" for event in self.events[each]
        ]

    # -- the port of the sink
    async def start(self) -> Server:
        return self

    async def load(self) -> tuple[QueryRecord, int]:
        return self.record, self.version

    async def replace(self, record: QueryRecord, version: int) -> None:
        if version != self.version:
            raise WriteConflictError("changed")
        self.record, self.version = record, version + 1

    async def state(self, one: uuid.UUID) -> TransactionState:
        return self.states.get(one, TransactionState.UNKNOWN)

    async def extend(self, one: uuid.UUID) -> None:
        assert self.states[one] is TransactionState.OPEN

    async def commit(self, one: uuid.UUID) -> None:
        self.states[one] = TransactionState.COMMITTED

    async def abort(self, one: uuid.UUID) -> None:
        self.states[one] = TransactionState.ABORTED

    async def pause(self, seconds: float) -> None: ...

    # -- a transaction
    async def begin(self) -> Any:
        made = uuid.UUID(int=len(self.states) + 1)
        self.states[made], self.events[made] = TransactionState.OPEN, []

        async def nothing() -> None: ...

        def write(events: list[bytes], key: str | None) -> None:
            self.events[made] += events

        return SimpleNamespace(
            transaction_id=made, write_events=write, ready=nothing, flush=nothing, ping=nothing, abandon=nothing,
            abort=nothing,
        )  # fmt: skip


class Client:
    context = SimpleNamespace(controller=None)

    def __init__(self, _: str) -> None: ...

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None: ...

    def run(self, work: Any) -> Any:
        return asyncio.run(work)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    made = Server()
    for module in (task, writers):
        monkeypatch.setattr(module, "BlockingClient", Client)
        monkeypatch.setattr(module, "QueryTable", lambda *_: made)
    monkeypatch.setattr(task, "TransactionalWriter", lambda *_, **__: made)
    return made


def written(run: str, *events: bytes) -> TaskMessage:
    """What one task of a run writes."""
    return write_task(OPTIONS, "query", run, iter([pa.RecordBatch.from_pydict({"value": list(events)})]))


def test_a_repeated_batch_is_there_once(server: Server) -> None:
    """A driver was killed between the commit of the sink and that of the checkpoint."""
    StreamWriter(OPTIONS).commit([written("first run", b"a", b"b")], 5)
    StreamWriter(OPTIONS).commit([written("second run", b"a", b"b")], 5)
    assert server.visible == [b"a", b"b"]


def test_an_old_checkpoint_that_is_one_batch_behind_does_not_lose_what_its_next_batch_has(server: Server) -> None:
    """docs/spark-sink.md: "the checkpoint is an old copy: the query fails".

    The copy was made after batch 4 and before batch 5 was planned. Meanwhile the source has c and d, too: batch 5 is
    planned again, with them, and the query goes on behind them.
    """
    StreamWriter(OPTIONS).commit([written("first run", b"a", b"b")], 5)
    with pytest.raises(IllegalStateError, match="old copy"):
        StreamWriter(OPTIONS).commit([written("second run", b"a", b"b", b"c", b"d")], 5)
