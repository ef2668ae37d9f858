"""Calls of the operator: describe, claim and delete streams as their owner (ADR 0014)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tailrace.client.control.caller import Caller, check_status
from tailrace.client.control.streams import config_of
from tailrace.common.errors import NoSuchReaderGroupError, NoSuchStreamError, NotTheOwnerError
from tailrace.rpc import operator_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tailrace.client.model import StreamName
    from tailrace.common.stream_policies import StreamConfig

SEALED_STATES = frozenset({"sealing", "sealed", "deleting"})
"""States of a stream that takes no events and no change but its deletion."""


class Holder(NamedTuple):
    """A subscriber, ``scope/group``, and what it has not read; None before it published a position.

    ``lost_bytes`` were truncated after its position, at least. ``published_ms`` is when it published it; 0: unknown.
    Some of what it has not read was written before ``unread_before_ms``; 0: unknown, or it has read all.
    """

    subscriber: str
    unread_bytes: int | None
    lost_bytes: int = 0
    published_ms: int = 0
    unread_before_ms: int = 0


class Truncated(NamedTuple):
    """A truncation by the stream's retention policy. ``reason``: MinLimit, Consumption or MaxLimit."""

    truncated_ms: int
    reason: str
    freed_bytes: int


class Scaled(NamedTuple):
    """A scale: how many segments were split, and were made of several.

    ``reason``: Rate (of the segments, by the stream's policy), Policy (that was updated), Manual (a call), or "": a
    controller of an earlier version decided it.
    """

    scaled_ms: int
    splits: int
    merges: int
    reason: str = ""


class SegmentRates(NamedTuple):
    """How fast active segments are written, in the unit of the stream's scaling policy per second.

    Means over two minutes, which the controller got at ``measured_ms``. A segment whose rate is not known has none.
    """

    measured_ms: int
    per_s: Mapping[int, float]


class StreamDescription(NamedTuple):
    """The present state of a stream. ``head_bytes`` and ``tail_bytes`` count all truncated and all written bytes.
    ``scaled`` is the last scale.

    ``truncated`` is the last truncation by policy; ``holders`` are the subscribers, those that hold most first;
    unless ``has_all_holders`` a controller of an earlier version listed 100 at most. ``applied_ms`` is when the
    policy was applied last without an error; 0: never. ``created_ms`` is when a stream with a policy was created; 0:
    the controller is of an earlier version. ``oldest_ms`` is when the oldest byte was written, at the earliest; 0:
    there is none, or it is unknown. ``held_bytes`` are the bytes of objects that it holds in Tier 2, as of the last
    minutes; None: not known. All of these need `sizes`.

    ``rates`` is None if its policy is Fixed, or while the controller does not know them.

    ``incarnation`` increases each time a stream of the name is created. ``state``: active, updating, scaling,
    truncating, sealing, sealed or deleting.
    """

    config: StreamConfig
    owner: str
    incarnation: int
    state: str
    epoch: int
    segments: int
    head_bytes: int
    tail_bytes: int
    truncated: Truncated | None = None
    holders: tuple[Holder, ...] = ()
    scaled: Scaled | None = None
    applied_ms: int = 0
    created_ms: int = 0
    oldest_ms: int = 0
    held_bytes: int | None = None
    rates: SegmentRates | None = None
    has_all_holders: bool = False

    @property
    def is_sealed(self) -> bool:
        """Return whether the stream takes no more events."""
        return self.state in SEALED_STATES

    @property
    def is_settled(self) -> bool:
        """Return whether no workflow of the stream is running."""
        return self.state in ("active", "sealed")


class OwnerCalls(Caller):
    """Calls of `OperatorService`. A missing stream raises NoSuchStreamError."""

    async def describe_stream(self, stream: StreamName, *, sizes: bool = True) -> StreamDescription:
        """Return a stream's present state. Without `sizes` both sizes are 0 and no segment is read."""
        request = pb.DescribeStreamRequest(scope=stream.scope, stream=stream.stream, sizes=sizes)
        return description(stream, await self._call("describeStream", request, pb.StreamDescription))

    async def stream_reports(self, wanted: Sequence[tuple[StreamName, int]]) -> list[pb.StreamReports.Report]:
        """Return the reports of up to STREAM_REPORTS_MAX streams, each with the version that the caller has (or 0).

        Of the first ones only, one at least, when all are too long for an answer. See `StreamReports` for a caller
        that wants descriptions.
        """
        streams = [
            pb.StreamReportsRequest.Wanted(scope=stream.scope, stream=stream.stream, since=since)
            for stream, since in wanted
        ]
        request = pb.StreamReportsRequest(streams=streams, mayEnd=True)
        reply = await self._call("streamReports", request, pb.StreamReports)
        return list(reply.reports)

    async def claim_stream(self, stream: StreamName, incarnation: int, owner: str, *, expected: str = "") -> None:
        """Make `owner` the owner of that incarnation. Succeeds when it is the owner.

        Raises:
            NotTheOwnerError: its owner is neither `owner` nor `expected`.
        """
        request = pb.ClaimStreamRequest(
            scope=stream.scope, stream=stream.stream, incarnation=incarnation, expected=expected, owner=owner
        )
        reply = await self._call("claimStream", request, pb.OwnedStreamStatus)
        _check_owned(reply, stream)

    async def delete_owned_stream(self, stream: StreamName, owner: str) -> bool:
        """Seal and delete the stream if `owner` owns it; return False when it does not exist.

        Raises:
            NotTheOwnerError. DeadlineError: the deletion continues, or an open transaction delays it.
        """
        request = pb.DeleteOwnedStreamRequest(scope=stream.scope, stream=stream.stream, owner=owner)
        reply, unsure = await self._call_unsure("deleteOwnedStream", request, pb.OwnedStreamStatus)
        if reply.status == pb.OwnedStreamStatus.STREAM_NOT_FOUND:
            return unsure  # probably deleted by an attempt whose reply was lost
        _check_owned(reply, stream)
        return True

    async def subscriber_cut(self, stream: StreamName, subscriber: str) -> dict[int, int]:
        """Return the position that a subscriber (``scope/group``) published for the stream; empty before the first one.

        Raises:
            NoSuchReaderGroupError: the group does not subscribe to the stream.
        """
        request = pb.SubscriberCutRequest(scope=stream.scope, stream=stream.stream, subscriber=subscriber)
        reply = await self._call("getSubscriberCut", request, pb.SubscriberCut)
        check_status(
            reply,
            f"stream {stream}",
            {
                "STREAM_NOT_FOUND": _no_stream,
                "SUBSCRIBER_NOT_FOUND": lambda subject: NoSuchReaderGroupError(
                    f"reader group {subscriber} does not subscribe to {subject}"
                ),
            },
        )
        return dict(reply.cut)


def description(stream: StreamName, reply: pb.StreamDescription) -> StreamDescription:
    """Return a description as the controller sent it. Raises NoSuchStreamError, and as `check_status`."""
    check_status(reply, f"stream {stream}", {"STREAM_NOT_FOUND": _no_stream})
    kept, last = reply.retention, reply.lastScale
    return StreamDescription(
        config=config_of(reply.config),
        owner=reply.owner,
        incarnation=reply.incarnation,
        state=reply.state,
        epoch=reply.epoch,
        segments=reply.segments,
        head_bytes=reply.headBytes,
        tail_bytes=reply.tailBytes,
        truncated=Truncated(kept.truncatedMs, kept.reason, kept.freedBytes) if kept.truncatedMs else None,
        holders=tuple(
            Holder(
                each.subscriber,
                each.unreadBytes if each.hasPosition else None,
                each.lostBytes,
                each.publishedMs,
                each.unreadBeforeMs,
            )
            for each in kept.holders
        ),
        scaled=Scaled(last.scaledMs, last.splits, last.merges, last.reason) if reply.HasField("lastScale") else None,
        applied_ms=kept.appliedMs,
        created_ms=kept.createdMs,
        oldest_ms=kept.oldestMs,
        held_bytes=reply.heldBytes if reply.HasField("heldBytes") else None,
        rates=SegmentRates(reply.rates.measuredMs, dict(reply.rates.perSecond)) if reply.HasField("rates") else None,
        has_all_holders=kept.hasAllHolders,
    )


def _check_owned(reply: pb.OwnedStreamStatus, stream: StreamName) -> None:
    check_status(
        reply,
        f"stream {stream}",
        {"STREAM_NOT_FOUND": _no_stream, "NOT_THE_OWNER": lambda _: NotTheOwnerError(str(stream), reply.owner)},
    )


def _no_stream(subject: str) -> NoSuchStreamError:
    return NoSuchStreamError(f"{subject} does not exist")
