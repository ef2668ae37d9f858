"""Calls about transactions and writers' times (docs/protocol/controller.md#transactions)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tailrace.common import limits
from tailrace.common.errors import InvalidNameError, NoSuchStreamError
from tailrace.common.names import check_entity_name
from tailrace.controller.calls.convert import (
    check_room,
    key_of,
    positions,
    segment_range,
    transaction_id_from,
    transaction_id_message,
)
from tailrace.controller.managers.decisions import PingResult
from tailrace.controller.managers.marks import MarkManager, NoteResult
from tailrace.controller.managers.transactions import TransactionManager
from tailrace.controller.metadata.epochs import transaction_segments
from tailrace.controller.metadata.model import EXISTING_STATES, StreamSegment, TransactionState
from tailrace.controller.metadata.policies import INT64_MAX, segments_max
from tailrace.controller.workflows.transactions import transaction_epoch
from tailrace.rpc import controller_pb2 as pb

if TYPE_CHECKING:
    from tailrace.controller.calls.call import Call, Core
    from tailrace.controller.metadata.stream_store import StreamKey

NO_TIMESTAMP: Final = -(2**63)

_PING: Final = {
    PingResult.OK: pb.PingTxnStatus.OK,
    PingResult.LEASE_TOO_LARGE: pb.PingTxnStatus.LEASE_TOO_LARGE,
    PingResult.MAX_EXECUTION_TIME_EXCEEDED: pb.PingTxnStatus.MAX_EXECUTION_TIME_EXCEEDED,
    PingResult.COMMITTED: pb.PingTxnStatus.COMMITTED,
    PingResult.ABORTED: pb.PingTxnStatus.ABORTED,
    PingResult.UNKNOWN: pb.PingTxnStatus.UNKNOWN,
}
_STATES: Final = {
    None: pb.TxnState.UNKNOWN,
    TransactionState.OPEN: pb.TxnState.OPEN,
    TransactionState.COMMITTING: pb.TxnState.COMMITTING,
    TransactionState.COMMITTED: pb.TxnState.COMMITTED,
    TransactionState.ABORTING: pb.TxnState.ABORTING,
    TransactionState.ABORTED: pb.TxnState.ABORTED,
}
_NOTES: Final = {
    NoteResult.SUCCESS: pb.TimestampResponse.SUCCESS,
    NoteResult.INVALID_TIME: pb.TimestampResponse.INVALID_TIME,
    NoteResult.INVALID_POSITION: pb.TimestampResponse.INVALID_POSITION,
}


class TransactionService:
    """Transactions: begin, ping, commit, abort, and their states."""

    def __init__(self, core: Core) -> None:
        self._store = core.context.store
        self._transactions = TransactionManager(core.context, core.driver)

    async def create_transaction(self, request: pb.CreateTxnRequest, call: Call) -> pb.CreateTxnResponse:
        """Begin a transaction and create its segments. The segment ids hold the transaction's epoch."""
        key = key_of(request.streamInfo)
        await self._check_room(key)
        begun = await self._transactions.begin(key, request.lease)
        pairs = transaction_segments(begun.epoch, transaction_epoch(begun.transaction_id))
        return pb.CreateTxnResponse(
            txnId=transaction_id_message(begun.transaction_id),
            activeSegments=[
                segment_range(key, segment, identifier)
                for segment, identifier in sorted(pairs, key=lambda pair: pair[0].low)
            ],
        )

    async def _check_room(self, key: StreamKey) -> None:
        """Refuse a transaction of which no answer could tell the client, before it begins. Most names leave room."""
        if segments_max(*key) == limits.STREAM_SEGMENTS_MAX:
            return
        root = await self._store.latest(key)
        if root is None or root.state not in EXISTING_STATES:
            return  # the call says why not
        count = len((await self._store.active_epoch(key, root)).segments)
        check_room(pb.CreateTxnResponse(activeSegments=[segment_range(key, StreamSegment(INT64_MAX, 0.1, 0.9))]), count)

    async def ping_transaction(self, request: pb.PingTxnRequest, call: Call) -> pb.PingTxnStatus:
        """Extend a lease."""
        key = key_of(request.streamInfo)
        result = await self._transactions.ping(key, transaction_id_from(request.txnId), request.lease)
        return pb.PingTxnStatus(status=_PING[result])

    async def commit_transaction(self, request: pb.TxnRequest, call: Call) -> pb.TxnStatus:
        """Decide to commit and reply; the merge follows."""
        key = key_of(request.streamInfo)
        # clients without a time send the least number (Java) or the field's default 0
        timestamp = None if request.timestamp in (0, NO_TIMESTAMP) else request.timestamp
        try:
            writer = check_entity_name("writer", request.writerId)
        except InvalidNameError:  # commit without the time: the caller asked for the commit
            writer = ""
        try:
            decided = await self._transactions.commit(key, transaction_id_from(request.txnId), writer, timestamp)
        except NoSuchStreamError:
            return pb.TxnStatus(status=pb.TxnStatus.STREAM_NOT_FOUND)
        return pb.TxnStatus(status=pb.TxnStatus.SUCCESS if decided else pb.TxnStatus.FAILURE)

    async def abort_transaction(self, request: pb.TxnRequest, call: Call) -> pb.TxnStatus:
        """Decide to abort and reply; the segments are deleted afterwards."""
        try:
            decided = await self._transactions.abort(key_of(request.streamInfo), transaction_id_from(request.txnId))
        except NoSuchStreamError:
            return pb.TxnStatus(status=pb.TxnStatus.STREAM_NOT_FOUND)
        return pb.TxnStatus(status=pb.TxnStatus.SUCCESS if decided else pb.TxnStatus.FAILURE)

    async def check_transaction_state(self, request: pb.TxnRequest, call: Call) -> pb.TxnState:
        """Return the state of an open or remembered transaction."""
        state = await self._transactions.state(key_of(request.streamInfo), transaction_id_from(request.txnId))
        return pb.TxnState(state=_STATES[state])

    async def list_completed_transactions(
        self, request: pb.ListCompletedTxnRequest, call: Call
    ) -> pb.ListCompletedTxnResponse:
        """Return the newest completed transactions."""
        found = await self._transactions.completed(key_of(request.streamInfo))
        return pb.ListCompletedTxnResponse(
            response=[
                pb.TxnResponse(
                    txnId=transaction_id_message(done.transaction_id),
                    status=pb.TxnResponse.COMMITTED if done.committed else pb.TxnResponse.ABORTED,
                )
                for done in found
            ]
        )


class WriterService:
    """Store writers' times, of which a job makes watermarks (docs/controller.md#watermarks)."""

    def __init__(self, core: Core) -> None:
        self._marks = MarkManager(core.context, core.cuts)

    async def note_timestamp_from_writer(self, request: pb.TimestampFromWriter, call: Call) -> pb.TimestampResponse:
        """Store a writer's time with its position."""
        key = key_of(request.position.streamInfo)
        result = await self._marks.note(key, request.writer, request.timestamp, positions(request.position.cut))
        return pb.TimestampResponse(result=_NOTES[result])

    async def remove_writer(self, request: pb.RemoveWriterRequest, call: Call) -> pb.RemoveWriterResponse:
        """Mark a writer as removed: it notes no more times."""
        answer = pb.RemoveWriterResponse
        try:
            known = await self._marks.remove(key_of(request.stream), request.writer)
        except NoSuchStreamError:
            return answer(result=answer.STREAM_DOES_NOT_EXIST)
        except InvalidNameError:
            return answer(result=answer.UNKNOWN_WRITER)
        return answer(result=answer.SUCCESS if known else answer.UNKNOWN_WRITER)
