"""A controller is cut off when none of its tables answers for some time, and only then."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

import pytest

from tailrace.common.errors import NoSuchSegmentError, UnavailableError
from tailrace.controller.instances.table_contact import TableContact
from tailrace.controller.metadata.metadata_store import OWN_TABLES, MemoryMetadataStore
from tailrace.controller.metadata.ports import Stored

CUT_OFF_S = 0.2
DEADLINE_S = 120.0


class Tables(MemoryMetadataStore):
    """Tables of which some do not answer: they refuse at once, or hang."""

    def __init__(self) -> None:
        super().__init__()
        self.away: set[str] = set()
        self.hangs = False
        self.asked: set[str] = set()
        self.asking = self.most = 0

    async def get(self, table: str, keys: Sequence[bytes]) -> list[Stored | None]:
        self.asked.add(table)
        self.asking += 1
        self.most = max(self.most, self.asking)
        try:
            if table in self.away:
                if self.hangs:
                    await asyncio.Event().wait()
                raise UnavailableError(f"table {table} is away")
            return await super().get(table, keys)
        finally:
            self.asking -= 1


class Watched:
    """A contact that is watched, and what it said."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self.contact = TableContact(tables, period_s=0.001, answer_s=0.02, cut_off_s=CUT_OFF_S)
        self.said: list[bool] = []

    async def changed(self, reached: bool) -> None:
        self.said.append(reached)

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while True:
                if holds():
                    return
                await asyncio.sleep(0.001)

    async def for_several_rounds(self) -> None:
        """Until all tables were asked, some time after which it would be cut off."""
        until_s = asyncio.get_running_loop().time() + 2 * CUT_OFF_S
        self.tables.asked.clear()
        await self.until(
            lambda: self.tables.asked == set(OWN_TABLES) and asyncio.get_running_loop().time() > until_s
        )


@pytest.fixture
async def watched() -> AsyncIterator[Watched]:
    tables = Tables()
    for table in OWN_TABLES:
        await tables.create_table(table)
    made = Watched(tables)
    task = asyncio.create_task(made.contact.watch(made.changed))
    yield made
    assert not task.done(), "it watches until it is cancelled"
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert tables.asking == 0, "no question is left"


@pytest.mark.parametrize("hangs", [False, True], ids=["refuses", "hangs"])
async def test_no_answer_of_any_table(watched: Watched, hangs: bool) -> None:
    await watched.for_several_rounds()
    assert (watched.said, watched.contact.trouble) == ([], "")
    watched.tables.hangs = hangs
    watched.tables.away = set(OWN_TABLES)
    await watched.until(lambda: not watched.contact.reached)
    assert watched.contact.trouble.startswith("no segment store has answered for ")
    await watched.for_several_rounds()
    watched.tables.away = set(OWN_TABLES) - {OWN_TABLES[7]}
    await watched.until(lambda: watched.contact.reached)
    assert (watched.said, watched.contact.trouble) == ([False, True], "")


async def test_one_table_that_answers_is_enough(watched: Watched) -> None:
    watched.tables.hangs = True
    watched.tables.away = set(OWN_TABLES) - {OWN_TABLES[-1]}
    await watched.for_several_rounds()
    assert watched.said == []


async def test_a_refusal_is_an_answer(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(table: str, keys: Sequence[bytes]) -> list[Stored | None]:
        watched.tables.asked.add(table)
        raise NoSuchSegmentError(table)

    monkeypatch.setattr(watched.tables, "get", refuse)
    await watched.for_several_rounds()
    assert watched.said == []


async def test_tables_that_answer_are_asked_one_at_a_time(watched: Watched) -> None:
    await watched.for_several_rounds()
    assert watched.tables.most == 1
