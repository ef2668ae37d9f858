"""Reads an object log's objects: the scan for a recovery, and single frames (docs/design.md#object-log).

The scan does not depend on lists, because they may be outdated. Reads find where the log starts and ends. A list only
says how many to send at once, and whether more of them could notice a loss.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from tailrace.common import limits
from tailrace.common.errors import CorruptionError, DataLossError
from tailrace.log import frames
from tailrace.log.claims import find_last
from tailrace.log.frame_cache import FrameCache
from tailrace.log.frames import Condition, FrameHeader, FrameKind, StartRecord, Verdict
from tailrace.log.object_listing import LogListing
from tailrace.log.object_recovery import (
    WINDOW_FRAMES,
    ObjectDecision,
    ObjectScan,
    StartedEpoch,
    check_identity,
    decide,
    greatest_log_start,
    remaining_history,
)
from tailrace.log.object_requests import ObjectRequests, gather_all

if TYPE_CHECKING:
    from tailrace.log.object_keys import LogKeys

T = TypeVar("T")

_CACHED_AT_ONCE: Final = 16
"""Cached frames that a recovery gets before other tasks run."""


def header_of(data: bytes, place: str) -> FrameHeader:
    """Return the header at the beginning of an object. Raises CorruptionError: objects are never torn."""
    header = frames.decode_header(data, 0)
    if isinstance(header, Verdict):
        raise CorruptionError(place, header.reason or f"the frame is {header.condition.value}")
    return header


def frame_in(data: bytes, place: str) -> tuple[FrameHeader, memoryview]:
    """Return header and payload of a whole object, verified. Raises CorruptionError."""
    header = header_of(data, place)
    if len(data) != header.frame_length:
        raise CorruptionError(place, f"has {len(data)} bytes, its frame {header.frame_length}")
    image = memoryview(data)
    verdict = frames.judge_frame(header, image)
    if verdict.condition is not Condition.COMPLETE:
        raise CorruptionError(place, verdict.reason or f"the frame is {verdict.condition.value}")
    return header, frames.payload_of(header, image)


def scan_slots() -> asyncio.Semaphore:
    """Return the slots for the requests of all scans of a process."""
    return asyncio.Semaphore(limits.LOG_OBJECT_SCAN_REQUESTS_MAX)


class _Ahead(NamedTuple):
    """A frame that is being read for a recovery, or is cached."""

    epoch: int
    sequence: int
    length_bytes: int
    payload: memoryview | asyncio.Task[memoryview]


class ObjectScanner:
    """Reads one log."""

    def __init__(self, calls: ObjectRequests, keys: LogKeys, slots: asyncio.Semaphore | None = None) -> None:
        """``slots``: bounds the requests of scans, shared by logs that open together; None: its own."""
        self._requests = calls
        self._keys = keys
        self._slots = slots or scan_slots()
        self._cache = FrameCache()
        self._listing = LogListing()  # of the decision in progress

    async def decision(self, below_epoch: int) -> ObjectDecision:
        """Decide which frames of the owners before `below_epoch` are valid. The caller has claimed their epochs.

        Small valid frames are cached for `frame` and `frames`, until `drop_cached`.

        Raises:
            CorruptionError, DataLossError, FormatVersionError: the frames cannot be proved; the text names the object.
        """
        self.drop_cached()
        found = await self._requests.persist(lambda: self._requests.list_keys(self._keys.folder))
        self._listing = LogListing.of(self._keys, found, below_epoch)
        try:
            decision = await self._decision(below_epoch)
        finally:
            self._listing = LogListing()
        self._cache.retain(decision.extents)
        return decision

    async def make_durable(self, decision: ObjectDecision) -> None:
        """Make the frames of a decision durable, before anything says that they count.

        Their owners may have been killed, or be about to fail, between a put that can be seen and its end.
        """
        for epoch in sorted({decision.previous_epoch, *(extent.epoch for extent in decision.extents)} - {0}):
            folder = self._keys.epoch(epoch)
            await self._ask(partial(self._requests.make_durable, folder))

    def drop_cached(self) -> None:
        """Drop the frames that the last decision cached."""
        self._cache.clear()

    async def _decision(self, below_epoch: int) -> ObjectDecision:
        top = await self._newest_started(below_epoch)
        await self._refuse_frames_without_start(top.header.epoch if top else 0, below_epoch)
        if top is None:
            return ObjectDecision()
        epoch, nonce = top.header.epoch, top.header.nonce
        mark = await self.last_mark(epoch, nonce)
        first = max(top.record.first_sequence, top.header.log_start, mark.log_start if mark else 0)
        hint = self._listing.last_frames.get(epoch)
        own = await self._scan(epoch, first, None, nonce, hint)
        if own.greatest_log_start > own.next_sequence:
            own = await self._scan(epoch, own.greatest_log_start, None, nonce, hint)
        log_start = greatest_log_start(top, mark, own)
        older = [
            await self._scan(entry.epoch, entry.first, entry.last, None, None)
            for entry in remaining_history(top.record, log_start)
        ]
        decision = decide(self._keys, top, mark, own, older)
        for extent in decision.extents:
            extent.forget_below(log_start)
        return decision

    async def _ask(self, call: Callable[[], Awaitable[T]]) -> T:
        """Send a request of a scan, as `ObjectRequests.persist`; each attempt waits for a slot."""

        async def within_slot() -> T:
            async with self._slots:
                return await call()

        return await self._requests.persist(within_slot)

    async def _newest_started(self, below_epoch: int) -> StartedEpoch | None:
        """Return the newest epoch with a START frame; epochs without one never acknowledged a frame."""
        epoch, count = below_epoch - 1, 1
        while epoch > 0:
            wanted = range(epoch, max(epoch - count, 0), -1)
            for started in await gather_all(self._start(number) for number in wanted):
                if started is not None:
                    return started
            epoch -= len(wanted)
            count = min(2 * count, limits.LOG_OBJECT_SCANS_MAX)
        return None

    async def _start(self, epoch: int) -> StartedEpoch | None:
        key = self._keys.start(epoch)
        data = await self._ask(lambda: self._requests.find(key))
        if data is None:
            return None
        header, payload = frame_in(data, f"object {key}")
        check_identity(header, f"object {key}", kind=FrameKind.START, container=self._keys.container, epoch=epoch)
        try:
            return StartedEpoch(header, StartRecord.decode(payload))
        except ValueError as error:
            raise CorruptionError(f"object {key}", str(error)) from error

    async def _refuse_frames_without_start(self, started: int, below_epoch: int) -> None:
        """Raise DataLossError for frames of an epoch without START frame: owners store that first, and confirm it."""
        for epoch, sequence in sorted(self._listing.last_frames.items()):
            key = self._keys.frame(epoch, sequence)
            if started < epoch < below_epoch and await self._header(key) is not None:
                raise DataLossError(f"frames of epoch {epoch} exist ({key}), but its START frame is missing")

    async def _header(self, key: str) -> FrameHeader | None:
        data = await self._ask(lambda: self._requests.find_header(key))
        return None if data is None else header_of(data, f"object {key}")

    async def last_mark_number(self, epoch: int) -> int:
        """Return the number of the newest MARK of an epoch; 0: it has none."""
        return (await self._last_mark_object(epoch))[0]

    async def _last_mark_object(self, epoch: int) -> tuple[int, bytes]:
        """Return number and content of the newest MARK of an epoch; 0: it has none."""
        found = {0: b""}

        async def exists(number: int) -> bool:
            key = self._keys.mark(epoch, number)
            data = await self._ask(lambda: self._requests.find(key))
            if data is None:
                return False
            header_of(data, f"object {key}")
            found[number] = data
            return True

        number = await find_last(exists, self._listing.last_marks.get(epoch, 0))
        return number, found[number]

    async def last_mark(self, epoch: int, nonce: bytes) -> FrameHeader | None:
        """Return the newest MARK of an epoch, if there is one."""
        number, data = await self._last_mark_object(epoch)
        if not number:
            return None
        place = f"object {self._keys.mark(epoch, number)}"
        header, _ = frame_in(data, place)
        check_identity(header, place, kind=FrameKind.MARK, container=self._keys.container, epoch=epoch, nonce=nonce)
        return header

    async def _data_header(self, epoch: int, sequence: int, nonce: bytes | None) -> FrameHeader | None:
        """The header of a frame, verified; the whole frame is kept when it is small and sound."""
        key = self._keys.frame(epoch, sequence)
        length = self._listing.lengths.get((epoch, sequence), 0)
        if length < frames.SECTOR_BYTES or not self._cache.reserve(length):
            return self._of_frame(epoch, sequence, nonce, await self._header(key))
        kept = False
        try:
            data = await self._whole(key, length)
            if data is None:
                return self._of_frame(epoch, sequence, nonce, await self._header(key))
            found = header_of(data[: frames.HEADER_BYTES], f"object {key}")
            header = self._of_frame(epoch, sequence, nonce, found)
            if _is_sound(found, data):
                self._cache.keep(epoch, sequence, frames.payload_of(found, memoryview(data)), length)
                kept = True
            return header
        finally:
            if not kept:
                self._cache.release(length)

    async def _whole(self, key: str, length: int) -> bytes | None:
        """An object that a list showed to be so long; None: there is none of that length, or none."""
        try:
            return await self._ask(lambda: self._requests.find_start(key, length))
        except CorruptionError:
            return None

    def _of_frame(
        self, epoch: int, sequence: int, nonce: bytes | None, header: FrameHeader | None
    ) -> FrameHeader | None:
        """Return the header that was found under a frame's key. Raises CorruptionError when it belongs elsewhere."""
        if header is not None:
            place, container = f"object {self._keys.frame(epoch, sequence)}", self._keys.container
            check_identity(header, place, kind=FrameKind.DATA, container=container, epoch=epoch, nonce=nonce)
            if header.sequence != sequence:
                raise CorruptionError(place, f"holds frame {header.sequence}")
        return header

    async def _headers(self, epoch: int, wanted: range, nonce: bytes | None) -> list[FrameHeader | None]:
        found: list[FrameHeader | None] = []
        size = limits.LOG_OBJECT_SCANS_MAX
        for at in range(wanted.start, wanted.stop, size):
            part = range(at, min(at + size, wanted.stop))
            found += await gather_all(self._data_header(epoch, sequence, nonce) for sequence in part)
        return found

    async def _scan(
        self, epoch: int, first: int, last: int | None, nonce: bytes | None, hint: int | None
    ) -> ObjectScan:
        """Scan the prefix from `first` through `last` (None: to its end), and the headers behind a gap."""
        scan = ObjectScan(epoch, first)
        count = self._first_count(first, hint if last is None else last)
        while last is None or scan.next_sequence <= last:
            at = scan.next_sequence
            wanted = range(at, at + count if last is None else min(at + count, last + 1))
            headers = await self._headers(epoch, wanted, nonce)
            taken = _take(scan, headers)
            if taken < len(headers):
                await self._look_behind(scan, wanted.stop, nonce, hint)
                break
            count = min(2 * count, limits.LOG_OBJECT_SCANS_MAX)
        return scan

    def _first_count(self, first: int, expected_last: int | None) -> int:
        """Return how many frames to request at once, within bounds; later requests double it.

        As many as are expected, and the one behind them, which is missing. A list that may be old says less.
        """
        expected = 0 if expected_last is None else expected_last - first + 1
        least, expected = (1, max(expected, 0) + 1) if self._listing.is_current else (4, expected)
        return min(max(expected, least), limits.LOG_OBJECT_SCANS_MAX)

    async def _look_behind(self, scan: ObjectScan, looked_below: int, nonce: bytes | None, hint: int | None) -> None:
        """Read headers behind the gap: they show what was acknowledged, unless a list shows that there is nothing."""
        gap = scan.next_sequence
        if self._listing.ends_at(scan.epoch, gap):
            return
        for header in await self._headers(scan.epoch, range(looked_below, gap + WINDOW_FRAMES + 1), nonce):
            if header is not None:
                scan.note(header)
        if hint is not None and hint > gap + WINDOW_FRAMES:
            far = await self._data_header(scan.epoch, hint, nonce)
            if far is not None:
                scan.note(far)

    async def frame(self, epoch: int, sequence: int) -> memoryview:
        """Return a frame's payload, verified.

        Raises:
            CorruptionError: it is damaged. DataLossError: it does not exist.
        """
        kept = self._cache.get(epoch, sequence)
        return kept if kept is not None else await self._read(epoch, sequence)

    async def _read(self, epoch: int, sequence: int) -> memoryview:
        key = self._keys.frame(epoch, sequence)
        data = await self._requests.persist(lambda: self._requests.find(key))
        if data is None:
            raise DataLossError(f"log frame {sequence} is missing ({key})")
        header, payload = frame_in(data, f"object {key}")
        self._of_frame(epoch, sequence, None, header)
        return payload

    async def frames(self, places: Iterator[tuple[int, int, int]]) -> AsyncGenerator[tuple[int, int, memoryview], None]:
        """Yield epoch, sequence and payload of the frames at `places`; reads ahead within bounds."""
        ahead: deque[_Ahead] = deque()
        ahead_bytes = kept = 0
        following = next(places, None)
        try:
            while following is not None or ahead:
                while following is not None and (not ahead or _may_read(len(ahead), ahead_bytes + following[2])):
                    ahead.append(self._ahead(*following))
                    ahead_bytes += following[2]
                    following = next(places, None)
                item = ahead[0]
                if isinstance(item.payload, asyncio.Task):
                    payload = await item.payload
                else:
                    payload = item.payload
                    kept += 1
                    if kept % _CACHED_AT_ONCE == 0:
                        await asyncio.sleep(0)
                ahead.popleft()
                ahead_bytes -= item.length_bytes
                yield item.epoch, item.sequence, payload
        finally:
            tasks = [item.payload for item in ahead if isinstance(item.payload, asyncio.Task)]
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks)

    def _ahead(self, epoch: int, sequence: int, length_bytes: int) -> _Ahead:
        kept = self._cache.get(epoch, sequence)
        if kept is not None:
            return _Ahead(epoch, sequence, length_bytes, kept)
        task = asyncio.get_running_loop().create_task(self._read(epoch, sequence))
        return _Ahead(epoch, sequence, length_bytes, task)


def _is_sound(header: FrameHeader, data: bytes) -> bool:
    """Return whether an object is its whole frame, undamaged.

    Damage behind a header is an error only if the frame is valid: recovery reads such a frame again.
    """
    return len(data) == header.frame_length and frames.judge_frame(header, memoryview(data)) == frames.COMPLETE


def _take(scan: ObjectScan, headers: Sequence[FrameHeader | None]) -> int:
    """Accept the headers up to the first missing one, note the others; return how many were accepted."""
    taken = 0
    for header in headers:
        if header is None:
            continue
        if header.sequence == scan.next_sequence:
            scan.accept(header)
            taken += 1
        else:
            scan.note(header)
    return taken


def _may_read(count: int, length_bytes: int) -> bool:
    return count < limits.LOG_OBJECT_READS_MAX and length_bytes <= limits.LOG_OBJECT_READ_AHEAD_BYTES
