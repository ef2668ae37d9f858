"""Writers, transactions and tail readers that share one segment, as the server drives a container."""

from __future__ import annotations

import asyncio
import contextlib
import random
import struct
from collections.abc import Callable
from dataclasses import dataclass, field

from sim.violations import Violation, require
from tailrace.common.errors import BadAttributeError, NoSuchSegmentError, SegmentExistsError, UnavailableError
from tailrace.segmentstore.api import EVENT_COUNT, NULL_ATTRIBUTE, AppendRequest, AttributeUpdate, AttributeUpdateType
from tailrace.segmentstore.container.container import Container

RECORD = struct.Struct("<16sII")
IN_FLIGHT_MAX = 8


def record(writer: bytes, number: int, payload: bytes) -> bytes:
    """One event: who wrote it, its number, its bytes."""
    return RECORD.pack(writer, number, len(payload)) + payload


def parse(content: bytes) -> list[tuple[bytes, int, bytes]]:
    """The events of a segment's content."""
    events = []
    position = 0
    while position < len(content):
        writer, number, length = RECORD.unpack_from(content, position)
        position += RECORD.size
        require(position + length <= len(content), "an event is cut off")
        events.append((writer, number, content[position : position + length]))
        position += length
    return events


@dataclass
class Writer:
    """An exactly-once writer: numbers its events, resends what is not known to be there."""

    writer_id: bytes
    sent: list[bytes] = field(default_factory=list)
    acknowledged: int = 0


@dataclass
class Transaction:
    """A transaction of `events`; what its owner asked for last is in `phase`."""

    writer_id: bytes
    segment: str
    events: list[bytes]
    phase: str = "new"


class SharedStream:
    """One segment with several writers, a transaction client and tail readers; outlives all crashes."""

    def __init__(self, number: int, rng: random.Random, writers: int) -> None:
        self.random = rng
        self.name = f"scope/shared{number}/0.#epoch.0"
        self.writers = [Writer(rng.randbytes(16)) for _ in range(writers)]
        self.transactions: list[Transaction] = []
        self.content = bytearray()  # what readers have seen
        self.truncated = 0
        self.steps = 0
        self.may_forget_merges: Callable[[], bool] = lambda: False
        """Whether the container may have forgotten what it merged: they are remembered for a time by the wall clock."""
        self._life = object()  # answers that come to an earlier one belong to no one here

    async def live(self, container: Container, blocks: int) -> None:
        """Everything at once, until the writers are done."""
        self._life = object()
        with contextlib.suppress(SegmentExistsError):
            await container.create_segment(self.name)
        reading = asyncio.create_task(self._read(container))
        working = [
            *(asyncio.create_task(self._write(container, writer, blocks)) for writer in self.writers),
            asyncio.create_task(self._transact(container, blocks // 4)),
            asyncio.create_task(self._truncate(container)),
        ]
        try:
            await asyncio.gather(*working)
        finally:  # when one fails the others stop, too: the caller believes that no writer is left
            for task in (*working, reading):
                task.cancel()
            await asyncio.gather(*working, reading, return_exceptions=True)

    # -- writers

    async def _write(self, container: Container, writer: Writer, blocks: int) -> None:
        """Append blocks with a window, as a connection does: a block that must wait holds up the later ones."""
        last = await self._setup(container, writer)
        window = asyncio.Semaphore(IN_FLIGHT_MAX)
        failure: list[Exception] = []
        while (blocks > 0 or last < len(writer.sent)) and not failure:
            count = self.random.randint(1, 3)
            while len(writer.sent) < last + count:
                payload = self.random.randbytes(int(self.random.random() ** 3 * 5_000))
                writer.sent.append(record(writer.writer_id, len(writer.sent) + 1, payload))
            await window.acquire()
            request = self._request(writer, last, count, window, failure)
            last += count
            blocks -= 1
            while (room := container.submit_append(request)) is not None:
                await room
            self.steps += 1
            if self.random.random() < 0.3:
                await asyncio.sleep(self.random.random() * 0.01)
        for _ in range(IN_FLIGHT_MAX):
            await window.acquire()
        if failure:
            raise failure[0]

    async def _setup(self, container: Container, writer: Writer) -> int:
        """The barrier of SetupAppend: what the container says it has."""
        stored = await container.writer_state(self.name, writer.writer_id)
        last = 0 if stored == NULL_ATTRIBUTE else stored
        require(writer.acknowledged <= last, f"{writer.acknowledged} was acknowledged, the container knows {last}")
        require(last <= len(writer.sent), f"the container knows event {last}, only {len(writer.sent)} were sent")
        writer.acknowledged = last
        return last

    def _request(
        self, writer: Writer, last: int, count: int, window: asyncio.Semaphore, failure: list[Exception]
    ) -> AppendRequest:
        data = writer.sent[last : last + count]
        updates = [
            AttributeUpdate(
                writer.writer_id, AttributeUpdateType.REPLACE_IF_EQUALS, last + count, last if last else NULL_ATTRIBUTE
            ),
            AttributeUpdate(EVENT_COUNT, AttributeUpdateType.ACCUMULATE, count),
        ]

        life = self._life

        def completed(request: AppendRequest) -> None:
            if self._life is not life:
                return
            require(writer.acknowledged == last, f"acknowledged {last + count} after {writer.acknowledged}")
            writer.acknowledged = last + count
            window.release()

        def failed(request: AppendRequest, error: Exception) -> None:
            if self._life is not life:
                return
            require(not isinstance(error, BadAttributeError), f"a writer's condition failed: {error}")
            failure.append(error)
            window.release()

        return AppendRequest(self.name, data, sum(map(len, data)), updates, completed, failed)

    # -- transactions

    async def _transact(self, container: Container, count: int) -> None:
        for transaction in [item for item in self.transactions if item.phase not in ("committed", "aborted")]:
            await self._resume(container, transaction)
        for _ in range(count):
            await asyncio.sleep(self.random.random() * 0.05)
            identifier = self.random.randbytes(16)
            events = [
                record(identifier, number + 1, self.random.randbytes(self.random.randint(0, 3000)))
                for number in range(self.random.randint(1, 5))
            ]
            transaction = Transaction(identifier, f"{self.name}#transaction.{identifier.hex()}", events)
            self.transactions.append(transaction)
            await self._resume(container, transaction)

    async def _resume(self, container: Container, transaction: Transaction) -> None:
        """Bring a transaction to its end, whatever was done of it before a crash."""
        segment = transaction.segment
        if transaction.phase == "new":
            with contextlib.suppress(SegmentExistsError):
                await container.create_segment(segment)
            done = len(parse(await self._whole(container, segment)))
            for event in transaction.events[done:]:
                one_more = AttributeUpdate(EVENT_COUNT, AttributeUpdateType.ACCUMULATE, 1)
                await container.append(segment, [event], [one_more])
                self.steps += 1
            transaction.phase = "committing" if self.random.random() < 0.7 else "aborting"
        if transaction.phase == "committing":
            await self._merge(container, segment)
            transaction.phase = "committed"
            if self.random.random() < 0.3:
                await self._merge(container, segment)  # asked again: the same answer, no second copy
        else:
            with contextlib.suppress(NoSuchSegmentError):
                await container.delete(segment)
            transaction.phase = "aborted"

    async def _merge(self, container: Container, segment: str) -> None:
        try:
            await container.merge(self.name, segment)
        except NoSuchSegmentError as error:
            if not self.may_forget_merges():
                raise Violation(f"{segment} was merged or is there, and the container knows of neither") from error

    async def _whole(self, container: Container, segment: str) -> bytes:
        length = (await container.info(segment)).length
        return await container.read_exact(segment, 0, length) if length else b""

    # -- readers and truncation

    async def _read(self, container: Container) -> None:
        """Follow the tail; what was seen once never changes."""
        position = self.random.choice([self.truncated, len(self.content)])
        position = max(position, (await container.info(self.name)).start_offset)
        while True:
            result = await container.read(self.name, position, self.random.randint(1, 20_000), wait=True)
            data = b"".join(result.data)
            require(result.offset == position and len(data) == result.length, "a read answered something else")
            self._saw(position, data)
            position += len(data)

    def _saw(self, position: int, data: bytes) -> None:
        known = bytes(self.content[position : position + len(data)])
        require(data[: len(known)] == known, f"{self.name}: bytes from {position} changed")
        require(position <= len(self.content), f"{self.name}: a gap before {position}")
        self.content += data[len(known) :]

    async def _truncate(self, container: Container) -> None:
        """Only below what a reader has seen, so that the whole content is known in the end."""
        for _ in range(self.random.randint(0, 3)):
            await asyncio.sleep(self.random.random() * 0.3)
            seen = len(self.content)
            target = self.random.randint(min(self.truncated, seen), seen)
            if target > self.truncated:
                before, self.truncated = self.truncated, target
                try:
                    await container.truncate(self.name, target)
                except UnavailableError:
                    self.truncated = target if (await container.info(self.name)).start_offset == target else before
                    raise

    # -- the end

    async def check(self, container: Container) -> None:
        """Every acknowledged event once and in order, transactions whole, nothing invented."""
        properties = await container.info(self.name)
        require(properties.start_offset <= self.truncated, f"{self.name} starts at {properties.start_offset}")
        position = properties.start_offset
        if properties.length > position:
            self._saw(position, await container.read_exact(self.name, position, properties.length - position))
        require(properties.length == len(self.content), f"{self.name}: {len(self.content)} bytes seen, {properties}")
        events = parse(bytes(self.content))
        counted = properties.core_attributes[EVENT_COUNT]
        require(counted == len(events), f"{self.name}: {len(events)} events, counted {counted}")
        for writer in self.writers:
            await self._check_writer(container, writer, events)
        self._check_transactions(events)
        known = {writer.writer_id for writer in self.writers} | {item.writer_id for item in self.transactions}
        require(all(writer in known for writer, _, _ in events), f"{self.name}: an invented event")

    async def _check_writer(self, container: Container, writer: Writer, events: list[tuple[bytes, int, bytes]]) -> None:
        own = [record(*event) for event in events if event[0] == writer.writer_id]
        require(own == writer.sent[: len(own)], f"{self.name}: a writer's events are not the ones sent, in order")
        require(len(own) >= writer.acknowledged, f"{self.name}: acknowledged {writer.acknowledged}, found {len(own)}")
        values = await container.get_attributes(self.name, [writer.writer_id])
        require(values.get(writer.writer_id, 0) == len(own), f"{self.name}: {values} for {len(own)} events")

    def _check_transactions(self, events: list[tuple[bytes, int, bytes]]) -> None:
        places: dict[bytes, list[int]] = {}
        for place, (writer, _, _) in enumerate(events):
            places.setdefault(writer, []).append(place)
        for transaction in self.transactions:
            found = places.get(transaction.writer_id, [])
            if transaction.phase in ("committing", "committed") and found:
                whole = [record(*events[place]) for place in found] == transaction.events
                require(whole and found[-1] - found[0] == len(found) - 1, f"{self.name}: a torn transaction")
            else:
                require(not found and transaction.phase != "committed", f"{self.name}: {transaction.phase}: {found}")
