"""Calls of the operator: describe a stream, claim it for a resource, delete it as its owner (ADR 0014)."""

from __future__ import annotations

import asyncio
import hashlib
from typing import TYPE_CHECKING

import msgspec

from tailrace.common import limits
from tailrace.common.call_deadline import request_deadline
from tailrace.common.errors import BadRequestError, NoSuchStreamError, NotTheOwnerError, TailraceError
from tailrace.common.stream_policies import ScaleType
from tailrace.common.task_groups import gather_bounded
from tailrace.controller.calls.convert import config_message, key_of, positions
from tailrace.controller.managers.retention_report import RetentionReport, Unread
from tailrace.controller.managers.sizes import SizeReader
from tailrace.controller.managers.subscribers import subscriber, subscribers
from tailrace.controller.metadata.changes import Change, Snapshot
from tailrace.controller.metadata.transitions import require
from tailrace.rpc import controller_pb2
from tailrace.rpc import operator_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.controller.calls.call import Call, Core
    from tailrace.controller.managers.sizes import Measured
    from tailrace.controller.metadata.model import Epoch
    from tailrace.controller.metadata.records import StreamRecord
    from tailrace.controller.metadata.stream_store import StreamKey

_Status = pb.OwnedStreamStatus
_Request = pb.DescribeStreamRequest | pb.ClaimStreamRequest | pb.DeleteOwnedStreamRequest | pb.SubscriberCutRequest


class OwnerService:
    """Ownership of streams by resources. Ownership limits the operator only, never calls of users."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._sizes = SizeReader(core.context.store, core.context.segments)

    async def describe_stream(self, request: pb.DescribeStreamRequest, call: Call) -> pb.StreamDescription:
        """Return a stream's configuration, owner, state and epoch."""
        answer = pb.StreamDescription
        try:
            key = _key(request)
            root = await self._core.streams.load(key)
        except NoSuchStreamError:
            return answer(status=answer.STREAM_NOT_FOUND)
        active = await self._core.context.store.active_epoch(key, root)
        described = answer(
            status=answer.SUCCESS,
            owner=root.owner,
            incarnation=root.incarnation,
            state=root.state.value,
            config=config_message(key, root.config),
            epoch=root.active_epoch,
            segments=len(active.segments),
        )
        scaled = await self._core.context.store.epoch(key, root, active.reference)  # not a copy that a commit made
        if scaled.epoch > 0:
            described.lastScale.CopyFrom(
                pb.LastScale(
                    scaledMs=scaled.created_ms, splits=scaled.splits, merges=scaled.merges, reason=scaled.reason
                )
            )
        self._describe_rates(described, key, root, active)
        if request.sizes:
            measured = await self._sizes.measured(key, root)
            described.headBytes, described.tailBytes = measured.sizes
            if (held_bytes := self._core.held_bytes.of(key)) is not None:
                described.heldBytes = held_bytes
            if root.config.retention is not None:
                described.retention.CopyFrom(await self._retention(key, root, measured))
        return described

    def _describe_rates(
        self, described: pb.StreamDescription, key: StreamKey, root: StreamRecord, active: Epoch
    ) -> None:
        kind = root.config.scaling.kind
        if kind is ScaleType.FIXED:
            return
        found = self._core.segment_rates.of(key, kind, asyncio.get_running_loop().time())
        if found is not None:
            asked_ms, rates = found
            known = {each.identifier: rates[each.identifier] for each in active.segments if each.identifier in rates}
            described.rates.CopyFrom(pb.SegmentRates(perSecond=known, measuredMs=asked_ms))

    async def _retention(self, key: StreamKey, root: StreamRecord, measured: Measured) -> pb.Retention:
        """Return the last truncation by policy, and what each subscriber has not read."""
        described = pb.Retention()
        record = await self._core.retention.record(key, root.incarnation)
        created_ms = (await self._core.context.store.epoch(key, root, 0)).created_ms
        described.appliedMs, described.createdMs = record.applied_ms, created_ms
        core = self._core
        report = RetentionReport(core.context.store, core.cuts, self._sizes, key, root, record.recorded, measured)
        described.oldestMs = await report.oldest_ms(created_ms) or 0
        last = record.last
        if last is not None:
            described.truncatedMs, described.reason, described.freedBytes = (
                last.truncated_ms,
                last.reason,
                last.freed_bytes,
            )
        holders = []
        async for name, one in subscribers(self._core.context, key):
            unread = await report.unread(one.cut) if one.cut else Unread(0, 0, 0)
            holders.append(
                pb.Holder(
                    subscriber=name,
                    hasPosition=bool(one.cut),
                    unreadBytes=unread.unread_bytes,
                    lostBytes=unread.lost_bytes,
                    publishedMs=one.published_ms,
                    unreadBeforeMs=unread.before_ms,
                )
            )
        holders.sort(key=lambda each: each.unreadBytes, reverse=True)
        described.holders.extend(holders)
        described.hasAllHolders = True
        return described

    async def stream_reports(self, request: pb.StreamReportsRequest, call: Call) -> pb.StreamReports:
        """Describe many streams at once; one that cannot be described now keeps no other from it.

        One whose container does not answer delays the others by `limits.STREAM_REPORT_REQUEST_DEADLINE_S`.
        With `mayEnd` the answer ends where it would have more than `limits.STREAM_REPORTS_MAX_BYTES`.
        """
        if len(request.streams) > limits.STREAM_REPORTS_MAX:
            raise BadRequestError(f"{len(request.streams)} streams, at most {limits.STREAM_REPORTS_MAX} are allowed")

        async def report(wanted: pb.StreamReportsRequest.Wanted) -> pb.StreamReports.Report:
            one = pb.DescribeStreamRequest(scope=wanted.scope, stream=wanted.stream, sizes=True)
            try:
                with request_deadline(limits.STREAM_REPORT_REQUEST_DEADLINE_S):
                    described = await self.describe_stream(one, call)
            except TailraceError as error:
                return pb.StreamReports.Report(error=str(error) or type(error).__name__)
            version = _version(described)
            if version == wanted.since:
                return pb.StreamReports.Report(version=version)
            return pb.StreamReports.Report(version=version, description=described)

        total_bytes = 0

        async def fitting(wanted: pb.StreamReportsRequest.Wanted) -> pb.StreamReports.Report | None:
            nonlocal total_bytes
            if request.mayEnd and total_bytes > limits.STREAM_REPORTS_MAX_BYTES:
                return None  # the answer has no room for it
            one = await report(wanted)
            total_bytes += one.ByteSize()
            return one

        # They begin in their order, so those without a report are the last ones.
        made = [one for one in await gather_bounded(request.streams, fitting) if one is not None]
        return pb.StreamReports(reports=_fitting(made) if request.mayEnd else made)

    async def claim_stream(self, request: pb.ClaimStreamRequest, call: Call) -> pb.OwnedStreamStatus:
        """Replace the expected owner by the requested one. Succeeds when the requested owner is stored already."""
        if len(request.owner) > limits.STREAM_OWNER_MAX_LENGTH:
            raise BadRequestError(
                f"owner has {len(request.owner)} characters, at most {limits.STREAM_OWNER_MAX_LENGTH} are allowed"
            )
        try:
            await self._claim(_key(request), request.incarnation, request.expected, request.owner)
        except NoSuchStreamError:
            return _Status(status=_Status.STREAM_NOT_FOUND)
        except NotTheOwnerError as error:
            return _Status(status=_Status.NOT_THE_OWNER, owner=error.owner)
        return _Status(status=_Status.SUCCESS)

    async def _claim(self, key: StreamKey, incarnation: int, expected: str, owner: str) -> None:
        def decide(found: StreamRecord | None, _: Snapshot) -> Change[None]:
            root = require(found, key)
            if root.incarnation != incarnation:
                raise NoSuchStreamError(f"stream {key} was deleted and created again")
            if root.owner == owner:
                return Change(None)
            if root.owner != expected:
                raise NotTheOwnerError(str(key), root.owner)
            return Change(None, {key.root: msgspec.structs.replace(root, owner=owner)})

        await self._core.context.store.change(key, (), decide)

    async def delete_owned_stream(self, request: pb.DeleteOwnedStreamRequest, call: Call) -> pb.OwnedStreamStatus:
        """Seal and delete a stream, and reply when it is gone. Continues the deletion of an earlier call."""
        if not request.owner:
            raise BadRequestError("owner is empty")
        try:
            key = _key(request)
            root = await self._core.streams.load(key)
            # Sealing may wait for the lease of a transaction, so each decision compares the owner again.
            await self._core.streams.seal(key, root.incarnation, request.owner)
            await self._core.streams.delete(key, root.incarnation, request.owner)
        except NoSuchStreamError:
            return _Status(status=_Status.STREAM_NOT_FOUND)
        except NotTheOwnerError as error:
            return _Status(status=_Status.NOT_THE_OWNER, owner=error.owner)
        return _Status(status=_Status.SUCCESS)

    async def get_subscriber_cut(self, request: pb.SubscriberCutRequest, call: Call) -> pb.SubscriberCut:
        """Return the position that a reader group published for a stream."""
        answer = pb.SubscriberCut
        try:
            found = await subscriber(self._core.context, _key(request), request.subscriber)
        except NoSuchStreamError:
            return answer(status=answer.STREAM_NOT_FOUND)
        if found is None:
            return answer(status=answer.SUBSCRIBER_NOT_FOUND)
        return answer(status=answer.SUCCESS, cut=positions(found.cut or {}))


def _fitting(reports: Sequence[pb.StreamReports.Report]) -> Sequence[pb.StreamReports.Report]:
    """Return the first reports, as many as one message may have, but one at least."""
    total_bytes = 0
    for count, one in enumerate(reports):
        total_bytes += one.ByteSize()
        if count and total_bytes > limits.STREAM_REPORTS_MAX_BYTES:
            return reports[:count]
    return reports


def _version(described: pb.StreamDescription) -> int:
    """Return a number that descriptions share which differ at most in the time of their rates; never 0.

    Others hardly ever share it. A stream whose rates stay as they are has no new report with each look at them.
    """
    measured_ms = described.rates.measuredMs  # reading it creates no field
    if measured_ms:
        described.rates.measuredMs = 0
    digest = hashlib.blake2b(described.SerializeToString(deterministic=True), digest_size=8).digest()
    if measured_ms:
        described.rates.measuredMs = measured_ms
    return int.from_bytes(digest, "big") or 1


def _key(request: _Request) -> StreamKey:
    return key_of(controller_pb2.StreamInfo(scope=request.scope, stream=request.stream))
