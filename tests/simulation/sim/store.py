"""An object store that is linearizable inside and unreliable outside (reliability §4): late, failing, or failing after
the effect. A request in flight when its process dies may still take effect."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from sim.loop import SimLoop
from sim.process import SimProcess
from tailrace.common.errors import AlreadyExistsError, CorruptionError, DeadlineError, NotFoundError, UnavailableError
from tailrace.storage.port import Buffer, ObjectInfo


class SimObjectStore:
    """The objects: shared by all processes. `attach` gives a process its ObjectStore port."""

    def __init__(self, loop: SimLoop, seed: int) -> None:
        self.loop = loop
        self.random = random.Random(f"{seed}-store")
        self.objects: dict[str, bytes] = {}
        self.failure_chance = 0.0
        self.lost_reply_chance = 0.0
        self.slow_chance = 0.02
        self.operations = 0
        self.faults: dict[str, int] = {}
        self.overwritten: list[str] = []
        self.deleted: dict[str, bytes] = {}

    def attach(self, process: SimProcess) -> AttachedStore:
        """The ObjectStore port of a process."""
        return AttachedStore(self, process)

    def count(self, fault: str) -> None:
        """Count an injected fault."""
        self.faults[fault] = self.faults.get(fault, 0) + 1

    def delay_s(self) -> float:
        """How long one way takes."""
        slow = self.random.random() < self.slow_chance
        return self.random.random() * (2.0 if slow else 0.02)

    def request(self, name: str, key: str, effect: Callable[[], Any]) -> asyncio.Future[Any]:
        """Run `effect` at some instant between now and the answer; the answer may be an error all the same."""
        self.operations += 1
        answer: asyncio.Future[Any] = self.loop.create_future()
        fails = self.random.random() < self.failure_chance
        loses = self.random.random() < self.lost_reply_chance

        def reply(result: Any, error: Exception | None) -> None:
            if answer.done():
                return
            if error is not None:
                answer.set_exception(error)
                answer.exception()
            else:
                answer.set_result(result)

        def act() -> None:
            self.loop.trace(name, key, fails, loses)
            if fails:
                self.count("store error")
                self.loop.call_world(0, reply, None, UnavailableError(f"{name} {key}: the store answers 503"))
                return
            result, error = None, None
            try:
                result = effect()
            except Exception as failure:
                error = failure
            if loses:
                self.count("store reply lost")
                error = DeadlineError(f"{name} {key}: no answer from the store")
            self.loop.call_world(self.delay_s(), reply, result, error)

        self.loop.call_world(self.delay_s(), act)
        return answer


class AttachedStore:
    """The ObjectStore port of one process."""

    def __init__(self, store: SimObjectStore, process: SimProcess) -> None:
        self._store = store
        self._process = process

    async def _request(self, name: str, key: str, effect: Callable[[], Any]) -> Any:
        self._process.check()
        result = await self._store.request(name, key, effect)
        self._process.check()
        return result

    async def put(self, key: str, data: Sequence[Buffer], *, if_absent: bool = False) -> None:
        """See ObjectStore.put."""
        content = b"".join(data)

        def effect() -> None:
            if key in self._store.objects:
                if if_absent:
                    raise AlreadyExistsError(f"object {key} exists already")
                if self._store.objects[key] != content:
                    self._store.overwritten.append(key)
            self._store.objects[key] = content

        await self._request("put", key, effect)

    def _object(self, key: str) -> bytes:
        if key not in self._store.objects:
            raise NotFoundError(f"object {key} does not exist")
        return self._store.objects[key]

    async def get(self, key: str) -> bytes:
        """See ObjectStore.get."""
        found: bytes = await self._request("get", key, lambda: self._object(key))
        return found

    async def get_range(self, key: str, offset: int, length: int) -> bytes:
        """See ObjectStore.get_range."""
        whole = await self.get(key)
        if len(whole) < offset + length:
            raise CorruptionError(f"object {key}", f"has {len(whole)} bytes, {offset + length} are needed")
        return whole[offset : offset + length]

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        """See ObjectStore.list."""
        objects = self._store.objects

        def effect() -> list[ObjectInfo]:
            return [ObjectInfo(key, len(objects[key])) for key in sorted(objects) if key.startswith(prefix)]

        for info in await self._request("list", prefix, effect):
            yield info

    async def delete(self, keys: Sequence[str]) -> None:
        """See ObjectStore.delete."""

        def effect() -> None:
            for key in keys:
                if key in self._store.objects:
                    self._store.deleted[key] = self._store.objects.pop(key)

        await self._request("delete", ",".join(keys), effect)

    async def close(self) -> None:
        """See ObjectStore.close."""
