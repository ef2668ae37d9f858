"""A controller forgets a scope that it marks as being deleted, whatever reads of it are in progress."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from harness.interception import Call, Intercepted
from tailrace.controller.metadata.metadata_store import SCOPES_TABLE


class LateReads:
    """Holds the answers of reads of scopes while it `holds`."""

    def __init__(self) -> None:
        self.holds = False
        self.reached, self.go = asyncio.Event(), asyncio.Event()

    def wrap(self, target: Any) -> Any:
        return Intercepted(target, self._around)

    async def _around(self, name: str, arguments: tuple[Any, ...], call: Call) -> Any:
        found = await call()
        if self.holds and (name, arguments[0]) == ("get", SCOPES_TABLE):
            self.reached.set()
            await self.go.wait()
        return found


@pytest.mark.parametrize("reads", ["before it", "while it changes"])
async def test_a_scope_that_is_marked_is_not_remembered(reads: str, world: Any) -> None:
    late = LateReads()
    scopes = (await world.start(late)).services.core.context.scopes
    await scopes.create("scope")
    nonce = (await scopes.require("scope")).nonce
    late.holds = reads == "while it changes"
    reading = asyncio.ensure_future(scopes.require("scope"))
    await (late.reached.wait() if late.holds else reading)
    late.holds = False
    await scopes.mark_deleting("scope", nonce, recursive=False)
    late.go.set()
    assert (await reading).nonce == nonce, "it was read before the change"
    assert await scopes.remembered("scope") is None
