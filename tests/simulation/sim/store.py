"""An object store that is linearizable inside and unreliable outside: late, failing, failing after or
long before the effect, doing things twice, listing old states, throttling, away for minutes. A request in flight when
its process dies may still take effect. On request it lies: ignores conditions, or remembers that an object was not
there.

See docs/design.md#faults.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Sequence
from types import MappingProxyType
from typing import Any

from sim.faults import FaultCounter
from sim.loop import SimLoop
from sim.process import ProcessKilledError, SimProcess
from tailrace.common.errors import (
    AlreadyExistsError,
    CorruptionError,
    DeadlineError,
    NotFoundError,
    UnavailableError,
)
from tailrace.storage.port import Buffer, ObjectInfo

NO_ANSWER_S = 30.0
"""When the client of the store gives up, as the real one does (``limits.STORAGE_CALL_DEADLINE_S``)."""


class SimObjectStore(FaultCounter):
    """The objects: shared by all processes. `attach` gives a process its ObjectStore port."""

    CHANCES = MappingProxyType(
        {
            "failure_chance": "store error",
            "lost_reply_chance": "store reply lost",
            "timeout_chance": "store timeout without effect",
            "partial_body_chance": "partial body",
            "slow_chance": "slow store",
            "late_chance": "late store effect",
            "duplicate_chance": "store duplicate",
            "stale_list_chance": "stale list",
            "ignores_conditions": "condition ignored",
            "remembers_misses_s": "stale miss",
        }
    )

    def __init__(self, loop: SimLoop, seed: int) -> None:
        super().__init__()
        self.loop = loop
        self.random = random.Random(f"{seed}-store")
        self.objects: dict[str, bytes] = {}
        self.failure_chance = 0.0
        self.lost_reply_chance = 0.0
        self.timeout_chance = 0.0
        """Of a request without effect that is not answered, either."""
        self.partial_body_chance = 0.0
        """Of a read whose answer breaks off."""
        self.slow_chance = 0.02
        self.slow_max_s = 2.0
        self.late_chance = 0.0
        """Of a write: the answer is an error at once, the effect comes up to ``late_max_s`` later."""
        self.duplicate_chance = 0.0
        """Of a write: it takes effect a second time, up to ``late_max_s`` later."""
        self.late_max_s = 60.0
        self.stale_list_chance = 0.0
        self.ignores_conditions = False
        self._outage_until_s = 0.0
        self._throttled_until_s = 0.0
        self.remembers_misses_s = 0.0
        """How long a read that found nothing is repeated from memory."""
        self.operations = 0
        self.overwritten: list[str] = []
        self.deleted: dict[str, bytes] = {}
        self._listed: dict[str, bytes] = {}
        self._missed: dict[str, float] = {}
        self._countdowns: dict[SimProcess, tuple[int, Callable[[SimProcess], None]]] = {}
        self.forget_enabled()

    def attach(self, process: SimProcess) -> AttachedStore:
        """The ObjectStore port of a process."""
        return AttachedStore(self, process)

    def delay_s(self, slow_chance: float | None = None) -> float:
        """How long one way takes."""
        slow = self.random.random() < (self.slow_chance if slow_chance is None else slow_chance)
        if slow:
            self.count("slow store")
        return self.random.random() * (self.slow_max_s if slow else 0.02)

    def kill_at(self, process: SimProcess, requests: int, kill: Callable[[SimProcess], None]) -> None:
        """Kill the process at its n-th request from now, sent or not; `kill` is called in the world to clean up."""
        self._countdowns[process] = (requests, kill)

    def dies_now(self, process: SimProcess) -> bool:
        """Count a request of a process; True when the process is to die with it."""
        if process not in self._countdowns:
            return False
        left, kill = self._countdowns.pop(process)
        if left > 0:
            self._countdowns[process] = (left - 1, kill)
            return False
        process.alive = False
        self.loop.call_world(0, kill, process)
        return True

    def listed(self) -> dict[str, bytes]:
        """What a list shows: the objects, or an old state of them."""
        if self.stale_list_chance:
            if self.random.random() < self.stale_list_chance:
                self.count("stale list")
                return self._listed
            if self.random.random() < 0.5:
                self._listed = dict(self.objects)
        return self.objects

    def missed(self, key: str, there: bool) -> bool:
        """Whether a read is answered from the memory of an earlier one that found nothing."""
        now_s = self.loop.time()
        if not self.remembers_misses_s:
            return False
        if self._missed.get(key, 0.0) > now_s:
            self.count("stale miss")
            return True
        if not there:
            self._missed[key] = now_s + self.remembers_misses_s
        return False

    def outage(self, seconds: float) -> None:
        """No request succeeds for a while: half of them are refused at once, the others get no answer."""
        self.count("store outage")
        self.loop.trace("store outage", seconds)
        self._outage_until_s = max(self._outage_until_s, self.loop.time() + seconds)

    def throttle(self, seconds: float) -> None:
        """For a while the store answers most requests with the wish to slow down."""
        self.count("store throttling")
        self.loop.trace("store throttling", seconds)
        self._throttled_until_s = max(self._throttled_until_s, self.loop.time() + seconds)

    def end_episodes(self) -> None:
        """End outages and throttling."""
        self._outage_until_s = self._throttled_until_s = 0.0

    def _refusal(self, reads: bool) -> tuple[str, bool]:
        """Why a request has no effect ("": it has one), and whether it gets no answer either."""
        now_s = self.loop.time()
        if now_s < self._outage_until_s:
            return "request in an outage", self.random.random() < 0.5
        if now_s < self._throttled_until_s and self.random.random() < 0.9:
            return "request throttled (503 SlowDown)", False
        if self.timeout_chance and self.random.random() < self.timeout_chance:
            return "store timeout without effect", True
        if reads and self.partial_body_chance and self.random.random() < self.partial_body_chance:
            return "partial body", False
        return ("store error" if self.random.random() < self.failure_chance else ""), False

    def request(
        self,
        name: str,
        key: str,
        effect: Callable[[], Any],
        *,
        writes: bool = False,
        slow_chance: float | None = None,
    ) -> asyncio.Future[Any]:
        """Run `effect` at some instant between now and the answer; the answer may still be an error."""
        self.operations += 1
        answer: asyncio.Future[Any] = self.loop.create_future()
        late = writes and self.late_chance > 0 and self.random.random() < self.late_chance
        if writes and self.duplicate_chance and self.random.random() < self.duplicate_chance:
            self.loop.call_world(self.random.random() * self.late_max_s, self._again, name, key, effect)
        refusal, silent = self._refusal(reads=name == "get")
        loses = self.random.random() < self.lost_reply_chance
        no_answer = DeadlineError(f"{name} {key}: no answer from the store")

        def reply(result: Any, error: Exception | None) -> None:
            if answer.done():
                return
            if error is not None:
                answer.set_exception(error)
                answer.exception()
            else:
                answer.set_result(result)

        def act() -> None:
            self.loop.trace(name, key, refusal, loses)
            if refusal:
                self.count(refusal)
                if silent:
                    self.loop.call_world(NO_ANSWER_S, reply, None, no_answer)
                else:
                    self.loop.call_world(0, reply, None, UnavailableError(f"{name} {key}: {refusal}"))
                return
            result, error = None, None
            try:
                result = effect()
            except Exception as failure:
                error = failure
            if loses:
                self.count("store reply lost")
                error = no_answer
            self.loop.call_world(self.delay_s(slow_chance), reply, result, error)

        if late:
            self.loop.call_world(self.random.random() * self.late_max_s, self._late, name, key, effect)
            self.loop.call_world(self.delay_s(slow_chance), reply, None, no_answer)
        else:
            self.loop.call_world(self.delay_s(slow_chance), act)
        return answer

    def _again(self, name: str, key: str, effect: Callable[[], Any]) -> None:
        self._unanswered("store duplicate", name, key, effect)

    def _late(self, name: str, key: str, effect: Callable[[], Any]) -> None:
        self._unanswered("late store effect", name, key, effect)

    def _unanswered(self, fault: str, name: str, key: str, effect: Callable[[], Any]) -> None:
        self.count(fault)
        self.loop.trace(fault, name, key)
        with contextlib.suppress(AlreadyExistsError):
            effect()


class AttachedStore:
    """The ObjectStore port of one process."""

    def __init__(self, store: SimObjectStore, process: SimProcess) -> None:
        self._store = store
        self._process = process
        self.slow_chance: float | None = None
        """Of each way of each request of this process; None: as for all."""

    async def _request(self, name: str, key: str, effect: Callable[[], Any], *, writes: bool = False) -> Any:
        self._process.check()
        if self._store.dies_now(self._process):
            if self._store.random.random() < 0.5:
                self._store.request(name, key, effect, writes=writes)
            raise ProcessKilledError(self._process.name)
        result = await self._store.request(name, key, effect, writes=writes, slow_chance=self.slow_chance)
        self._process.check()
        return result

    async def put(self, key: str, data: Sequence[Buffer], *, if_absent: bool = False) -> None:
        """See ObjectStore.put."""
        content = b"".join(data)

        def effect() -> None:
            if key in self._store.objects:
                if if_absent and self._store.ignores_conditions:
                    self._store.count("condition ignored")
                elif if_absent:
                    raise AlreadyExistsError(f"object {key} exists already")
                if self._store.objects[key] != content:
                    self._store.overwritten.append(key)
            self._store.objects[key] = content

        await self._request("put", key, effect, writes=True)

    def _object(self, key: str) -> bytes:
        there = key in self._store.objects
        if self._store.missed(key, there) or not there:
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

        def effect() -> list[ObjectInfo]:
            objects = self._store.listed()
            return [ObjectInfo(key, len(objects[key])) for key in sorted(objects) if key.startswith(prefix)]

        for info in await self._request("list", prefix, effect):
            yield info

    async def delete(self, keys: Sequence[str]) -> None:
        """See ObjectStore.delete."""

        def effect() -> None:
            for key in keys:
                if key in self._store.objects:
                    self._store.deleted[key] = self._store.objects.pop(key)

        await self._request("delete", ",".join(keys), effect, writes=True)

    async def close(self) -> None:
        """See ObjectStore.close."""
