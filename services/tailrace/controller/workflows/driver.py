"""Run the workflows of streams: one task per stream, a bounded number of steps at a time (docs/design.md#controller).

A stream is listed in the table of pending work before its work begins. Other controllers therefore find every stream
with an unfinished workflow, transaction or lease (`adoption.py`). A task ends, and unlists its stream, after a time
without work.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import structlog

from tailrace.common import limits
from tailrace.common.call_deadline import restart_deadline, without_deadline
from tailrace.common.errors import DeadlineError, OverloadedError, TailraceError, UnavailableError
from tailrace.controller.metadata.stream_store import StreamKey
from tailrace.controller.metadata.transaction_ledger import digest
from tailrace.controller.workflows import steps
from tailrace.controller.workflows.leases import WatchedLeases
from tailrace.controller.workflows.pending_mark import STREAM, PendingMark
from tailrace.controller.workflows.slots import StepSlots
from tailrace.controller.workflows.transactions import Lease, expire

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tailrace.controller.metadata.records import PendingRecord, StreamRecord
    from tailrace.controller.workflows.context import WorkflowContext

_LOG = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Worker:
    """One stream's task and its state beyond the stored records."""

    key: StreamKey
    mark: PendingMark
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    holds: int = 0
    leases: WatchedLeases = field(default_factory=WatchedLeases)
    has_all_leases: bool = False
    """Whether all open transactions were read since the stream was adopted."""
    leases_differ_s: float | None = None
    """Since when the watched leases are not those of the root's open transactions; None when they are."""
    expires: bool = False
    """Whether the present step may end leases: each second one does, and other work has its turn between."""
    next_pass_s: float = 0.0
    """When the next commit pass may begin, on the loop's clock."""
    turns: steps.Turns = field(default_factory=steps.Turns)
    reads_root: bool = True
    """Whether the next step reads the root, in place of what this controller read or wrote last."""
    waiters: list[tuple[bytes, asyncio.Future[None]]] = field(default_factory=list)
    failures: int = 0
    began_s: float = 0.0
    """When the present step began; while steps fail, the first of those that did."""
    unfinished_s: float | None = None
    """Since when the stream has had work that waits for no client; None without such work."""
    task: asyncio.Task[None] | None = None


class StreamDriver:
    """Run the tasks of all streams that have work."""

    def __init__(self, context: WorkflowContext) -> None:
        self._context = context
        self._workers: dict[StreamKey, _Worker] = {}
        self._slots = StepSlots()
        self._closed = False
        self.failed_steps = 0
        """How many steps have failed since the start; each is repeated."""

    @property
    def active_streams(self) -> int:
        """Return the number of streams with a task."""
        return len(self._workers)

    @property
    def slow_steps(self) -> int:
        """Return how many steps last for long, most likely because a container is away."""
        return self._slots.slow

    @property
    def open_transactions(self) -> int:
        """Return how many open transactions have their leases watched here."""
        return sum(len(worker.leases) for worker in self._workers.values())

    def oldest_work_s(self) -> float:
        """Return for how long the stream that waits longest has had unfinished work; 0 when none waits."""
        since = [worker.unfinished_s for worker in self._workers.values() if worker.unfinished_s is not None]
        return asyncio.get_running_loop().time() - min(since) if since else 0.0

    async def adopt(self, record: PendingRecord) -> None:
        """Resume the work of a stream that another controller left, or this one before it had room for it.

        The stream is marked as pending for this controller: the other one may remove its own mark.

        Raises:
            OverloadedError: too many streams have work. UnavailableError: the mark cannot be written.
        """
        key = StreamKey(record.scope, record.name)
        if self._closed or (record.instance == self._context.instance and key in self._workers):
            return
        worker = self._worker(key)
        await worker.mark.write()
        worker.has_all_leases, worker.reads_root = False, True
        worker.wake.set()

    async def close(self) -> None:
        """Stop every task; the next controller resumes their work."""
        self._closed = True
        tasks = [worker.task for worker in self._workers.values() if worker.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for worker in self._workers.values():
            await worker.mark.close()
            for _, waiter in worker.waiters:
                if not waiter.done():
                    waiter.set_exception(DeadlineError("the controller stops; another controller resumes the workflow"))
        self._workers.clear()

    @contextlib.asynccontextmanager
    async def enlisted(self, key: StreamKey) -> AsyncIterator[None]:
        """Wrap a change that creates work: list the stream as pending before it, and wake its task after it.

        A change that took long lists the stream again before its call is answered (`PendingMark`).
        """
        if self._closed:
            raise OverloadedError("the controller stops; call another one")
        is_new = key not in self._workers
        worker = self._worker(key)
        if is_new:
            worker.reads_root = False  # the change reads it, or writes it
        worker.holds += 1
        may_be_written = False
        try:
            await worker.mark.ensure()
            may_be_written = True
            yield
            await worker.mark.ensure()
        except BaseException as error:
            unknown = isinstance(error, UnavailableError | TimeoutError | asyncio.CancelledError)
            if may_be_written and (unknown or not worker.mark.is_safe):  # its task looks whether the change was written
                worker.mark.doubt()
            raise
        finally:
            worker.holds -= 1
            worker.wake.set()

    async def wait(self, key: StreamKey, intent_id: bytes) -> None:
        """Wait until the workflow of an intent has ended.

        Raises:
            DeadlineError: the deadline passed; the workflow continues. UnavailableError: its steps fail, and continue.
        """
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        worker = self._worker(key)
        worker.waiters.append((intent_id, waiter))
        worker.wake.set()
        try:
            async with asyncio.timeout(self._context.config.blocking_deadline_s):
                await waiter
        except TimeoutError as error:
            raise DeadlineError(
                f"stream {key} is busy after {self._context.config.blocking_deadline_s:g} s; its workflow continues"
            ) from error
        finally:
            restart_deadline()
            worker.waiters = [item for item in worker.waiters if item[1] is not waiter]

    def lease(self, key: StreamKey, transaction_id: bytes, lease: Lease) -> None:
        """Watch a transaction's lease, which was renewed just now."""
        worker = self._worker(key)
        before = worker.leases.get(transaction_id)
        worker.leases.renew(transaction_id, lease)
        if not worker.holds and (before is None or lease.lease_ms < before.lease.lease_ms):
            worker.wake.set()  # else its task looks in time: at the end of the call, or when the lease would have ended

    def forget_lease(self, key: StreamKey, transaction_id: bytes) -> None:
        """Watch the lease of a transaction no more that is decided."""
        worker = self._workers.get(key)
        if worker is not None:
            worker.leases.drop(transaction_id)

    # -- tasks

    def _worker(self, key: StreamKey) -> _Worker:
        worker = self._workers.get(key)
        if worker is None:
            if len(self._workers) >= self._context.config.streams_max:
                raise OverloadedError(
                    f"{self._context.config.streams_max} streams have running workflows, which is the maximum; retry"
                )
            worker = self._workers[key] = _Worker(key, PendingMark(self._context, STREAM, *key))
            worker.task = asyncio.get_running_loop().create_task(self._run(worker), name=f"stream {key}")
        return worker

    async def _run(self, worker: _Worker) -> None:
        without_deadline()  # of the call that brought the work
        if worker.holds:
            await worker.wake.wait()  # for the change that brings the work
        while True:
            worker.wake.clear()
            try:
                pause_s = await self._attempt(worker)
            except Exception as error:  # any error is retried: the stream's work must be finished
                pause_s = self._after_failure(worker, error)
            if pause_s == 0:
                continue
            idle = pause_s is None
            if pause_s is None:  # until no change comes any more whose call failed
                pause_s = max(self._context.config.idle_s, worker.mark.doubted_for_s)
            try:
                async with asyncio.timeout(pause_s):
                    await worker.wake.wait()
            except TimeoutError:
                worker.reads_root = True
                if idle and await self._is_still_idle(worker) and await self._retire(worker):
                    return

    async def _attempt(self, worker: _Worker) -> float | None:
        """Run one step; return the seconds until the next one (0: at once), None when only a call can bring work."""
        async with self._slots.slot(), asyncio.timeout(limits.WORKFLOW_STEP_DEADLINE_S):
            if not worker.failures:
                worker.began_s = asyncio.get_running_loop().time()
            waiters = list(worker.waiters)  # a waiter that is added later changed the root after this read
            store, reads_root = self._context.store, worker.reads_root
            root = await (store.load(worker.key) if reads_root else store.latest(worker.key))
            worker.reads_root = False
            _tell(waiters, root)
            _note_work(worker, root)
            pause_s: float | None = None
            if root is not None and not root.is_idle:
                if worker.mark.is_doubted:
                    worker.mark.ensure_soon()
                pause_s = await self._step(worker, root)
        worker.failures = 0
        return pause_s

    async def _step(self, worker: _Worker, root: StreamRecord) -> float | None:
        await self._arm_leases(worker, root)
        worker.expires = not worker.expires
        if worker.expires and await self._expire_leases(worker):
            return 0
        now_s = asyncio.get_running_loop().time()
        wait_s = self._until_next_pass(worker, root, now_s)
        if await steps.advance(self._context, worker.key, root, worker.turns, commits_wait=wait_s is not None):
            if worker.turns.last is steps.Work.COMMITS and not root.commit_batch:
                worker.next_pass_s = now_s + limits.TRANSACTION_COMMIT_PASS_INTERVAL_S
            return 0
        if wait_s is not None:
            return wait_s
        now_s = asyncio.get_running_loop().time()
        ends = [worker.leases.next_end_s()]
        if worker.leases_differ_s is not None:
            ends.append(worker.leases_differ_s + limits.TRANSACTION_LEASES_DIFFER_S)
        known = [each for each in ends if each is not None]
        if not known:
            return None
        # Another controller may have opened a transaction and died: look at the root again from time to time.
        return max(0.001, min(min(known) - now_s, self._context.config.idle_s))

    def _until_next_pass(self, worker: _Worker, root: StreamRecord, now_s: float) -> float | None:
        """Return how long commits wait for others that the same pass merges; None when none waits.

        The first commit after a quiet time waits for none, and no workflow waits for commits that do.
        """
        if not root.commit_queue or root.commit_batch or root.intent is not None:
            return None
        if now_s < worker.next_pass_s and len(root.commit_queue) < limits.TRANSACTION_COMMIT_BATCH_MAX:
            return max(0.001, worker.next_pass_s - now_s)
        return None

    async def _arm_leases(self, worker: _Worker, root: StreamRecord) -> None:
        """Watch the lease of each open transaction, new ones whole from now on; drop the leases of others.

        A call changes first the root and then the leases, so they may differ for a moment.
        """
        now_s = asyncio.get_running_loop().time()
        earlier = frozenset(root.open_transactions)
        if (len(worker.leases), worker.leases.digest) == (
            root.open_count + len(earlier),
            root.open_digest ^ digest(earlier),
        ):
            worker.leases_differ_s, worker.has_all_leases = None, True
            return
        if worker.leases_differ_s is None:
            worker.leases_differ_s = now_s
        if worker.has_all_leases and now_s < worker.leases_differ_s + limits.TRANSACTION_LEASES_DIFFER_S:
            return
        open_now = await steps.open_transactions(self._context, worker.key)
        for item in [item for item in worker.leases if item not in open_now]:
            worker.leases.drop(item)
        missing = [item for item in open_now if item not in worker.leases]
        for item, lease in (await steps.leases(self._context, worker.key, missing)).items():
            if item not in worker.leases:
                worker.leases.renew(item, lease)
        worker.leases_differ_s, worker.has_all_leases, worker.reads_root = None, True, True

    async def _expire_leases(self, worker: _Worker) -> bool:
        """End some leases that are due by one change; return False when none is."""
        due = dict(worker.leases.due(limits.TRANSACTION_DECISIONS_COMBINED_MAX))
        if not due:
            return False
        seen = {item: watched.lease for item, watched in due.items()}
        for item, lease in (await expire(self._context, worker.key, seen)).items():
            if lease is None:
                worker.leases.drop(item)
            elif worker.leases.get(item) == due[item]:  # a call may have renewed it meanwhile
                worker.leases.renew(item, lease)
        return True

    def _after_failure(self, worker: _Worker, error: Exception) -> float:
        worker.failures += 1
        worker.reads_root = True
        self.failed_steps += 1
        if asyncio.get_running_loop().time() >= worker.began_s + self._context.config.requests_deadline_s:
            _report(worker, error)
        if worker.unfinished_s is None:
            worker.unfinished_s = asyncio.get_running_loop().time()
        longest_s: float = min(
            limits.WORKFLOW_BACKOFF_INITIAL_S * 2.0 ** min(worker.failures, 16), limits.WORKFLOW_BACKOFF_MAX_S
        )
        pause_s = longest_s * (0.5 + 0.5 * self._context.entropy.uniform())
        _LOG.warning(
            "workflow step failed, will be repeated",
            stream=str(worker.key),
            error=f"{type(error).__name__}: {error}",
            failures=worker.failures,
            pause_s=round(pause_s, 3),
            exc_info=not isinstance(error, TailraceError | TimeoutError),
        )
        return pause_s

    async def _is_still_idle(self, worker: _Worker) -> bool:
        """Return whether the stream has no work, also none that another controller added."""
        try:
            async with asyncio.timeout(limits.WORKFLOW_STEP_DEADLINE_S):
                root = await self._context.store.load(worker.key)
        except Exception as error:  # any error: the stream's task must not end while calls count on it
            _LOG.warning(
                "idle stream could not be read",
                stream=str(worker.key),
                error=f"{type(error).__name__}: {error}",
                exc_info=not isinstance(error, TailraceError | TimeoutError),
            )
            return False
        return root is None or root.is_idle

    async def _retire(self, worker: _Worker) -> bool:
        """End an idle task, unless a call enlists the stream again. Another controller's pending mark stays."""
        if worker.holds or worker.waiters or worker.wake.is_set():
            return False
        await worker.mark.remove()
        if worker.holds or worker.waiters or worker.wake.is_set():
            return False
        del self._workers[worker.key]
        return True


def _tell(waiters: list[tuple[bytes, asyncio.Future[None]]], root: StreamRecord | None) -> None:
    running = (root.intent, root.rolling) if root is not None else ()
    current = {work.intent_id for work in running if work is not None}
    for intent_id, waiter in waiters:
        if intent_id not in current and not waiter.done():
            waiter.set_result(None)


def _report(worker: _Worker, error: Exception) -> None:
    """End the calls that wait for the workflow, with the reason why it does not end."""
    for _, waiter in worker.waiters:
        if not waiter.done():
            reason = f"{type(error).__name__}: {error}"
            waiter.set_exception(UnavailableError(f"stream {worker.key} waits: {reason}; its workflow continues"))


def _note_work(worker: _Worker, root: StreamRecord | None) -> None:
    """Note since when the stream has had work that a controller is to do; open transactions wait for their clients."""
    if root is None or (root.intent is None and not (root.commit_queue or root.commit_batch or root.abort_queue)):
        worker.unfinished_s = None
    elif worker.unfinished_s is None:
        worker.unfinished_s = asyncio.get_running_loop().time()
