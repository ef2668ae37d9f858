"""Calls of the operator: description, sizes, claims, deletion by the owner alone (ADR 0014)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tailrace.client.retry import Attempts, with_retries
from tailrace.common import limits
from tailrace.common.errors import BadRequestError, UnavailableError, WrongHostError
from tailrace.common.real_ports import SystemEntropy
from tailrace.controller.managers.sizes import sealed_bytes
from tailrace.controller.metadata.epochs import (
    epoch_span,
    first_epoch,
    new_segments,
    next_epoch,
    segments_of,
    wholly_before,
)
from tailrace.controller.metadata.model import StreamSegment
from tailrace.controller.metadata.records import SealedRecord
from tailrace.rpc import controller_pb2
from tailrace.rpc import operator_pb2 as pb

STATUS = pb.OwnedStreamStatus
DEADLINE_S = 120.0


async def describe(api: Any, *, sizes: bool = True) -> pb.StreamDescription:
    """Return the present description of the stream."""
    request = pb.DescribeStreamRequest(scope=api.scope, stream=api.stream, sizes=sizes)
    found: pb.StreamDescription = await api.call("describeStream", request)
    return found


async def claim(api: Any, owner: str, expected: str = "", incarnation: int = 0) -> pb.OwnedStreamStatus:
    """Ask for the stream."""
    request = pb.ClaimStreamRequest(
        scope=api.scope, stream=api.stream, incarnation=incarnation, expected=expected, owner=owner
    )
    found: pb.OwnedStreamStatus = await api.call("claimStream", request)
    return found


async def delete(api: Any, owner: str) -> pb.OwnedStreamStatus:
    """Delete as that owner."""
    request = pb.DeleteOwnedStreamRequest(scope=api.scope, stream=api.stream, owner=owner)
    found: pb.OwnedStreamStatus = await api.call("deleteOwnedStream", request)
    return found


def segment(api: Any, identifier: int) -> str:
    """Name of a segment."""
    return f"{api.scope}/{api.stream}/{identifier & 0xFFFFFFFF}.#epoch.{identifier >> 32}"


async def test_a_stream_is_described(api: Any) -> None:
    assert (await describe(api)).status == pb.StreamDescription.STREAM_NOT_FOUND
    await api.setup(2, tags=controller_pb2.Tags(tag=["blue"]))
    found = await describe(api)
    assert (found.status, found.owner, found.incarnation, found.state) == (0, "", 0, "active")
    assert (found.epoch, found.segments, found.headBytes, found.tailBytes) == (0, 2, 0, 0)
    assert list(found.config.tags.tag) == ["blue"]


async def test_when_a_stream_with_a_policy_was_created_is_described(world: Any, api: Any) -> None:
    created_ms = world.clock.ms
    await api.setup(
        retentionPolicy=controller_pb2.RetentionPolicy(
            retentionType=controller_pb2.RetentionPolicy.SIZE, retentionParam=10
        )
    )
    world.clock.ms += 3_600_000
    found = (await describe(api)).retention
    assert (found.createdMs, found.appliedMs) == (created_ms, 0)


async def test_the_last_scale_is_described(world: Any, api: Any) -> None:
    await api.setup(3)
    assert not (await describe(api)).HasField("lastScale")
    world.clock.ms += 1000
    begun = await api.begin()
    scaled_ms = world.clock.ms
    await api.scaled([0, 1, 2], [(0.0, 1 / 6), (1 / 6, 1 / 3), (1 / 3, 1.0)])
    expected = pb.LastScale(scaledMs=scaled_ms, splits=1, merges=1, reason="Manual")
    assert (await describe(api, sizes=False)).lastScale == expected
    world.clock.ms += 1000
    await api.call("commitTransaction", controller_pb2.TxnRequest(streamInfo=api.info, txnId=begun.txnId))
    await api.until_state(begun.txnId, controller_pb2.TxnState.COMMITTED)
    found = await describe(api)
    assert found.epoch > 1, "the commit made copies of the segments"
    assert found.lastScale == expected, "which is no scale"


async def test_sizes_follow_writes_scales_and_truncations(world: Any, api: Any) -> None:
    await api.setup(1)
    (first,) = await api.current()
    world.segments.append(segment(api, first), bytes(100))
    low, high = await api.scaled([first], [(0.0, 0.5), (0.5, 1.0)])
    world.segments.append(segment(api, low), bytes(30))
    world.segments.append(segment(api, high), bytes(4))
    found = await describe(api)
    assert (found.epoch, found.segments, found.headBytes, found.tailBytes) == (1, 2, 0, 134)

    async def truncate(cut: dict[int, int]) -> None:
        request = controller_pb2.StreamCut(streamInfo=api.info, cut=cut)
        assert (await api.call("truncateStream", request)).status == controller_pb2.UpdateStreamStatus.SUCCESS

    await truncate({first: 60})
    assert (await describe(api)).headBytes == 60
    await truncate({low: 10, high: 2})
    found = await describe(api)
    assert (found.headBytes, found.tailBytes) == (112, 134)
    (merged,) = await api.scaled([low, high], [(0.0, 1.0)])
    world.segments.append(segment(api, merged), bytes(6))
    found = await describe(api)
    assert (found.headBytes, found.tailBytes) == (112, 140)
    await truncate({merged: 1})
    assert (await describe(api)).headBytes == 135
    assert (await describe(api, sizes=False)).tailBytes == 0
    await api.call("sealStream", api.info)
    found = await describe(api)
    assert (found.state, found.headBytes, found.tailBytes) == ("sealed", 135, 140)


async def test_bytes_that_a_segment_dropped_by_itself_are_counted(world: Any, api: Any) -> None:
    await api.setup(1)
    (only,) = await api.current()
    world.segments.append(segment(api, only), bytes(50))
    await world.segments.truncate_segment(segment(api, only), 20)
    found = await describe(api)
    assert (found.headBytes, found.tailBytes) == (20, 50)


def head_bytes(cut: dict[int, int], segments: dict[int, StreamSegment], sealed: list[SealedRecord]) -> int:
    """The bytes before a cut."""
    gone = {each.identifier for each in wholly_before(cut, segments)}
    return sum(cut.values()) + sealed_bytes(sealed, epoch_span(cut)[0], gone)


def test_a_cut_over_several_epochs_counts_only_what_lies_before_it() -> None:
    """Epoch 0 has 0 and 1; 0 is split in epoch 1, 1 in epoch 2. The cut has the halves of 0, and 1 itself."""
    zero = first_epoch(2, 0, 0)
    left, right = (one.identifier for one in zero.segments)
    quarter = [one.key_range._replace(high=0.25) for one in zero.segments[:1]]
    halves = new_segments([*quarter, quarter[0]._replace(low=0.25, high=0.5)], 2, 1)
    one = next_epoch(zero, [left], halves, 0)
    parts = new_segments([quarter[0]._replace(low=0.5, high=0.75), quarter[0]._replace(low=0.75, high=1.0)], 4, 2)
    two = next_epoch(one, [right], parts, 0)
    sealed = [SealedRecord(1, 0, {left: 1000}, 1000), SealedRecord(2, 0, {right: 70}, 1070)]
    segments = segments_of([zero, one, two])
    cut = {halves[0].identifier: 5, halves[1].identifier: 6, right: 7}
    assert head_bytes(cut, segments, sealed) == 1018
    later = {halves[0].identifier: 5, halves[1].identifier: 6, parts[0].identifier: 1, parts[1].identifier: 2}
    assert head_bytes(later, segments_of([one, two]), sealed) == 1000 + 70 + 14


async def test_a_claim_needs_the_owner_that_it_expects(api: Any) -> None:
    assert (await claim(api, "me")).status == STATUS.STREAM_NOT_FOUND
    await api.setup()
    assert (await claim(api, "me")).status == STATUS.SUCCESS
    assert (await claim(api, "me")).status == STATUS.SUCCESS
    refused = await claim(api, "you")
    assert (refused.status, refused.owner) == (STATUS.NOT_THE_OWNER, "me")
    assert (await claim(api, "you", expected="me")).status == STATUS.SUCCESS
    assert (await claim(api, "you", incarnation=7)).status == STATUS.STREAM_NOT_FOUND
    assert (await describe(api)).owner == "you"
    with pytest.raises(BadRequestError):
        await claim(api, "x" * 2000, expected="you")


async def test_an_owner_survives_changes_of_the_stream_and_restarts_but_not_its_deletion(world: Any, api: Any) -> None:
    await api.setup()
    await claim(api, "me")
    await api.call("updateStream", api.config(2, tags=controller_pb2.Tags(tag=["new"])))
    again = type(api)(await world.start())
    assert (await describe(again)).owner == "me"
    await api.call("sealStream", api.info)
    await api.call("deleteStream", api.info)
    await api.call("createStream", api.config())
    found = await describe(api)
    assert (found.owner, found.incarnation) == ("", 1)
    assert (await claim(api, "me", incarnation=0)).status == STATUS.STREAM_NOT_FOUND


async def test_only_the_owner_deletes(api: Any) -> None:
    assert (await delete(api, "me")).status == STATUS.STREAM_NOT_FOUND
    await api.setup()
    assert (await delete(api, "me")).status == STATUS.NOT_THE_OWNER
    with pytest.raises(BadRequestError):
        await delete(api, "")
    await claim(api, "me")
    refused = await delete(api, "you")
    assert (refused.status, refused.owner) == (STATUS.NOT_THE_OWNER, "me")
    assert (await describe(api)).state == "active"
    assert (await delete(api, "me")).status == STATUS.SUCCESS
    assert (await delete(api, "me")).status == STATUS.STREAM_NOT_FOUND
    assert (await describe(api)).status == pb.StreamDescription.STREAM_NOT_FOUND


async def test_an_interrupted_deletion_continues(
    world: Any, api: Any, make_api: Any, make_crash: Any, wait_until: Any
) -> None:
    await api.setup()
    await claim(api, "me")
    crash = make_crash()
    doomed = make_api(await world.start(crash, blocking_deadline_s=0.1))
    deletion = asyncio.create_task(delete(doomed, "me"))

    async def sealing() -> bool:
        return (await describe(api, sizes=False)).state == "sealing"

    await wait_until(sealing)
    crash.crashed = True
    with pytest.raises(UnavailableError):
        await deletion
    assert (await describe(api)).state in ("sealing", "sealed"), "its segments may be sealed already"
    assert (await delete(api, "me")).status == STATUS.SUCCESS
    assert (await describe(api)).status == pb.StreamDescription.STREAM_NOT_FOUND


class Between:
    """Does something before the n-th call to a store; for `World.start` in a crash's place."""

    def __init__(self, at_call: int, act: Any) -> None:
        self.left = at_call
        self.act = act

    def wrap(self, target: Any) -> Any:
        """The store with it in front."""
        return Acting(target, self)


class Acting:
    """A store."""

    def __init__(self, target: Any, between: Between) -> None:
        self._target = target
        self._between = between

    def __getattr__(self, name: str) -> Any:
        async def call(*args: Any, **keywords: Any) -> Any:
            self._between.left -= 1
            if self._between.left == 0:
                await self._between.act()
            return await getattr(self._target, name)(*args, **keywords)

        return call


async def test_a_stream_that_changes_hands_while_it_is_deleted_is_not_the_deletion_s_any_more(
    world: Any, make_api: Any
) -> None:
    """At whichever call of the deletion to a store another one claims it."""
    other = make_api(await world.start())
    seen: list[str] = []
    for at_call in range(1, 60):
        between = Between(10**9, None)
        slow = make_api(await world.start(between))
        await other.setup()
        incarnation = (await describe(other)).incarnation
        await claim(other, "me", incarnation=incarnation)
        outcome: list[Any] = []

        async def take(outcome: list[Any] = outcome, incarnation: int = incarnation) -> None:
            state = (await describe(other, sizes=False)).state
            outcome += [state, (await claim(other, "you", expected="me", incarnation=incarnation)).status]

        between.act, between.left = take, at_call
        deleted = (await delete(slow, "me")).status
        state, claimed = outcome or ("gone", STATUS.STREAM_NOT_FOUND)
        found = await describe(other, sizes=False)
        seen.append(state)
        if state == "active" and claimed == STATUS.SUCCESS:
            assert (deleted, found.state) == (STATUS.NOT_THE_OWNER, "active"), at_call
        elif state in ("sealing", "sealed") and claimed == STATUS.SUCCESS:
            assert (deleted, found.owner) == (STATUS.NOT_THE_OWNER, "you"), at_call
        if found.status == pb.StreamDescription.SUCCESS:
            assert (await delete(other, "you")).status == STATUS.SUCCESS
        await slow.controller.close()
    assert {"active", "sealing", "sealed", "gone"} <= set(seen)


async def test_the_cut_of_a_subscriber_is_returned(api: Any) -> None:
    request = pb.SubscriberCutRequest(scope=api.scope, stream=api.stream, subscriber=f"{api.scope}/g")
    assert (await api.call("getSubscriberCut", request)).status == pb.SubscriberCut.STREAM_NOT_FOUND
    await api.setup()
    assert (await api.call("getSubscriberCut", request)).status == pb.SubscriberCut.SUBSCRIBER_NOT_FOUND
    config = controller_pb2.ReaderGroupConfiguration(
        scope=api.scope,
        readerGroupName="g",
        retentionType=1,
        startingStreamCuts=[controller_pb2.StreamCut(streamInfo=api.info)],
    )
    made = (await api.call("createReaderGroup", config)).config
    found = await api.call("getSubscriberCut", request)
    assert (found.status, dict(found.cut)) == (pb.SubscriberCut.SUCCESS, {})
    (only,) = await api.current()
    cut = controller_pb2.StreamCut(streamInfo=api.info, cut={only: 0})
    await api.call(
        "updateSubscriberStreamCut",
        controller_pb2.SubscriberStreamCut(
            subscriber=f"{api.scope}/g", generation=0, readerGroupId=made.readerGroupId, streamCut=cut
        ),
    )
    assert dict((await api.call("getSubscriberCut", request)).cut) == {only: 0}


async def reports(api: Any, *wanted: tuple[str, int], may_end: bool = False) -> list[pb.StreamReports.Report]:
    """Reports of streams of the scope, each with the version that the caller has."""
    streams = [pb.StreamReportsRequest.Wanted(scope=api.scope, stream=name, since=since) for name, since in wanted]
    found: pb.StreamReports = await api.call("streamReports", pb.StreamReportsRequest(streams=streams, mayEnd=may_end))
    return list(found.reports)


async def test_many_streams_are_described_at_once(world: Any, api: Any) -> None:
    await api.setup(2)
    world.segments.append(segment(api, (await api.current())[0]), bytes(30))
    first, missing = await reports(api, (api.stream, 0), ("missing", 0))
    assert first.description == await describe(api)
    assert first.description.tailBytes == 30
    assert missing.description.status == pb.StreamDescription.STREAM_NOT_FOUND
    (again,) = await reports(api, (api.stream, first.version))
    assert (again.version, again.HasField("description")) == (first.version, False)
    world.segments.append(segment(api, (await api.current())[0]), bytes(1))
    (changed,) = await reports(api, (api.stream, first.version))
    assert changed.version != first.version
    assert changed.description.tailBytes == 31


async def test_a_stream_that_cannot_be_described_keeps_no_other_from_it(
    api: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await api.setup(1)
    owners = api.controller.services.owners
    describe_stream = owners.describe_stream

    async def away(request: pb.DescribeStreamRequest, call: Any) -> pb.StreamDescription:
        if request.stream == "away":
            raise UnavailableError("container 3 is moving")
        described: pb.StreamDescription = await describe_stream(request, call)
        return described

    monkeypatch.setattr(owners, "describe_stream", away)
    gone, found = await reports(api, ("away", 0), (api.stream, 0))
    assert (gone.error, gone.HasField("description")) == ("container 3 is moving", False)
    assert found.description.segments == 1
    with pytest.raises(BadRequestError, match="at most 500"):
        await reports(api, *((f"s{number}", 0) for number in range(501)))


async def test_a_stream_whose_container_is_not_open_delays_no_other_for_long(
    world: Any, make_api: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request to such a container is repeated: the whole call once took RPC_REQUESTS_DEADLINE_S each time."""
    monkeypatch.setattr(limits, "STREAM_REPORT_REQUEST_DEADLINE_S", 0.2)
    controller = await world.start(requests_deadline_s=3600.0)
    well, sick = (make_api(controller, stream=name) for name in ("well", "sick"))
    await well.setup(2)
    await sick.setup(2)
    stalled, segment_info = segment(sick, 0), world.segments.segment_info

    async def repeated(name: str) -> Any:
        async def request(_: Attempts) -> Any:
            if name == stalled:
                raise WrongHostError("container 3 is not open")
            return await segment_info(name)

        return await with_retries(request, SystemEntropy(), 3600.0)

    monkeypatch.setattr(world.segments, "segment_info", repeated)
    async with asyncio.timeout(DEADLINE_S):
        gone, found = await reports(well, ("sick", 0), ("well", 0))
    assert (gone.error, gone.HasField("description")) == ("container 3 is not open", False)
    assert (found.error, found.description.segments) == ("", 2)


async def test_an_answer_ends_where_it_would_be_too_long(api: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    await api.setup(1)
    (one,) = await reports(api, (api.stream, 0))
    described: list[str] = []
    describe_stream = api.controller.services.owners.describe_stream

    async def counted(request: pb.DescribeStreamRequest, call: Any) -> Any:
        described.append(request.stream)
        return await describe_stream(request, call)

    monkeypatch.setattr(api.controller.services.owners, "describe_stream", counted)
    monkeypatch.setattr(limits, "SEGMENT_CALLS_CONCURRENT_MAX", 3)
    monkeypatch.setattr(limits, "STREAM_REPORTS_MAX_BYTES", 2 * one.ByteSize())
    assert len(await reports(api, *[(api.stream, 0)] * 9, may_end=True)) == 2
    assert len(described) <= 5, "most of those behind the end are not described"
    assert len(await reports(api, *[(api.stream, one.version)] * 9, may_end=True)) == 9, "without descriptions"
    assert len(await reports(api, *[(api.stream, 0)] * 9)) == 9, "a caller of an earlier version wants all"
    monkeypatch.setattr(limits, "STREAM_REPORTS_MAX_BYTES", 1)
    assert await reports(api, *[(api.stream, 0)] * 9, may_end=True) == [one], "one at least"


async def test_a_report_of_the_most_subscribers_fits_into_an_answer() -> None:
    name = f"{'s' * limits.SCOPE_NAME_MAX_LENGTH}/{'g' * limits.STREAM_NAME_MAX_LENGTH}"
    most = 2**63 - 1
    one = pb.Holder(subscriber=name, hasPosition=True, unreadBytes=most, lostBytes=most, publishedMs=most)
    one.unreadBeforeMs = most
    found = pb.Retention(holders=[one] * limits.SUBSCRIBERS_PER_STREAM_MAX)
    rates = pb.SegmentRates(perSecond={number << 32: 1.5 for number in range(limits.STREAM_SEGMENTS_MAX)})
    report = pb.StreamReports.Report(description=pb.StreamDescription(retention=found, rates=rates))
    assert report.ByteSize() < limits.STREAM_REPORTS_MAX_BYTES
