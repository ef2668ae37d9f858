"""How a stream came to be what it is: its epochs, and where its head and its subscribers are in them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tailrace.client.control.caller import Caller, check_status
from tailrace.common.errors import NoSuchStreamError
from tailrace.common.names import segment_epoch
from tailrace.common.ranges import KeyRange
from tailrace.rpc import operator_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tailrace.client.model import StreamName


class HistoryEpoch(NamedTuple):
    """The segments between two scales, by id. ``reference``: the epoch that it repeats for a commit, or itself."""

    epoch: int
    created_ms: int
    reference: int
    splits: int
    merges: int
    segments: Mapping[int, KeyRange]


class StreamHistory(NamedTuple):
    """All epochs of a stream, oldest first.

    ``sealed_sizes`` are the final lengths in bytes of all sealed segments. ``head`` is empty for a stream that was
    never truncated, and the cut of a subscriber (``scope/group``) before it published one. ``sealed_ms`` is None for a
    stream that is not sealed.
    """

    state: str
    epochs: tuple[HistoryEpoch, ...]
    sealed_sizes: Mapping[int, int]
    head: Mapping[int, int]
    subscribers: Mapping[str, Mapping[int, int]]
    sealed_ms: int | None

    @property
    def is_going(self) -> bool:
        """Return whether the stream is being deleted: its segments go before its name does."""
        return self.state == "deleting"

    def key_ranges(self) -> dict[int, KeyRange]:
        """Return the key range of every segment that the stream has had, by id."""
        return {identifier: key_range for epoch in self.epochs for identifier, key_range in epoch.segments.items()}


class TimedCut(NamedTuple):
    """The position behind all that a stream had at a time, in ms since 1970, by the clock of a controller."""

    recorded_ms: int
    positions: Mapping[int, int]

    def end_of(self, identifier: int) -> int | None:
        """Return up to which offset a segment had been written at that time; None: it was sealed, or had been before.

        A cut at the tail has a segment of the newest epoch that there was. What is older and not in it was sealed.
        """
        if identifier in self.positions:
            return self.positions[identifier]
        newest = max(map(segment_epoch, self.positions), default=-1)
        return None if segment_epoch(identifier) <= newest else 0


class HistoryCalls(Caller):
    """The calls that return histories."""

    async def stream_history(self, stream: StreamName) -> StreamHistory:
        """Return a stream's history. Raises NoSuchStreamError, also when it is deleted meanwhile."""
        epochs: list[HistoryEpoch] = []
        sizes: dict[int, int] = {}
        incarnation = None
        while True:
            request = pb.StreamHistoryRequest(scope=stream.scope, stream=stream.stream, firstEpoch=len(epochs))
            reply = await self._call("streamHistory", request, pb.StreamHistory)
            check_status(reply, f"stream {stream}", {"STREAM_NOT_FOUND": _no_stream})
            if incarnation not in (None, reply.incarnation):
                raise NoSuchStreamError(f"stream {stream} was deleted and created again")
            incarnation = reply.incarnation
            for each in reply.epochs:
                epochs.append(_epoch(each))
                sizes.update(each.sealedSizes)
            if reply.nextEpoch == 0:
                break
        sizes.update(reply.sealedSizes)
        return StreamHistory(
            state=reply.state,
            epochs=tuple(epochs),
            sealed_sizes=sizes,
            head=dict(reply.head),
            subscribers={each.subscriber: dict(each.cut) for each in reply.subscribers},
            sealed_ms=reply.sealedMs or None,
        )

    async def stream_cuts(self, stream: StreamName, from_ms: int = 0, to_ms: int = 0) -> tuple[TimedCut, ...]:
        """Return the cuts that retention recorded around a span of time, oldest first (docs/controller.md#retention).

        They begin with the newest one at or before `from_ms`, or with the oldest one, and end with the oldest one at or
        after `to_ms`, or with the newest one; 0: with that one. Several may have the same time. Raises
        NoSuchStreamError.
        """
        found: list[TimedCut] = []
        number = 0
        while True:
            request = pb.StreamCutsRequest(
                scope=stream.scope, stream=stream.stream, fromMs=from_ms, toMs=to_ms, fromNumber=number
            )
            reply = await self._call("streamCuts", request, pb.StreamCuts)
            check_status(reply, f"stream {stream}", {"STREAM_NOT_FOUND": _no_stream})
            found += (TimedCut(each.recordedMs, dict(each.cut)) for each in reply.cuts)
            if reply.nextNumber > number:
                number = reply.nextNumber
            elif reply.nextMs > from_ms:  # a controller of an earlier version continues by time
                from_ms = reply.nextMs
            else:
                return tuple(found)


def _epoch(message: pb.HistoryEpoch) -> HistoryEpoch:
    segments = {each.segment: KeyRange(each.low, each.high) for each in message.segments}
    return HistoryEpoch(message.epoch, message.createdMs, message.reference, message.splits, message.merges, segments)


def _no_stream(subject: str) -> NoSuchStreamError:
    return NoSuchStreamError(f"{subject} does not exist")
