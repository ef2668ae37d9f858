"""Make one call to the controller with its deadline and retries (docs/protocol/controller.md#errors)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

from tailrace.client.control.transport import UnknownStatusError
from tailrace.client.model import Cut, SegmentRange, StreamName
from tailrace.client.retry import Backoff
from tailrace.common import call_deadline, limits
from tailrace.common.errors import (
    ClientClosedError,
    ConditionFailedError,
    DeadlineError,
    IllegalStateError,
    TailraceError,
    UnavailableError,
)
from tailrace.common.logs import LibraryLog
from tailrace.common.ranges import KeyRange
from tailrace.common.real_ports import SystemEntropy
from tailrace.rpc import controller_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from google.protobuf.message import Message

    from tailrace.client.control.transport import ControllerTransport
    from tailrace.common.ports import Entropy

M = TypeVar("M", bound="Message")
_LOG = LibraryLog(__name__)


class Caller:
    """Make calls; the base of the classes of this package."""

    def __init__(
        self,
        transport: ControllerTransport,
        *,
        entropy: Entropy | None = None,
        deadline_s: float = limits.CLIENT_CONTROLLER_CALL_DEADLINE_S,
    ) -> None:
        self._transport = transport
        self._entropy: Entropy = entropy or SystemEntropy()
        self._deadline_s = deadline_s

    async def _call(self, method: str, request: Message, reply: type[M]) -> M:
        """Make an idempotent call: repeating it has the same effect and reply as one call."""
        return (await self._call_unsure(method, request, reply))[0]

    async def _call_unsure(self, method: str, request: Message, reply: type[M]) -> tuple[M, bool]:
        """Call until it succeeds, fails permanently or the deadline passes.

        Return the reply, and whether an earlier attempt without a reply may have taken effect. A refusal may then be
        the result of that attempt, so the caller reads and compares.

        Unreachable controllers are retried until the deadline, so that a restart causes no error. Other errors that may
        pass (conflicts, and INTERNAL, which a starting controller returns) get CLIENT_CONTROLLER_ATTEMPTS_MAX attempts.
        UNKNOWN, which may also be a wrong argument, gets CLIENT_CONTROLLER_UNKNOWN_ATTEMPTS_MAX, and no retry when the
        server marks it as one.
        """
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        ends_at_s = min(began_s + self._deadline_s, call_deadline.deadline_s())
        allowed_s = max(0.0, ends_at_s - began_s)
        backoff = Backoff(self._entropy)
        attempts = 0
        failure: TailraceError | None = None
        unsure = noticed = False
        while True:
            left_s = max(0.0, ends_at_s - loop.time())
            try:
                async with asyncio.timeout(left_s):
                    return await self._transport.call(method, request, reply, left_s), unsure
            except TimeoutError as error:
                before = "" if failure is None else f"; before: {failure}"
                raise DeadlineError(
                    f"the controller did not answer {method} within {allowed_s:.3g} s{before}"
                ) from error
            except UnavailableError as error:
                failure = error
            except TailraceError as error:
                attempts += 1
                if attempts >= _attempts_of(error):
                    raise
                failure = error
            unsure = unsure or not isinstance(failure, ConditionFailedError)
            delay_s = backoff.next_delay_s()
            if loop.time() + delay_s >= ends_at_s:
                raise failure
            if not noticed and loop.time() >= began_s + limits.CLIENT_WAIT_NOTICE_S:
                noticed = True
                _LOG.warning("controller_call_waits", call=method, deadline_s=allowed_s, reason=str(failure))
            await asyncio.sleep(delay_s)

    async def close(self) -> None:
        """Release the connections to the controller."""
        await self._transport.close()


def _attempts_of(error: TailraceError) -> int:
    """Return the number of attempts for a call that fails with this error."""
    if isinstance(error, ClientClosedError):
        return 1
    if isinstance(error, UnknownStatusError):
        return limits.CLIENT_CONTROLLER_UNKNOWN_ATTEMPTS_MAX
    if error.retryable or isinstance(error, IllegalStateError):
        return limits.CLIENT_CONTROLLER_ATTEMPTS_MAX
    return 1


def check_status(reply: Any, subject: str, failures: Mapping[str, Callable[[str], TailraceError]]) -> str:
    """Return the name of the reply's status if it is SUCCESS, else raise the error that `failures` names for it.

    Statuses that are not listed become IllegalStateError.
    """
    name: str = type(reply).Status.Name(reply.status)
    if name == "SUCCESS":
        return name
    make = failures.get(name)
    if make is not None:
        raise make(subject)
    raise IllegalStateError(f"{subject}: the controller answered {name}")


def stream_info(stream: StreamName) -> pb.StreamInfo:
    """Return the message that names a stream."""
    return pb.StreamInfo(scope=stream.scope, stream=stream.stream)


def segment_id(stream: StreamName, identifier: int) -> pb.SegmentId:
    """Return the message that names a segment."""
    return pb.SegmentId(streamInfo=stream_info(stream), segmentId=identifier)


def cut_message(stream: StreamName, cut: Cut | None) -> pb.StreamCut:
    """Return the message of a cut; None is unbounded."""
    return pb.StreamCut(streamInfo=stream_info(stream), cut=dict(cut or {}))


def segment_range(message: pb.SegmentRange) -> SegmentRange:
    """Return a segment with its key range."""
    return SegmentRange(message.segmentId.segmentId, KeyRange(message.minKey, message.maxKey))


def segment_ranges(messages: Iterable[pb.SegmentRange]) -> list[SegmentRange]:
    """Return segments sorted by key range."""
    return sorted((segment_range(message) for message in messages), key=lambda segment: segment.key_range)
