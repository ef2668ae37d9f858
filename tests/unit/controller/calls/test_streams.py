"""Streams through the calls: create, configure, truncate, seal, delete, list."""

from __future__ import annotations

from typing import Any

import pytest

from tailrace.common.errors import BadRequestError, NoSuchStreamError, NotAllowedError
from tailrace.common.names import segment_id
from tailrace.rpc import controller_pb2 as pb

S = "scope/stream/"


async def test_created_stream_has_equal_segments_a_mark_stream_and_its_configuration(api: Any, world: Any) -> None:
    policy = pb.ScalingPolicy(
        scaleType=pb.ScalingPolicy.BY_RATE_IN_KBYTES_PER_SEC, targetRate=10, scaleFactor=2, minNumSegments=3
    )
    await api.call("createScope", pb.ScopeInfo(scope="scope"))
    config = pb.StreamConfig(
        streamInfo=api.info,
        scalingPolicy=policy,
        retentionPolicy=pb.RetentionPolicy(retentionType=pb.RetentionPolicy.TIME, retentionParam=5, retentionMax=9),
        tags=pb.Tags(tag=["b", "a"]),
        timestampAggregationTimeout=7,
        rolloverSizeBytes=8,
    )
    assert (await api.call("createStream", config)).status == pb.CreateStreamStatus.SUCCESS
    found = await api.call("getCurrentSegments", api.info)
    assert [(r.segmentId.segmentId, r.minKey) for r in found.segmentRanges] == [(0, 0.0), (1, 1 / 3), (2, 2 / 3)]
    assert found.segmentRanges[-1].maxKey == 1.0
    assert world.segments.names("scope/") == ["scope/_MARKstream/0.#epoch.0"] + [f"{S}{n}.#epoch.0" for n in range(3)]
    made = world.segments.segments[f"{S}1.#epoch.0"]
    assert (made.scale_type, made.target_rate, made.rollover_bytes) == (1, 10, 8)
    stored = await api.call("getStreamConfiguration", api.info)
    config.tags.CopyFrom(pb.Tags(tag=["a", "b"]))
    assert stored == config


async def test_creation_answers_what_is_wrong(api: Any) -> None:
    status = pb.CreateStreamStatus
    assert (await api.call("createStream", api.config())).status == status.SCOPE_NOT_FOUND
    await api.setup()
    assert (await api.call("createStream", api.config())).status == status.STREAM_EXISTS
    bad = pb.StreamConfig(streamInfo=pb.StreamInfo(scope="scope", stream="a b"))
    assert (await api.call("createStream", bad)).status == status.INVALID_STREAM_NAME
    with pytest.raises(BadRequestError, match="minNumSegments is 0"):
        await api.call("createStream", api.config(0))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"scalingPolicy": pb.ScalingPolicy(minNumSegments=-1)}, "minNumSegments"),
        ({"scalingPolicy": pb.ScalingPolicy(minNumSegments=1, targetRate=-5)}, "targetRate is -5"),
        ({"scalingPolicy": pb.ScalingPolicy(minNumSegments=1, scaleFactor=-5)}, "scaleFactor is -5"),
        (
            {"scalingPolicy": pb.ScalingPolicy(scaleType=pb.ScalingPolicy.BY_RATE_IN_EVENTS_PER_SEC, minNumSegments=1)},
            "targetRate",
        ),
        (
            {"retentionPolicy": pb.RetentionPolicy(retentionType=pb.RetentionPolicy.SIZE, retentionParam=-1)},
            "retentionParam",
        ),
        (
            {
                "retentionPolicy": pb.RetentionPolicy(
                    retentionType=pb.RetentionPolicy.TIME, retentionParam=9, retentionMax=5
                )
            },
            "retentionMax",
        ),
        ({"tags": pb.Tags(tag=["x" * 256])}, "tag of 256"),
        ({"tags": pb.Tags(tag=[str(n) for n in range(128)])}, "128 tags"),
        ({"timestampAggregationTimeout": -1}, "timestampAggregationTimeout"),
        ({"rolloverSizeBytes": -1}, "rolloverSizeBytes"),
    ],
)
async def test_unsound_configurations_are_refused_by_field(api: Any, fields: dict[str, Any], message: str) -> None:
    await api.setup()
    config = api.config()
    config.MergeFrom(pb.StreamConfig(**fields))
    with pytest.raises(BadRequestError, match=message):
        await api.call("updateStream", config)


async def test_clients_create_nothing_in_the_servers_own_scope(api: Any) -> None:
    api.scope = "_system"
    group = pb.ReaderGroupConfiguration(scope="_system", readerGroupName="group")
    table = pb.KeyValueTableConfig(scope="_system", kvtName="table", partitionCount=1, primaryKeyLength=4)
    requests = {"createStream": api.config(), "createReaderGroup": group, "createKeyValueTable": table}
    for rpc, request in requests.items():
        with pytest.raises(NotAllowedError, match="_system is internal"):
            await api.call(rpc, request)


@pytest.mark.parametrize("name", [".", "..", "..."])
async def test_names_that_paths_give_another_meaning(api: Any, name: str) -> None:
    status = pb.CreateStreamStatus
    created = await api.call("createScope", pb.ScopeInfo(scope=name))
    assert created.status == pb.CreateScopeStatus.INVALID_SCOPE_NAME
    await api.setup()
    api.stream = name
    assert (await api.call("createStream", api.config())).status == status.INVALID_STREAM_NAME
    api.stream = "a..b."
    assert (await api.call("createStream", api.config())).status == status.SUCCESS


async def test_missing_streams_are_not_found(api: Any) -> None:
    for rpc in ("getCurrentSegments", "getStreamConfiguration"):
        with pytest.raises(NoSuchStreamError):
            await api.call(rpc, api.info)
    assert (await api.call("sealStream", api.info)).status == pb.UpdateStreamStatus.STREAM_NOT_FOUND
    assert (await api.call("deleteStream", api.info)).status == pb.DeleteStreamStatus.STREAM_NOT_FOUND
    assert (await api.call("updateStream", api.config())).status == pb.UpdateStreamStatus.STREAM_NOT_FOUND
    assert not (await api.call("checkStreamExists", api.info)).exists


@pytest.mark.parametrize(
    ("scope", "stream"), [("scope", "stream/e/0/0"), ("scope/stream", "s"), ("", ""), ("s", "x" * 9000)]
)
async def test_names_that_no_stream_has_are_not_found(api: Any, scope: str, stream: str) -> None:
    await api.setup()
    info = pb.StreamInfo(scope=scope, stream=stream)
    with pytest.raises(NoSuchStreamError):
        await api.call("getCurrentSegments", info)
    config = pb.StreamConfig(streamInfo=info, scalingPolicy=pb.ScalingPolicy(minNumSegments=1))
    assert (await api.call("createStream", config)).status != pb.CreateStreamStatus.SUCCESS


async def test_truncation_before_what_is_gone_fails(api: Any, world: Any) -> None:
    await api.setup(1)
    first, second = await api.scaled([0], [(0.0, 0.5), (0.5, 1.0)])
    await api.call("truncateStream", pb.StreamCut(streamInfo=api.info, cut={first: 0, second: 0}))
    answer = await api.call("truncateStream", pb.StreamCut(streamInfo=api.info, cut={0: 0}))
    assert answer.status == pb.UpdateStreamStatus.FAILURE


async def test_update_replaces_configuration_and_tags(api: Any, world: Any) -> None:
    await api.setup(tags=pb.Tags(tag=["old"]))
    await api.call("updateStream", api.config(tags=pb.Tags(tag=["new"])))
    scope = pb.ScopeInfo(scope="scope")
    by_old = await api.call("listStreamsInScopeForTag", pb.StreamsInScopeWithTagRequest(scope=scope, tag="old"))
    by_new = await api.call("listStreamsInScopeForTag", pb.StreamsInScopeWithTagRequest(scope=scope, tag="new"))
    assert list(by_old.streams) == []
    assert [item.stream for item in by_new.streams] == ["stream"]
    assert (await api.call("getStreamConfiguration", api.info)).tags.tag == ["new"]


async def test_update_to_another_fixed_count_scales_inside(api: Any, world: Any) -> None:
    await api.setup(1)
    world.segments.append(f"{S}0.#epoch.0", b"12345")
    assert (await api.call("updateStream", api.config(3))).status == pb.UpdateStreamStatus.SUCCESS
    assert await api.current() == [segment_id(number, 1) for number in (1, 2, 3)]
    assert world.segments.segments[f"{S}0.#epoch.0"].sealed
    assert (await api.call("updateStream", api.config(2))).status == pb.UpdateStreamStatus.SUCCESS
    assert await api.current() == [segment_id(number, 2) for number in (4, 5)]


async def test_update_to_a_rate_policy_scales_only_up_to_the_minimum(api: Any) -> None:
    await api.setup(2)
    config = api.config()
    config.scalingPolicy.CopyFrom(
        pb.ScalingPolicy(
            scaleType=pb.ScalingPolicy.BY_RATE_IN_EVENTS_PER_SEC, targetRate=5, scaleFactor=2, minNumSegments=2
        )
    )
    await api.call("updateStream", config)
    assert await api.current() == [0, 1]
    config.scalingPolicy.minNumSegments = 3
    await api.call("updateStream", config)
    assert await api.current() == [segment_id(number, 1) for number in (2, 3, 4)]


async def test_truncation_moves_the_head_and_deletes_what_lies_before(api: Any, world: Any) -> None:
    await api.setup(1)
    world.segments.append(f"{S}0.#epoch.0", b"0123456789")
    first, second = await api.scaled([0], [(0.0, 0.5), (0.5, 1.0)])
    world.segments.append(f"{S}1.#epoch.1", b"abc")
    cut = pb.StreamCut(streamInfo=api.info, cut={first: 2, second: 0})
    assert (await api.call("truncateStream", cut)).status == pb.UpdateStreamStatus.SUCCESS
    head = await api.call("getSegments", pb.GetSegmentsRequest(streamInfo=api.info))
    assert {item.segmentId.segmentId: item.offset for item in head.segments} == {first: 2, second: 0}
    assert f"{S}0.#epoch.0" not in world.segments.segments
    assert world.segments.segments[f"{S}1.#epoch.1"].start_offset == 2
    assert (await api.call("truncateStream", cut)).status == pb.UpdateStreamStatus.SUCCESS


@pytest.mark.parametrize("cut", [{}, {0: 1}, {7: 0}, {0: 1, 1: -1}, {0: 11, 1: 0}, {0: -2, 1: 0}])
async def test_truncation_at_what_is_no_position_fails(api: Any, world: Any, cut: dict[int, int]) -> None:
    await api.setup(2)
    world.segments.append(f"{S}0.#epoch.0", b"0123456789")
    answer = await api.call("truncateStream", pb.StreamCut(streamInfo=api.info, cut=cut))
    assert answer.status == pb.UpdateStreamStatus.FAILURE
    assert not (await api.call("isStreamCutValid", pb.StreamCut(streamInfo=api.info, cut={0: 1}))).response


async def test_truncation_never_goes_back(api: Any, world: Any) -> None:
    await api.setup(1)
    world.segments.append(f"{S}0.#epoch.0", b"0123456789")
    for offset, expected in ((5, "SUCCESS"), (4, "FAILURE"), (5, "SUCCESS"), (6, "SUCCESS")):
        answer = await api.call("truncateStream", pb.StreamCut(streamInfo=api.info, cut={0: offset}))
        assert pb.UpdateStreamStatus.Status.Name(answer.status) == expected


async def test_the_head_is_the_later_of_record_and_segment_start(api: Any, world: Any) -> None:
    await api.setup(1)
    world.segments.append(f"{S}0.#epoch.0", b"0123456789")
    await world.segments.truncate_segment(f"{S}0.#epoch.0", 7)  # as a byte stream does
    head = await api.call("getSegments", pb.GetSegmentsRequest(streamInfo=api.info))
    assert [item.offset for item in head.segments] == [7]
    answer = await api.call("truncateStream", pb.StreamCut(streamInfo=api.info, cut={0: 3}))
    assert answer.status == pb.UpdateStreamStatus.SUCCESS
    assert world.segments.segments[f"{S}0.#epoch.0"].start_offset == 7


async def test_sealed_streams_take_nothing_but_deletion(api: Any, world: Any) -> None:
    await api.setup(2)
    assert (await api.call("deleteStream", api.info)).status == pb.DeleteStreamStatus.STREAM_NOT_SEALED
    for _ in range(2):
        assert (await api.call("sealStream", api.info)).status == pb.UpdateStreamStatus.SUCCESS
    assert await api.current() == []
    assert (await api.call("updateStream", api.config())).status == pb.UpdateStreamStatus.STREAM_SEALED
    truncated = await api.call("truncateStream", pb.StreamCut(streamInfo=api.info, cut={0: 0, 1: 0}))
    assert truncated.status == pb.UpdateStreamStatus.STREAM_SEALED
    assert (await api.scale([0], [(0.0, 0.5)])).status == pb.ScaleResponse.FAILURE
    assert all(world.segments.segments[name].sealed for name in world.segments.names(S))
    head = await api.call("getSegments", pb.GetSegmentsRequest(streamInfo=api.info))
    assert len(head.segments) == 2
    assert (await api.call("deleteStream", api.info)).status == pb.DeleteStreamStatus.SUCCESS
    assert world.segments.names("scope/") == []


async def test_numbers_go_on_when_a_stream_is_created_again(api: Any, world: Any) -> None:
    await api.setup(2)
    await api.scaled([0], [(0.0, 0.5)])
    await api.call("sealStream", api.info)
    await api.call("deleteStream", api.info)
    await api.setup(2)
    assert await api.current() == [3, 4]
    assert (await api.call("getEpochSegments", pb.GetEpochSegmentsRequest(streamInfo=api.info, epoch=0))).segmentRanges


async def test_scopes_list_their_streams_page_by_page(api: Any) -> None:
    await api.setup()
    scope = pb.ScopeInfo(scope="scope")
    page = await api.call("listStreamsInScope", pb.StreamsInScopeRequest(scope=scope))
    assert sorted(item.stream for item in page.streams) == ["_MARKstream", "stream"]
    assert page.continuationToken.token
    following = await api.call(
        "listStreamsInScope", pb.StreamsInScopeRequest(scope=scope, continuationToken=page.continuationToken)
    )
    assert list(following.streams) == []
    missing = await api.call("listStreamsInScope", pb.StreamsInScopeRequest(scope=pb.ScopeInfo(scope="none")))
    assert missing.status == pb.StreamsInScopeResponse.SCOPE_NOT_FOUND
    with pytest.raises(BadRequestError, match="continuationToken"):
        await api.call(
            "listStreamsInScope",
            pb.StreamsInScopeRequest(scope=scope, continuationToken=pb.ContinuationToken(token="??")),
        )


@pytest.mark.parametrize(("sole", "reads"), [(True, 0), (False, 2)], ids=["alone", "beside others"])
async def test_a_creation_reads_what_others_may_have_changed_and_nothing_twice(
    sole: bool, reads: int, world: Any, make_api: Any, counting: Any
) -> None:
    """Each call costs processor time of the controller and of a segment store."""
    # Its heartbeats, periodic looks and the end of idle workers call, too, so there are none meanwhile.
    periods = {"beat_s": 3600.0, "look_s": 3600.0, "lapse_s": 7200.0, "rescan_s": 3600.0, "watermark_period_s": 3600.0}
    periods["idle_s"] = 3600.0
    api = make_api(await world.start(counting, sole=sole, **periods))
    await api.setup(4)
    api.stream = "other"
    counting.calls.clear()
    assert (await api.call("createStream", api.config(4))).status == pb.CreateStreamStatus.SUCCESS
    print(f"calls of one creation: {counting.calls}")
    assert counting.calls["create_segment"] == 4 + 1, "with the mark stream"
    assert counting.calls["put"] == 5, "mark of pending work, root, entries, the mark stream's root, root"
    assert counting.calls["get"] == reads, "scope and root, when both streams are listed"
