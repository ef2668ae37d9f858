"""The simulated world: one loop, one seed, and everything that outlives a process."""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import Coroutine
from typing import Any, TypeVar

from sim.disk import SimDisk
from sim.faults import FaultCounter
from sim.guards import real_world_forbidden
from sim.kubernetes import SimKubernetes
from sim.loop import SimLoop, SimTask
from sim.network import SimNetwork
from sim.ports import SimClock, SimEntropy
from sim.process import SimProcess
from sim.store import SimObjectStore

T = TypeVar("T")


class SimWorld:
    """Makes processes, kills them, cuts the power. Everything random derives from the seed."""

    def __init__(self, seed: int, *, disk_bytes: int = 1 << 40) -> None:
        self.seed = seed
        self.loop = SimLoop(seed)
        self.random = random.Random(f"{seed}-world")
        self.disk = SimDisk(self.loop, seed, disk_bytes)
        self.store = SimObjectStore(self.loop, seed)
        self.network = SimNetwork(self.loop, seed)
        self.kubernetes = SimKubernetes(self.loop, seed)
        self.loop.network = self.network
        self.processes: list[SimProcess] = []
        self.crashes = 0
        self.pauses = 0
        self.clock_jumps = 0
        self.clocks_ahead_s = 0.0
        """The most by which wall clocks went ahead at once: from the furthest back to the furthest ahead they were."""
        self._skews_ms = (0, 0)
        self.enabled_episodes: set[str] = set()
        """Faults that a swarm turned on as episodes; parts of the world know which of theirs by chance are on."""
        self._clocks: dict[str, SimClock] = {}
        self._paused_until_s: dict[SimProcess, float] = {}
        self._incarnations = 0

    def process(self, name: str) -> SimProcess:
        """A new process."""
        self._incarnations += 1
        process = SimProcess(f"{name}#{self._incarnations}", self.loop)
        self.processes.append(process)
        return process

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run a coroutine of the world, for any caller."""
        return self.loop.create_task(work, context=contextvars.Context())

    def clock(self, machine: str = "") -> SimClock:
        """The wall clock of a machine; its processes share it."""
        return self._clocks.setdefault(machine, SimClock(self.loop))

    def jump_clock(self, machine: str, skew_ms: int) -> None:
        """Set the wall clock of a machine: from now on it is that far ahead of the true time, or behind."""
        self.clock_jumps += 1
        self.loop.trace("clock jump", machine, skew_ms)
        self.clock(machine).skew_ms = skew_ms
        self._skews_ms = min(self._skews_ms[0], skew_ms), max(self._skews_ms[1], skew_ms)
        self.clocks_ahead_s = (self._skews_ms[1] - self._skews_ms[0]) / 1000

    def entropy(self, name: str) -> SimEntropy:
        """A source of random bytes."""
        return SimEntropy(random.Random(f"{self.seed}-entropy-{name}"))

    def crash(self, process: SimProcess, *, power: bool = False) -> None:
        """Kill a process at once; with `power`, the machine: its disk loses what was not synced.

        Must not be called by code of the process itself.
        """
        process.alive = False
        self.crashes += 1
        self.loop.trace("crash", process.name, power)
        self.loop.go_on(process)
        self.loop.drop_callbacks_of_the_dead()
        self.network.drop(process)
        self.disk.release(process)
        process.abandon_tasks()
        if process in self.processes:
            self.processes.remove(process)
        if power:
            self.disk.cut_power()

    def pause(self, process: SimProcess, seconds: float) -> None:
        """Pause a process (stopped, swapped out, its machine suspended) while the world goes on.

        What it sent before arrives and takes effect, what is sent to it waits in its kernel, and no peer is notified.
        Then it goes on as if no time had passed, with all its timers late: a zombie, if others took its place.
        May be called by code of the process itself; begins with the next turn of the loop.
        """
        if not process.alive:
            return
        self.pauses += 1
        self.loop.trace("pause", process.name, seconds)
        until_s = self.loop.time() + seconds
        self._paused_until_s[process] = max(until_s, self._paused_until_s.get(process, 0.0))
        self.loop.hold(process)
        self.loop.call_world(seconds, self._go_on, process)

    def end_pauses(self) -> None:
        """Let every process go on."""
        for process in list(self._paused_until_s):
            self._paused_until_s[process] = 0.0
            self._go_on(process)

    def _go_on(self, process: SimProcess) -> None:
        if self.loop.time() >= self._paused_until_s.get(process, 0.0):
            self._paused_until_s.pop(process, None)
            self.loop.go_on(process)

    def crash_at_disk_operation(self, process: SimProcess, operations: int, *, power: bool) -> asyncio.Future[None]:
        """Kill the process inside its n-th disk operation from now; the future is done when it is dead."""
        dead: asyncio.Future[None] = self.loop.create_future()

        def finish(victim: SimProcess) -> None:
            self.crash(victim, power=power)
            if not dead.done():
                dead.set_result(None)

        self.disk.kill_at(process, operations, finish)
        return dead

    def crash_at_store_request(self, process: SimProcess, requests: int) -> asyncio.Future[None]:
        """Kill the process at its n-th request to the object store from now; the future is done when it is dead."""
        dead: asyncio.Future[None] = self.loop.create_future()

        def finish(victim: SimProcess) -> None:
            self.crash(victim)
            if not dead.done():
                dead.set_result(None)

        self.store.kill_at(process, requests, finish)
        return dead

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine of the world to its end."""
        with real_world_forbidden():
            return self.loop.run_until_complete(main)

    def faults(self) -> dict[str, int]:
        """Injected faults by name."""
        own = {"crash": self.crashes, "pause": self.pauses, "clock jump": self.clock_jumps}
        total = {name: count for name, count in own.items() if count}
        for part in self._parts():
            for name, count in part.faults.items():
                total[name] = total.get(name, 0) + count
        return total

    def enabled_faults(self) -> frozenset[str]:
        """Return the kinds of faults that this seed turned on, whether or not they happened."""
        return frozenset(self.enabled_episodes.union(*(part.enabled for part in self._parts())))

    def _parts(self) -> tuple[FaultCounter, ...]:
        return self.disk, self.store, self.network, self.kubernetes

    def close(self) -> None:
        """End the world. Raises AssertionError when code failed without anybody noticing."""
        for process in list(self.processes):
            self.crash(process)
        pending = [task for task in asyncio.all_tasks(self.loop) if isinstance(task, SimTask) and task.process is None]
        pending.sort(key=lambda task: task.number)
        with real_world_forbidden():
            for task in pending:
                task.cancel()
            if pending:
                self.loop.run_until_complete(asyncio.wait(pending))
        self.loop.close()
        assert not self.loop.unhandled, f"unhandled errors in the simulation (seed {self.seed}): {self.loop.unhandled}"

    def __enter__(self) -> SimWorld:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        if error is None:
            self.close()
            return
        if hasattr(error, "add_note"):
            error.add_note(f"simulation seed {self.seed}")
        for process in list(self.processes):
            self.crash(process)
        self.loop.close()
