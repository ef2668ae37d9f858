"""Transactions and writers' time marks (controller §4)."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from tailrace.client.control.caller import Caller, check_status, cut_message, segment_ranges, stream_info
from tailrace.client.model import Cut, PingStatus, StreamName, TransactionSegments, TransactionState
from tailrace.client.types import UUIDPair
from tailrace.common.errors import BadRequestError, IllegalStateError, NoSuchStreamError
from tailrace.rpc import controller_pb2 as pb

NO_TIMESTAMP = -(2**63)


class TransactionCalls(Caller):
    """Calls on transactions and of writers."""

    async def create_transaction(self, stream: StreamName, lease_ms: int) -> TransactionSegments:
        """Open a transaction. Raises BadRequestError (lease), WriteConflictError (not while a scale waits).

        When an answer is lost the transaction that it told of is left to its lease, and another one is opened.
        """
        request = pb.CreateTxnRequest(streamInfo=stream_info(stream), lease=lease_ms)
        reply = await self._call("createTransaction", request, pb.CreateTxnResponse)
        return TransactionSegments(_uuid_of(reply.txnId), segment_ranges(reply.activeSegments))

    async def ping_transaction(self, stream: StreamName, transaction: uuid.UUID, lease_ms: int) -> PingStatus:
        """Extend the lease."""
        request = pb.PingTxnRequest(streamInfo=stream_info(stream), txnId=_id_of(transaction), lease=lease_ms)
        return PingStatus((await self._call("pingTransaction", request, pb.PingTxnStatus)).status)

    async def commit_transaction(
        self, stream: StreamName, transaction: uuid.UUID, *, writer: str = "", timestamp_ms: int = NO_TIMESTAMP
    ) -> None:
        """Decide to commit; merging goes on afterwards. Raises IllegalStateError when it cannot be committed."""
        request = pb.TxnRequest(
            streamInfo=stream_info(stream), txnId=_id_of(transaction), writerId=writer, timestamp=timestamp_ms
        )
        states = (TransactionState.COMMITTING, TransactionState.COMMITTED)
        await self._decide("commitTransaction", request, stream, transaction, states)

    async def abort_transaction(self, stream: StreamName, transaction: uuid.UUID) -> None:
        """Decide to abort. Raises IllegalStateError when it cannot be aborted."""
        request = pb.TxnRequest(streamInfo=stream_info(stream), txnId=_id_of(transaction))
        states = (TransactionState.ABORTING, TransactionState.ABORTED)
        await self._decide("abortTransaction", request, stream, transaction, states)

    async def _decide(
        self,
        method: str,
        request: pb.TxnRequest,
        stream: StreamName,
        transaction: uuid.UUID,
        states: Sequence[TransactionState],
    ) -> None:
        """Decide; a refusal after a lost answer is none when the transaction is as decided: then this call did it."""
        reply, unsure = await self._call_unsure(method, request, pb.TxnStatus)
        refused = reply.status == pb.TxnStatus.FAILURE
        if refused and unsure and await self.transaction_state(stream, transaction) in states:
            return
        check_status(
            reply,
            f"transaction {transaction} of {stream}",
            {
                "STREAM_NOT_FOUND": lambda subject: NoSuchStreamError(f"{subject}: no such stream"),
                "FAILURE": lambda subject: IllegalStateError(f"{subject} is not open any more"),
            },
        )

    async def transaction_state(self, stream: StreamName, transaction: uuid.UUID) -> TransactionState:
        """State; UNKNOWN when the controller does not know the transaction (any more)."""
        request = pb.TxnRequest(streamInfo=stream_info(stream), txnId=_id_of(transaction))
        return TransactionState((await self._call("checkTransactionState", request, pb.TxnState)).state)

    async def completed_transactions(self, stream: StreamName) -> dict[uuid.UUID, bool]:
        """The newest completed transactions and whether each was committed."""
        request = pb.ListCompletedTxnRequest(streamInfo=stream_info(stream))
        reply = await self._call("listCompletedTransactions", request, pb.ListCompletedTxnResponse)
        return {_uuid_of(item.txnId): item.status == pb.TxnResponse.COMMITTED for item in reply.response}

    async def note_timestamp(self, stream: StreamName, writer: str, timestamp_ms: int, position: Cut) -> None:
        """Tell the time that a writer has reached at a position. Raises BadRequestError when either goes back."""
        request = pb.TimestampFromWriter(writer=writer, position=cut_message(stream, position), timestamp=timestamp_ms)
        reply = await self._call("noteTimestampFromWriter", request, pb.TimestampResponse)
        if reply.result == pb.TimestampResponse.SUCCESS:
            return
        name = pb.TimestampResponse.Status.Name(reply.result)
        if reply.result == pb.TimestampResponse.INTERNAL_ERROR:
            raise IllegalStateError(f"time of writer {writer} on {stream}: the controller answered {name}")
        raise BadRequestError(f"time of writer {writer} on {stream}: the controller answered {name}")

    async def remove_writer(self, stream: StreamName, writer: str) -> None:
        """A writer is done; one that is not known is fine."""
        request = pb.RemoveWriterRequest(writer=writer, stream=stream_info(stream))
        reply = await self._call("removeWriter", request, pb.RemoveWriterResponse)
        if reply.result == pb.RemoveWriterResponse.STREAM_DOES_NOT_EXIST:
            raise NoSuchStreamError(f"stream {stream} does not exist")
        if reply.result == pb.RemoveWriterResponse.INTERNAL_ERROR:
            raise IllegalStateError(f"writer {writer} of {stream} was not removed")


def _id_of(transaction: uuid.UUID) -> pb.TxnId:
    high, low = UUIDPair.of(transaction)
    return pb.TxnId(highBits=high, lowBits=low)


def _uuid_of(message: pb.TxnId) -> uuid.UUID:
    return UUIDPair(message.highBits, message.lowBits).join()
