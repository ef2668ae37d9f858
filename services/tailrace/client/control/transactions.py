"""Calls about transactions and writers' times (docs/protocol/controller.md#transactions)."""

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
    """Calls on transactions and writers."""

    async def create_transaction(self, stream: StreamName, lease_ms: int) -> TransactionSegments:
        """Begin a transaction. Raises BadRequestError (lease), WriteConflictError (the stream is being sealed).

        When a reply is lost, the transaction that it named ends with its lease, and another one begins.
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
        """Decide to commit; the merge follows. Raises IllegalStateError when the transaction cannot commit."""
        request = pb.TxnRequest(
            streamInfo=stream_info(stream), txnId=_id_of(transaction), writerId=writer, timestamp=timestamp_ms
        )
        states = (TransactionState.COMMITTING, TransactionState.COMMITTED)
        await self._decide("commitTransaction", request, stream, transaction, states)

    async def abort_transaction(self, stream: StreamName, transaction: uuid.UUID) -> None:
        """Decide to abort. Raises IllegalStateError when the transaction cannot abort."""
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
        """Decide. After a lost reply, ignore a refusal when the transaction is in the decided state."""
        reply, unsure = await self._call_unsure(method, request, pb.TxnStatus)
        refused = reply.status == pb.TxnStatus.FAILURE
        if refused and unsure and await self.transaction_state(stream, transaction) in states:
            return
        check_status(
            reply,
            f"transaction {transaction} of {stream}",
            {
                "STREAM_NOT_FOUND": lambda subject: NoSuchStreamError(f"{subject}: the stream does not exist"),
                "FAILURE": lambda subject: IllegalStateError(f"{subject} is no longer open"),
            },
        )

    async def transaction_state(self, stream: StreamName, transaction: uuid.UUID) -> TransactionState:
        """Return the state; UNKNOWN when the controller does not know the transaction."""
        request = pb.TxnRequest(streamInfo=stream_info(stream), txnId=_id_of(transaction))
        return TransactionState((await self._call("checkTransactionState", request, pb.TxnState)).state)

    async def note_timestamp(self, stream: StreamName, writer: str, timestamp_ms: int, position: Cut) -> None:
        """Report a writer's time and position. Raises BadRequestError when either goes back."""
        request = pb.TimestampFromWriter(writer=writer, position=cut_message(stream, position), timestamp=timestamp_ms)
        reply = await self._call("noteTimestampFromWriter", request, pb.TimestampResponse)
        if reply.result == pb.TimestampResponse.SUCCESS:
            return
        name = pb.TimestampResponse.Status.Name(reply.result)
        if reply.result == pb.TimestampResponse.INTERNAL_ERROR:
            raise IllegalStateError(f"time of writer {writer} on {stream}: the controller answered {name}")
        raise BadRequestError(f"time of writer {writer} on {stream}: the controller answered {name}")

    async def remove_writer(self, stream: StreamName, writer: str) -> None:
        """Report that a writer notes no more times. An unknown writer is fine."""
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
