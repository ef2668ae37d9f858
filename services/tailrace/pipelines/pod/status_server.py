"""Serve the progress of a driver over HTTP, for the operator (docs/pipelines.md#progress).

It runs in a thread with its own event loop, because the job waits in the main one. A failed measurement of the lag is
logged, and the last one stays.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import queue
import threading
from typing import TYPE_CHECKING, Any

import structlog
from fastapi import FastAPI
from pyspark.sql.streaming.listener import StreamingQueryListener

from tailrace.client.async_client import Client
from tailrace.common import limits
from tailrace.common.errors import TailraceError
from tailrace.common.http import listen, serve_app
from tailrace.common.real_ports import SystemClock
from tailrace.common.task_groups import running
from tailrace.pipelines.pod.progress import RunProgress, source_batch
from tailrace.pipelines.source.plan import slices
from tailrace.pipelines.source.positions import Navigator, ReadLimits

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import NoReturn

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

    from tailrace.common.ports import Clock
    from tailrace.pipelines.pod.progress import QueryProgress
    from tailrace.pipelines.source.offsets import Positions

_LOG = structlog.get_logger(__name__)


@contextlib.contextmanager
def served_progress(spark: SparkSession, controller: str, port: int) -> Iterator[None]:
    """Serve the progress of all queries of a session at ``/status``. Raises StartError: the port is taken."""
    progress = RunProgress()
    listener = Listener(progress)
    socket = listen("status", "0.0.0.0", port)
    started: queue.SimpleQueue[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = queue.SimpleQueue()

    async def serve() -> None:
        ended = asyncio.Event()
        started.put((asyncio.get_running_loop(), ended))
        async with serve_app(_app(progress), socket), Client(controller) as client, running(_measure(progress, client)):
            await ended.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), name="tailrace-status", daemon=True)
    thread.start()
    loop, ended = started.get(timeout=limits.CLOSE_DEADLINE_S)
    spark.streams.addListener(listener)
    try:
        yield
    finally:
        spark.streams.removeListener(listener)
        loop.call_soon_threadsafe(ended.set)
        thread.join(limits.CLOSE_DEADLINE_S)


def _app(progress: RunProgress) -> FastAPI:
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)

    async def status() -> dict[str, Any]:
        return progress.as_json()

    app.add_api_route("/status", status, methods=["GET"], response_model=None)
    return app


class Listener(StreamingQueryListener):
    """Counts the batches of queries, by their runs.

    Spark calls `onQueryStarted` in the thread that starts a query, and the others from a thread of its own, one call at
    a time. So the next run of a query may start before the end of the last one is reported.
    """

    def __init__(self, progress: RunProgress) -> None:
        self._progress = progress
        self._clock = SystemClock()

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Note that a query runs, perhaps again."""
        self._progress.start(str(event.runId))

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Count a batch of a query that reads streams. Its sources of other kinds do not count."""
        found = json.loads(event.progress.json)
        query, sources = self._progress.of(found["runId"]), found["sources"]
        if int(found["numInputRows"]) == 0 and all(each["startOffset"] == each["endOffset"] for each in sources):
            query.set_idle()
            return
        read, reason = [], ""
        for each in sources:
            try:
                read.append(source_batch(each))
            except TailraceError as error:
                reason = str(error)
        if not read:
            _LOG.warning("progress_not_understood", reason=reason)
            return
        duration_ms = int(found["durationMs"].get("triggerExecution", 0))
        query.add_batch(read, duration_ms=duration_ms, now_ms=self._clock.now_ms())

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Note that there is nothing to read."""
        self._progress.of(str(event.runId)).set_idle()

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Note that a query has ended."""
        self._progress.of(str(event.runId)).set_ended()


async def _measure(progress: RunProgress, client: Client) -> NoReturn:
    """Measure the lag of each query now and then."""
    navigator = Navigator(client.context, fail_on_data_loss=False)
    while True:
        for query in progress.to_measure():
            await measure(query, navigator, SystemClock())
        await asyncio.sleep(limits.PIPELINE_LAG_PERIOD_S)


async def measure(query: QueryProgress, navigator: Navigator, clock: Clock) -> None:
    """Measure the lag of a query that has read something, over its sources. A failure is logged."""
    positions, read_bytes = query.reached
    began_ms = clock.now_ms()
    if not positions:
        return
    try:
        async with asyncio.timeout(limits.PIPELINE_LAG_DEADLINE_S):
            unread = sum([await unread_bytes(navigator, each) for each in positions])
        query.measured(unread, read_bytes, began_ms)
    except (TailraceError, TimeoutError) as error:
        _LOG.info("lag_not_measured", reason=str(error) or "no answer in time")


async def unread_bytes(navigator: Navigator, position: Positions) -> int:
    """Return the bytes of streams behind a position, over all segments that follow it."""
    unread = 0
    for _ in range(limits.PIPELINE_LAG_STEPS_MAX):
        following = await navigator.advance(position, ReadLimits(), None)
        if following == position:
            break
        unread += sum(each.end - each.start for each in slices(position, following))
        position = following
    return unread
