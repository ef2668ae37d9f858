"""Return how a stream came to be what it is: its epochs, where it and its subscribers are in them, recorded cuts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.common import limits
from tailrace.common.errors import BadRequestError, NoSuchStreamError
from tailrace.controller.calls.convert import key_of, positions
from tailrace.controller.managers.subscribers import subscribers
from tailrace.controller.retention.retention_set import between
from tailrace.rpc import controller_pb2
from tailrace.rpc import operator_pb2 as pb

if TYPE_CHECKING:
    from tailrace.controller.calls.call import Call, Core
    from tailrace.controller.metadata.model import Epoch
    from tailrace.controller.metadata.records import SealedRecord, StreamRecord
    from tailrace.controller.metadata.stream_store import StreamKey


class HistoryService:
    """The history of streams, in pages of epochs or of cuts."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._store = core.context.store

    async def stream_history(self, request: pb.StreamHistoryRequest, call: Call) -> pb.StreamHistory:
        """Return epochs from the requested one on, the head, and the positions of subscribers."""
        answer = pb.StreamHistory
        try:
            key = key_of(controller_pb2.StreamInfo(scope=request.scope, stream=request.stream))
            root = await self._core.streams.load(key)
            found = await self._subscribers(key)
        except NoSuchStreamError:
            return answer(status=answer.STREAM_NOT_FOUND)
        if not 0 <= request.firstEpoch <= root.active_epoch:
            raise BadRequestError(f"firstEpoch is {request.firstEpoch}, not from 0 to {root.active_epoch}")
        epochs = await self._page(key, root, request.firstEpoch)
        following = epochs[-1].epoch + 1
        # Sealing the stream records sizes for the epoch after the last one.
        sealed = {each.epoch: each for each in await self._store.sealed(key, root, request.firstEpoch, following)}
        end = sealed.get(root.active_epoch + 1)
        return answer(
            status=answer.SUCCESS,
            incarnation=root.incarnation,
            state=root.state.value,
            epochs=[_epoch(epoch, sealed.get(epoch.epoch)) for epoch in epochs],
            nextEpoch=following if following <= root.active_epoch else 0,
            head=positions(root.truncation or {}),
            subscribers=found,
            sealedMs=0 if end is None else end.sealed_ms,
            sealedSizes={} if end is None else end.sizes,
        )

    async def stream_cuts(self, request: pb.StreamCutsRequest, call: Call) -> pb.StreamCuts:
        """Return cuts that retention recorded, with their times; none for a stream that never had a policy."""
        answer = pb.StreamCuts
        try:
            key = key_of(controller_pb2.StreamInfo(scope=request.scope, stream=request.stream))
            root = await self._core.streams.load(key)
        except NoSuchStreamError:
            return answer(status=answer.STREAM_NOT_FOUND)
        record = await self._core.retention.record(key, root.incarnation)
        cuts: list[pb.TimedCut] = []
        segments = 0
        chosen = between(record.recorded, request.fromMs, request.toMs or None)
        for each in [each for each in chosen if each.number >= request.fromNumber]:
            if cuts and segments >= limits.HISTORY_SEGMENTS_PER_REPLY_MAX:
                return answer(status=answer.SUCCESS, cuts=cuts, nextMs=each.recorded_ms, nextNumber=each.number)
            found = await self._store.retention_cut(key, root.incarnation, each.number)
            if found is not None:  # otherwise it was removed meanwhile, because it lies before the head
                cuts.append(pb.TimedCut(recordedMs=each.recorded_ms, cut=positions(found.cut)))
                segments += len(found.cut)
        return answer(status=answer.SUCCESS, cuts=cuts)

    async def _subscribers(self, key: StreamKey) -> list[pb.HistorySubscriber]:
        """Return the subscribers with their cuts: all of them, or as many as one message has room for."""
        found: list[pb.HistorySubscriber] = []
        segments = 0
        async for name, one in subscribers(self._core.context, key):
            segments += len(one.cut or {})
            if found and segments > limits.HISTORY_SEGMENTS_PER_REPLY_MAX:
                break
            found.append(pb.HistorySubscriber(subscriber=name, cut=positions(one.cut or {})))
        return found

    async def _page(self, key: StreamKey, root: StreamRecord, first: int) -> list[Epoch]:
        """Return at least one epoch, and few enough for one message."""
        found: list[Epoch] = []
        segments = 0
        while first <= root.active_epoch and segments < limits.HISTORY_SEGMENTS_PER_REPLY_MAX:
            last = min(first + limits.HISTORY_EPOCHS_PER_READ - 1, root.active_epoch)
            for epoch in await self._store.epochs(key, root, first, last):
                if segments >= limits.HISTORY_SEGMENTS_PER_REPLY_MAX:
                    break
                found.append(epoch)
                segments += len(epoch.segments)
            first = last + 1
        return found


def _epoch(epoch: Epoch, sealed: SealedRecord | None) -> pb.HistoryEpoch:
    return pb.HistoryEpoch(
        epoch=epoch.epoch,
        createdMs=epoch.created_ms,
        reference=epoch.reference,
        splits=epoch.splits,
        merges=epoch.merges,
        segments=[pb.HistorySegment(segment=each.identifier, low=each.low, high=each.high) for each in epoch.segments],
        sealedSizes={} if sealed is None else sealed.sizes,
    )
