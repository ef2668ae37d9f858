"""Runs the worker processes of one parent, restarts them, and keeps their ports bound.

See docs/design.md#processes, ADR 0007.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

import httpx
import structlog

from tailrace.common import limits
from tailrace.common.errors import StartError
from tailrace.processes.worker_watchdog import WorkerWatchdog
from tailrace.segmentstore.worker.cluster_service import BEAT, FOLLOWING, OPENS, WAITING, ClusterStoreSpec
from tailrace.segmentstore.worker.not_open import Opens
from tailrace.segmentstore.worker.process import DRAIN, READY, SUPERSEDED, Orders, Spec, encode_orders

if TYPE_CHECKING:
    import socket
    from asyncio.subprocess import Process

    from tailrace.segmentstore.worker.wrong_host_responder import WrongHostResponder

WorkerState: TypeAlias = Literal["starting", "serving", "following", "down", "left", "superseded"]

_logger = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class WorkerPlace:
    """One worker: its specification, and the sockets that the parent keeps for it.

    ``responder`` answers on the store's socket while the worker does not; without one, connections wait for the worker.
    """

    spec: Spec
    store: socket.socket
    admin: socket.socket
    responder: WrongHostResponder | None = None

    @property
    def admin_url(self) -> str:
        """Return the address of its admin interface."""
        host, port = self.admin.getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class RestartPauses:
    """The pause before a worker restarts; pure.

    A worker that has served restarts at once, because it keeps its containers only if it returns soon. The pause of a
    worker that fails repeatedly doubles each time.
    """

    def __init__(self) -> None:
        self._pause_s = 0.0

    def ended(self, served_s: float | None) -> float:
        """Return the pause after a process that served for `served_s`; None: it never served."""
        if served_s is not None and (served_s >= limits.POD_WORKER_STEADY_S or not self._pause_s):
            self._pause_s = 0.0 if served_s >= limits.POD_WORKER_STEADY_S else limits.POD_RESTART_MIN_S
            return 0.0
        pause_s = max(self._pause_s, limits.POD_RESTART_MIN_S)
        self._pause_s = min(2 * pause_s, limits.POD_RESTART_MAX_S)
        return pause_s


class WorkerProcess:
    """One worker, across the restarts of its process."""

    def __init__(self, number: int, place: WorkerPlace) -> None:
        self.number = number
        self.place = place
        self.state: WorkerState = "starting"
        self.reason = ""
        """Why it does not serve or follow the map; when it follows: which containers are not open."""
        self.opens = Opens.NOTHING_DUE
        """What its process opens of its containers."""
        self.has_opened = False
        """One of its processes has opened a container."""
        self.followed_at_s: float | None = None
        """When the first of its processes followed the map."""
        self.starts = 0
        self.first: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the first process serves. StartError: why it ended before."""
        self.over = asyncio.Event()
        """Set when it does not restart: it has left, or another process has its name."""
        self._process: Process | None = None
        self._pauses = RestartPauses()
        self._served_at_s: float | None = None
        self._running: asyncio.Task[None] | None = None
        self._leaving = False
        self._ending_responder: asyncio.Task[None] | None = None

    @property
    def serves(self) -> bool:
        """Return whether it answers on its port and on its admin interface."""
        return self.state in ("serving", "following")

    @property
    def pid(self) -> int | None:
        """Return the id of its process, if it runs."""
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    def begin(self) -> None:
        """Start it, and restart it whenever it ends."""
        self._running = asyncio.get_running_loop().create_task(self._run())

    async def leave(self, deadline_s: float) -> None:
        """Let it hand over its containers and end. The responder answers on its port until `close`.

        A process that does not serve yet ends at once. With its Lease, which does not say that it leaves, it would be
        given the containers of the workers that leave beside it.
        """
        self._leaving = True
        process = self._process
        if process is not None and not self.serves:
            await _end(process)
        elif process is not None and process.stdin is not None:
            with contextlib.suppress(ConnectionError):  # it has just ended
                process.stdin.write(DRAIN.encode() + b"\n")
                await process.stdin.drain()
            try:
                await asyncio.wait_for(self.over.wait(), deadline_s)
            except TimeoutError:
                _logger.error("worker_drain_timeout", worker=self.number, seconds=deadline_s)

    async def close(self) -> None:
        """End it and its responder at once."""
        running, self._running = self._running, None
        if running is not None:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        if self._process is not None:
            await _end(self._process)
        if self.place.responder is not None:
            await self.place.responder.end()
        if self._ending_responder is not None:
            await self._ending_responder
        if not self.first.done():
            self.first.cancel()

    async def _run(self) -> None:
        try:
            await self._run_until_over()
        except Exception as error:
            self.state, self.reason = "down", repr(error)
            _logger.exception("worker_supervision_failed", worker=self.number)
            raise
        finally:
            self.over.set()

    async def _run_until_over(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                if self.place.responder is not None:
                    await self.place.responder.begin()
                if self._leaving:
                    break
                await self._run_once()
            except OSError as error:  # no process or file descriptor available at the moment
                self.state, self.reason = "down", f"the worker process cannot be started: {error}"
                _logger.error("worker_not_started", worker=self.number, reason=self.reason)
                self._fail_first(self.reason)
            if self.state == "superseded":
                break
            served_s = None if self._served_at_s is None else loop.time() - self._served_at_s
            self._served_at_s = None
            if not self._leaving:
                await asyncio.sleep(self._pauses.ended(served_s))
        if self.state != "superseded":
            self.state = "left"

    async def _run_once(self) -> None:
        """Run one process from its start to its end."""
        self.state, self.opens = "starting", Opens.NOTHING_DUE
        self.starts += 1
        self._process = process = await _spawn(self.place)
        await _order(process, self.place)
        if self._leaving and process.stdin is not None:  # `leave` was called before there was a process
            process.stdin.close()
        watchdog = WorkerWatchdog()
        watching = asyncio.get_running_loop().create_task(self._watch(process, watchdog))
        try:
            last = await self._listen(process, watchdog)
            code = await process.wait()
        finally:
            watching.cancel()
            await asyncio.wait([watching])
        self.state = "superseded" if code == SUPERSEDED else "down"
        self.reason = last or f"worker {process.pid} ended with code {code}"
        if not self._leaving:
            _logger.error("worker_ended", worker=self.number, code=code, reason=self.reason)
        self._fail_first(last or f"worker {process.pid} ended before it was ready")

    def _fail_first(self, reason: str) -> None:
        if not self.first.done():
            self.first.set_exception(StartError(reason))
            self.first.exception()  # mark as retrieved: some callers do not await it

    async def _watch(self, process: Process, watchdog: WorkerWatchdog) -> None:
        """Kill a process that is stopped or blocked, so that its clients lose their connections and retry."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(limits.WORKER_WATCHDOG_PERIOD_S)
            if (why := watchdog.check(loop.time())) and not self._leaving:
                _logger.error("worker_killed", worker=self.number, pid=process.pid, reason=why)
                process.kill()
                return

    async def _listen(self, process: Process, watchdog: WorkerWatchdog) -> str:
        """Read its reports until it ends; return the last line that is not a report."""
        assert process.stdout is not None
        last = ""
        while line := await process.stdout.readline():
            said = line.decode(errors="replace").strip()
            if said.startswith(BEAT):
                watchdog.reported(int(said.removeprefix(BEAT)), asyncio.get_running_loop().time())
            elif said == READY:
                self._serves_now()
            elif said == FOLLOWING:
                self.state, self.reason = "following", ""
                if self.followed_at_s is None:
                    self.followed_at_s = asyncio.get_running_loop().time()
            elif said.startswith(OPENS):
                self.opens = Opens(said.removeprefix(OPENS))
                self.has_opened |= self.opens is Opens.SOME
            elif said.startswith(WAITING):
                self.reason = said.removeprefix(WAITING)
            else:
                last = said
        return last

    def _serves_now(self) -> None:
        self.state, self.reason = "serving", ""
        self._served_at_s = asyncio.get_running_loop().time()
        if not self.first.done():
            self.first.set_result(None)
        _logger.info("worker_serves", worker=self.number, pid=self.pid, starts=self.starts)
        if isinstance(self.place.spec, ClusterStoreSpec):
            self.place = dataclasses.replace(self.place, spec=dataclasses.replace(self.place.spec, tried=True))
        if self.place.responder is not None:  # as a task: it waits for clients that do not read
            self._ending_responder = asyncio.get_running_loop().create_task(self.place.responder.end())


class WorkerProcesses:
    """Runs one worker per place."""

    def __init__(self, places: list[WorkerPlace]) -> None:
        self.workers = [WorkerProcess(number, place) for number, place in enumerate(places)]

    def begin(self) -> None:
        """Start all workers, and restart them whenever they end."""
        for worker in self.workers:
            worker.begin()

    async def start(self) -> None:
        """Start all workers and wait until all serve. Raises StartError with the reason of the first that fails."""
        self.begin()
        try:
            async with asyncio.timeout(limits.WORKER_READY_DEADLINE_S):
                await asyncio.gather(*(worker.first for worker in self.workers))
        except TimeoutError as error:
            await self.close()
            raise StartError(f"workers are not ready after {limits.WORKER_READY_DEADLINE_S:.0f} s") from error
        except BaseException:
            await self.close()
            raise

    async def stopped_containers(self) -> list[int]:
        """Return the containers that do not run. Raises StartError when a worker does not return its list."""
        async with httpx.AsyncClient(timeout=limits.REQUEST_DEADLINE_S, trust_env=False) as client:
            try:
                answers = [
                    (await client.get(f"{worker.place.admin_url}/v1/containers")).json() for worker in self.workers
                ]
            except (httpx.HTTPError, ValueError) as error:
                raise StartError(f"a worker did not return its container list: {error}") from error
        return sorted(item["container_id"] for answer in answers for item in answer if item["state"] != "running")

    async def leave(self, deadline_s: float) -> None:
        """Let all workers hand over their containers at the same time, and end.

        Their ports answer WrongHost for another ``limits.WORKER_LEFT_LINGER_S``: the Java client keeps an address whose
        connection was dropped until it gets WrongHost there, and an idle client has not received it yet.
        """
        served = any(worker.serves and worker.place.responder is not None for worker in self.workers)
        await asyncio.gather(*(worker.leave(deadline_s) for worker in self.workers))
        if served:
            await asyncio.sleep(limits.WORKER_LEFT_LINGER_S)
        await self.close()

    async def close(self) -> None:
        """End all workers."""
        await asyncio.gather(*(worker.close() for worker in self.workers))


async def _spawn(place: WorkerPlace) -> Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tailrace.segmentstore.worker.process",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        pass_fds=(place.store.fileno(), place.admin.fileno()),
    )


async def _order(process: Process, place: WorkerPlace) -> None:
    """Write the worker's orders to its standard input."""
    assert process.stdin is not None
    with contextlib.suppress(ConnectionError):  # it has ended already; its exit code says why
        process.stdin.write(encode_orders(Orders(place.spec, place.store.fileno(), place.admin.fileno())))
        await process.stdin.drain()


async def _end(process: Process) -> None:
    if process.returncode is not None:
        return
    assert process.stdin is not None
    process.stdin.close()
    try:
        async with asyncio.timeout(limits.CLOSE_DEADLINE_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
