"""A bounded number of groups, tables and scopes has a workflow; what a step of another one begins needs no place."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from harness.interception import Call, Intercepted
from tailrace.common.errors import ConnectionLostError, OverloadedError, UnavailableError
from tailrace.controller.metadata.metadata_store import PENDING_TABLE, SCOPES_TABLE
from tailrace.rpc import controller_pb2 as pb

PLACES = 3
SCOPES = [pb.ScopeInfo(scope=f"scope-{number}") for number in range(PLACES)]
DEADLINE_S = 120.0
GROUP_ID = "11111111-2222-3333-4444-555555555555"


class Valve:
    """Holds the calls that match while it is shut."""

    def __init__(self, match: Callable[[str, tuple[Any, ...]], bool]) -> None:
        self._match = match
        self.open = asyncio.Event()
        self.open.set()
        self.held = 0

    def wrap(self, target: Any) -> Any:
        """The store with the valve in front of it."""
        return Intercepted(target, self._around)

    async def _around(self, name: str, arguments: tuple[Any, ...], call: Call) -> Any:
        if self._match(name, arguments) and not self.open.is_set():
            self.held += 1
            await self.open.wait()
        return await call()


def marks_scope(name: str, arguments: tuple[Any, ...]) -> bool:
    """Whether the call writes that a scope is being deleted: its workflow has a place, and has not begun another."""
    return name == "put" and arguments[0] == SCOPES_TABLE


def marks_group(name: str, arguments: tuple[Any, ...]) -> bool:
    """Whether the call begins a workflow of a group."""
    return name == "put" and arguments[0] == PENDING_TABLE and arguments[1][0].key.startswith(b"group/")


async def fill(api: Any) -> None:
    """Make the scopes, each with two groups and a table."""
    for scope in SCOPES:
        await api.call("createScope", scope)
        for name in ("a", "b"):
            group = pb.ReaderGroupConfiguration(scope=scope.scope, readerGroupName=name, readerGroupId=GROUP_ID)
            made = await api.call("createReaderGroup", group)
            assert made.status == pb.CreateReaderGroupResponse.SUCCESS
        table = pb.KeyValueTableConfig(scope=scope.scope, kvtName="table", partitionCount=1, primaryKeyLength=4)
        made = await api.call("createKeyValueTable", table)
        assert made.status == pb.CreateKeyValueTableStatus.SUCCESS


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110 - no event announces it
            await asyncio.sleep(0.001)


async def test_scopes_that_hold_all_places_are_deleted_with_their_contents(world: Any, make_api: Any) -> None:
    valve = Valve(marks_scope)
    controller = await world.start(valve, entities_max=PLACES, blocking_deadline_s=DEADLINE_S)
    api = make_api(controller)
    await fill(api)
    valve.open.clear()
    deleting = [asyncio.ensure_future(api.call("deleteScopeRecursive", scope)) for scope in SCOPES]
    await until(lambda: valve.held == PLACES)
    with pytest.raises(OverloadedError, match=f"{PLACES} workflows are running"):
        await api.call("deleteKeyValueTable", pb.KeyValueTableInfo(scope=SCOPES[0].scope, kvtName="table"))
    most = 0

    def ended() -> bool:
        nonlocal most
        most = max(most, controller.load().others)
        return all(task.done() for task in deleting)

    valve.open.set()
    await until(ended)
    assert [(await task).status for task in deleting] == [pb.DeleteScopeStatus.SUCCESS] * PLACES
    assert most <= 2 * PLACES
    assert world.segments.names("scope-") == []


async def test_scopes_that_are_adopted_into_all_places_are_deleted_with_their_contents(
    world: Any, make_api: Any
) -> None:
    valve = Valve(marks_group)
    first = await world.start(valve, sole=True)
    api = make_api(first)
    await fill(api)
    valve.open.clear()
    calls = [asyncio.ensure_future(api.call("deleteScopeRecursive", scope)) for scope in SCOPES]
    await until(lambda: valve.held == PLACES)
    await first.close()
    await asyncio.gather(*calls, return_exceptions=True)
    marks = [key for key in world.metadata.dump_table(PENDING_TABLE) if not key.startswith(b"stream/")]
    assert len(marks) == PLACES
    assert all(key.startswith(b"scope/") for key in marks)

    second = await world.start(seed=2, sole=True, entities_max=PLACES)
    await until(lambda: second.load().others == 0)
    for scope in SCOPES:
        assert not (await make_api(second).call("checkScopeExists", scope)).exists
    assert world.segments.names("scope-") == []


async def test_a_change_whose_answer_is_lost_goes_on_in_its_own_place(world: Any, make_api: Any) -> None:
    """It is not known whether the change was written: its workflow looks, while its call holds the only place."""
    lost = 0

    async def lose(name: str, arguments: tuple[Any, ...], call: Call) -> Any:
        nonlocal lost
        result = await call()
        if marks_scope(name, arguments) and begins:
            lost += 1
            raise ConnectionLostError("answer lost")
        return result

    begins = False
    losing = Intercepted(world.metadata, lose)
    kept, world.metadata = world.metadata, losing
    api = make_api(await world.start(sole=True, entities_max=1, rescan_s=3600.0, requests_deadline_s=2.0))
    world.metadata = kept
    await fill(api)
    begins = True
    with pytest.raises(UnavailableError, match="answer lost"):
        await api.call("deleteScopeRecursive", SCOPES[0])
    begins = False
    assert lost == 1
    await until(lambda: not any(key.startswith(b"scope/") for key in world.metadata.dump_table(PENDING_TABLE)))
    assert not (await api.call("checkScopeExists", SCOPES[0])).exists
    assert world.segments.names(f"{SCOPES[0].scope}/") == []
