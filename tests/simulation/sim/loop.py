"""A seeded asyncio event loop with virtual time.

What is random and what is not: callbacks of `call_soon` run in the order of their calls, as asyncio promises; timers
fire late by a small random amount, as asyncio permits, and every turn of the loop takes a little virtual time. All
I/O of the simulated world goes through timers, so its completions interleave differently with every seed.
`run_in_executor` runs the function on the loop after a random delay. Real sockets, threads and processes are errors.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import hashlib
import heapq
import itertools
import random
from collections.abc import Callable, Coroutine
from typing import Any

from sim.process import PROCESS, SimProcess, abandon

STARTED_S = 1000.0
"""When time begins."""
TURN_MAX_S = 20e-6
TIMER_LATENESS_MAX_S = 100e-6
EXECUTOR_DELAY_MAX_S = 5e-3
COLLECT_EVERY_TURNS = 10_000
"""Cycles of garbage are collected then and at no other time: what ends with them ends at the same turn in every run."""
TURNS_WITHOUT_TIME_MAX = 200_000

WORLD_CONTEXT = contextvars.Context()
"""For callbacks that belong to no process."""


class ForbiddenError(RuntimeError):
    """Code under simulation reached for something real."""


class StuckError(RuntimeError):
    """Nothing can happen any more, or everything happens at one instant for ever."""


class SimTask(asyncio.Task):  # type: ignore[type-arg]
    """A task that knows its process."""

    process: SimProcess | None = None
    number = 0
    """In the order in which tasks were made."""


class SimFuture(asyncio.Future):  # type: ignore[type-arg]
    """A future that knows its process."""

    process: SimProcess | None = None


class _VirtualSelector:
    """Stands where the loop expects its selector: instead of waiting it moves the time."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[Any]:
        """Let time pass; there are never any events."""
        if timeout is None:
            raise StuckError("deadlock: no callback is ready and no timer is set")
        self._loop._pass_time(timeout)
        return []

    def close(self) -> None:
        """Nothing to close."""


class _Held:
    """What a paused process would have run by now."""

    def __init__(self) -> None:
        self.in_order: list[asyncio.Handle] = []

    def ready(self, rng: random.Random) -> list[asyncio.Handle]:
        """In the order of their times, or, as a loop that wakes up has it, what arrived before the timers."""
        if rng.random() < 0.5:
            return self.in_order
        return sorted(self.in_order, key=lambda handle: isinstance(handle, asyncio.TimerHandle))


class SimLoop(asyncio.BaseEventLoop):
    """See the module's docstring."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._selector = _VirtualSelector(self)
        self._clock_resolution = 1e-9
        self._now_s = STARTED_S
        self._random = random.Random(f"{seed}-loop")
        self._turns_at_once = 0
        self._hash = hashlib.blake2b(digest_size=16)
        self._task_numbers = itertools.count()
        self.turns = 0
        self.unhandled: list[dict[str, Any]] = []
        self.network: Any = None
        self._held: dict[SimProcess, _Held] = {}
        self._generators: dict[int, SimProcess] = {}
        self.set_task_factory(self._make_task)
        self.set_exception_handler(self._note_unhandled)

    # -- time and trace

    def time(self) -> float:
        """Virtual seconds."""
        return self._now_s

    def _pass_time(self, timeout: float) -> None:
        self.turns += 1
        if self.turns % COLLECT_EVERY_TURNS == 0:
            gc.collect()
        if timeout > TURN_MAX_S:
            self._turns_at_once = 0
            self._now_s += timeout
        else:
            self._turns_at_once += 1
            if self._turns_at_once > TURNS_WITHOUT_TIME_MAX:
                raise StuckError(f"livelock: {TURNS_WITHOUT_TIME_MAX} turns of the loop without waiting for anything")
            self._now_s += max(timeout, self._random.random() * TURN_MAX_S)
        self._hash.update(b"%.9f %d;" % (self._now_s, len(self._ready)))  # type: ignore[attr-defined]

    def trace(self, *details: object) -> None:
        """Mix an event into the trace hash."""
        self._hash.update(repr(details).encode())

    @property
    def trace_hash(self) -> str:
        """Equal for equal runs."""
        return self._hash.hexdigest()

    # -- callbacks

    def call_soon(self, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None) -> Any:
        """As asyncio; dropped when the calling process is dead."""
        if _is_dead(context):
            return _dropped(asyncio.Handle(callback, args, self, context))  # type: ignore[arg-type]
        return super().call_soon(callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> Any:
        """As asyncio, up to TIMER_LATENESS_MAX_S late; dropped when the calling process is dead."""
        if _is_dead(context):
            return _dropped(asyncio.TimerHandle(when, callback, args, self, context))  # type: ignore[arg-type]
        when = max(when, self._now_s) + self._random.random() * TIMER_LATENESS_MAX_S
        return super().call_at(when, callback, *args, context=context)

    def call_later(
        self, delay: float, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> Any:
        """As asyncio; see call_at."""
        return self.call_at(self._now_s + delay, callback, *args, context=context)

    def call_soon_threadsafe(
        self, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> Any:
        """There is one thread only."""
        return self.call_soon(callback, *args, context=context)

    def call_world(self, delay_s: float, callback: Callable[..., Any], *args: Any) -> Any:
        """A timer that belongs to no process and survives the one that sets it."""
        return self.call_at(self._now_s + delay_s, callback, *args, context=WORLD_CONTEXT)

    def drop_callbacks_of_the_dead(self) -> None:
        """Cancel what dead processes have scheduled."""
        for handle in [*self._ready, *self._scheduled]:  # type: ignore[attr-defined]
            process = handle._context.get(PROCESS)
            if process is not None and not process.alive:
                handle.cancel()

    def _asyncgen_firstiter_hook(self, agen: Any) -> None:
        process = PROCESS.get()
        if process is None:
            self._generators.pop(id(agen), None)
        else:
            self._generators[id(agen)] = process
        super()._asyncgen_firstiter_hook(agen)  # type: ignore[misc]

    def _asyncgen_finalizer_hook(self, agen: Any) -> None:
        """As asyncio: closes a generator without references; not for a dead process, where nothing runs."""
        process = self._generators.pop(id(agen), None)
        if process is None or process.alive:
            super()._asyncgen_finalizer_hook(agen)  # type: ignore[misc]

    # -- processes that are paused

    def hold(self, process: SimProcess) -> None:
        """From the next turn on nothing of the process runs; the world around it goes on."""
        process.paused = True
        self._held.setdefault(process, _Held())

    def go_on(self, process: SimProcess) -> None:
        """Run what was held back, late."""
        held = self._held.pop(process, None)
        process.paused = False
        if held is not None and process.alive:
            self._ready.extend(held.ready(self._random))  # type: ignore[attr-defined]

    def _hold_back(self) -> None:
        """Take what is due of paused processes out of the queues."""
        ready, scheduled = self._ready, self._scheduled  # type: ignore[attr-defined]
        end = self._now_s + self._clock_resolution
        while scheduled and scheduled[0]._when < end:
            timer = heapq.heappop(scheduled)
            timer._scheduled = False
            if timer._cancelled:
                self._timer_cancelled_count -= 1
            ready.append(timer)
        for _ in range(len(ready)):
            handle = ready.popleft()
            held = self._held.get(handle._context.get(PROCESS)) if not handle._cancelled else None
            if held is None:
                ready.append(handle)
            else:
                held.in_order.append(handle)

    def create_future(self) -> SimFuture:
        """As asyncio."""
        future = SimFuture(loop=self)
        future.process = PROCESS.get()
        return future

    def _make_task(
        self, loop: Any, coroutine: Coroutine[Any, Any, Any], context: contextvars.Context | None = None, **kwargs: Any
    ) -> SimTask:
        context = contextvars.copy_context() if context is None else context
        task = SimTask(coroutine, loop=loop, context=context, **kwargs)
        task.number = next(self._task_numbers)
        process = context.get(PROCESS)
        if process is not None:
            task.process = process
            if not process.alive:  # a cleanup makes it: nothing will take its first step
                abandon(task, context)
                return task
            process.tasks[task] = context
            task.add_done_callback(lambda done: process.tasks.pop(done, None))
        return task

    def _note_unhandled(self, loop: asyncio.AbstractEventLoop, details: dict[str, Any]) -> None:
        task = details.get("task") or details.get("future")
        process = getattr(task, "process", None)
        if process is None and "handle" in details:
            process = details["handle"]._context.get(PROCESS)
        if process is None and task is None:  # code of a process reports it
            process = PROCESS.get()
        if process is None or process.alive:
            self.unhandled.append(details)

    # -- executors

    def run_in_executor(self, executor: Any, function: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        """Runs the function on the loop, after a random delay."""
        future = self.create_future()

        def run() -> None:
            if future.cancelled():
                return
            try:
                future.set_result(function(*args))
            except Exception as error:
                future.set_exception(error)

        self.call_later(self._random.random() ** 3 * EXECUTOR_DELAY_MAX_S, run)
        return future

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:  # noqa: ASYNC109
        """There is none."""

    # -- network: in sim.network

    async def getaddrinfo(self, host: Any, port: Any, **_: Any) -> list[Any]:
        """Every name is its own address."""
        return [(2, 1, 6, "", (host, port))]

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **kwargs: Any) -> Any:
        """Over the simulated network."""
        return await self.network.connect(protocol_factory, host, port, **kwargs)

    async def create_server(self, protocol_factory: Any, host: Any = None, port: Any = None, **kwargs: Any) -> Any:
        """Over the simulated network."""
        return await self.network.listen(protocol_factory, host, port, **kwargs)

    # -- what the base class needs

    def _process_events(self, event_list: list[Any]) -> None:
        assert not event_list
        if self._held:
            self._hold_back()

    def _write_to_self(self) -> None:
        """Refuse to sleep."""


def _is_dead(context: contextvars.Context | None) -> bool:
    process = PROCESS.get() if context is None else context.get(PROCESS)
    return process is not None and not process.alive


def _dropped(handle: Any) -> Any:
    handle.cancel()
    return handle


def _forbid(name: str) -> None:
    def forbidden(self: SimLoop, *args: Any, **kwargs: Any) -> Any:
        raise ForbiddenError(f"loop.{name} reaches outside of the simulation")

    setattr(SimLoop, name, forbidden)


for _name in (
    "add_reader", "add_writer", "add_signal_handler", "connect_accepted_socket", "connect_read_pipe",
    "connect_write_pipe", "create_datagram_endpoint", "create_unix_connection", "create_unix_server", "getnameinfo",
    "sendfile", "sock_accept", "sock_connect", "sock_recv", "sock_recv_into", "sock_recvfrom", "sock_sendall",
    "sock_sendfile", "sock_sendto", "start_tls", "subprocess_exec", "subprocess_shell",
):  # fmt: skip
    _forbid(_name)
