"""Describe streams in batches: calls of about the same time become one (docs/controller.md#calls-of-the-operator)."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple

from tailrace.client.control.owners import StreamDescription, description
from tailrace.common import limits
from tailrace.common.errors import UnavailableError
from tailrace.common.task_groups import run_all

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tailrace.client.control.owners import OwnerCalls
    from tailrace.client.model import StreamName
    from tailrace.rpc import operator_pb2 as pb


class _Known(NamedTuple):
    version: int
    description: StreamDescription


class StreamReports:
    """Descriptions of many streams of one cluster. ``calls`` returns the controller to ask.

    Waiting callers share a batch of at most ``limits.STREAM_REPORTS_MAX`` streams. A stream that has not changed since
    its last report is not sent again. Streams whose last report was an error are in a batch of their own: an answer
    waits for its slowest stream.
    """

    def __init__(self, calls: Callable[[], OwnerCalls]) -> None:
        self._calls = calls
        self._waiting: dict[StreamName, list[asyncio.Future[StreamDescription]]] = {}
        self._known: OrderedDict[StreamName, _Known] = OrderedDict()
        self._away: OrderedDict[StreamName, None] = OrderedDict()
        self._batches: set[asyncio.Task[None]] = set()
        self.calls = 0
        """Calls that were made."""

    async def describe(self, stream: StreamName) -> StreamDescription:
        """Return a stream's present state with its sizes.

        Raises:
            NoSuchStreamError. UnavailableError: the stream cannot be described now. The errors of the call.
        """
        answer: asyncio.Future[StreamDescription] = asyncio.get_running_loop().create_future()
        if not self._waiting:
            task = asyncio.create_task(self._gather())
            self._batches.add(task)
            task.add_done_callback(self._batches.discard)
        self._waiting.setdefault(stream, []).append(answer)
        return await answer

    async def close(self) -> None:
        """End calls in progress; who waits for them gets UnavailableError."""
        batches = list(self._batches)
        for task in batches:
            task.cancel()
        await asyncio.gather(*batches, return_exceptions=True)
        waiting, self._waiting = self._waiting, {}  # of a batch that had not begun
        for answer in _unanswered(waiting):
            answer.set_exception(_closed())

    async def _gather(self) -> None:
        """Wait a moment for other callers, then ask for all."""
        waiting: dict[StreamName, list[asyncio.Future[StreamDescription]]] = {}
        try:
            await asyncio.sleep(limits.STREAM_REPORTS_GATHER_S)
            waiting, self._waiting = self._waiting, {}
            away = [stream for stream in waiting if stream in self._away]
            others = [stream for stream in waiting if stream not in self._away]
            await run_all(self._ask_all(others, waiting), self._ask_all(away, waiting))
        finally:
            for answer in _unanswered(waiting):
                answer.set_exception(_closed())

    async def _ask_all(
        self, streams: Sequence[StreamName], waiting: dict[StreamName, list[asyncio.Future[StreamDescription]]]
    ) -> None:
        for start in range(0, len(streams), limits.STREAM_REPORTS_MAX):
            part = streams[start : start + limits.STREAM_REPORTS_MAX]
            try:
                await self._ask(part, waiting)
            except Exception as error:  # any error is that of the callers, who raise it
                for stream in part:
                    _answer(waiting[stream], error)

    async def _ask(
        self, streams: Sequence[StreamName], waiting: dict[StreamName, list[asyncio.Future[StreamDescription]]]
    ) -> None:
        known = {stream: self._known.get(stream) for stream in streams}
        while streams:
            self.calls += 1
            wanted = [(stream, one.version if (one := known[stream]) is not None else 0) for stream in streams]
            reports = await self._calls().stream_reports(wanted)
            if not 0 < len(reports) <= len(streams):
                raise UnavailableError(f"the controller sent {len(reports)} reports of {len(streams)} streams")
            for stream, report in zip(streams, reports, strict=False):
                try:
                    found = self._read(stream, report, known[stream])
                except Exception as error:
                    _answer(waiting[stream], error)
                else:
                    _answer(waiting[stream], found)
            # The answer had no room for the others.
            streams = [stream for stream in streams[len(reports) :] if not all(one.done() for one in waiting[stream])]

    def _read(self, stream: StreamName, report: pb.StreamReports.Report, known: _Known | None) -> StreamDescription:
        self._away.pop(stream, None)
        if report.error:
            self._away[stream] = None
            if len(self._away) > limits.STREAM_REPORTS_KNOWN_MAX:
                self._away.popitem(last=False)
            raise UnavailableError(report.error)
        if known is not None and report.version == known.version:
            return known.description
        found = description(stream, report.description)
        self._known[stream] = _Known(report.version, found)
        self._known.move_to_end(stream)
        if len(self._known) > limits.STREAM_REPORTS_KNOWN_MAX:
            self._known.popitem(last=False)
        return found


def _closed() -> UnavailableError:
    return UnavailableError("the connection to the controller is closed")


def _answer(waiting: Sequence[asyncio.Future[StreamDescription]], result: StreamDescription | Exception) -> None:
    for answer in waiting:
        if answer.done():
            continue  # its caller went away
        if isinstance(result, Exception):
            answer.set_exception(result)
        else:
            answer.set_result(result)


def _unanswered(
    waiting: dict[StreamName, list[asyncio.Future[StreamDescription]]],
) -> list[asyncio.Future[StreamDescription]]:
    return [answer for answers in waiting.values() for answer in answers if not answer.done()]
