"""Reader groups with subscribers, key-value tables, scopes, and writers' times through the calls."""

from __future__ import annotations

from typing import Any

import pytest

from tailrace.common import limits
from tailrace.common.errors import BadRequestError, NotAllowedError, OverloadedError
from tailrace.common.names import qualified_segment_name, segment_id
from tailrace.controller.metadata.stream_store import StreamKey
from tailrace.rpc import controller_pb2 as pb

GROUP_ID = "11111111-2222-3333-4444-555555555555"


def group(**fields: Any) -> pb.ReaderGroupConfiguration:
    return pb.ReaderGroupConfiguration(
        **{
            "scope": "scope",
            "readerGroupName": "group",
            "groupRefreshTimeMillis": 3000,
            "automaticCheckpointIntervalMillis": -1,
            "maxOutstandingCheckpointRequest": 3,
            "retentionType": 2,
            "readerGroupId": GROUP_ID,
            "startingStreamCuts": [pb.StreamCut(streamInfo=pb.StreamInfo(scope="scope", stream="stream"), cut={0: 0})],
            "endingStreamCuts": [pb.StreamCut(streamInfo=pb.StreamInfo(scope="scope", stream="stream"))],
            "rolloverSizeBytes": 4,
            **fields,
        }
    )


MANY_CUTS = [pb.StreamCut(streamInfo=pb.StreamInfo(scope="scope", stream="stream"))] * (
    limits.STREAMS_PER_READER_GROUP_MAX + 1
)
MANY_SEGMENTS = [
    pb.StreamCut(
        streamInfo=pb.StreamInfo(scope="scope", stream="stream"),
        cut=dict.fromkeys(range(limits.STREAM_SEGMENTS_MAX + 1), 0),
    )
]


@pytest.mark.parametrize("cuts", [MANY_CUTS, MANY_SEGMENTS], ids=["streams", "segments"])
@pytest.mark.parametrize("field", ["startingStreamCuts", "endingStreamCuts"])
async def test_a_group_has_cuts_of_so_many_streams_and_segments(api: Any, field: str, cuts: list[pb.StreamCut]) -> None:
    await api.setup()
    with pytest.raises(BadRequestError, match="are allowed"):
        await api.call("createReaderGroup", group(**{field: cuts}))


async def test_a_group_gets_its_state_stream_and_its_configuration_back_unchanged(api: Any, world: Any) -> None:
    await api.setup()
    created = await api.call("createReaderGroup", group())
    assert created.status == pb.CreateReaderGroupResponse.SUCCESS
    assert created.config == group()
    assert "scope/_RGgroup/0.#epoch.0" in world.segments.segments
    assert "scope/_MARK_RGgroup/0.#epoch.0" in world.segments.segments
    assert world.segments.segments["scope/_RGgroup/0.#epoch.0"].rollover_bytes == 4
    again = await api.call("createReaderGroup", group(groupRefreshTimeMillis=1))
    assert again.config == group()
    info = pb.ReaderGroupInfo(scope="scope", readerGroup="group")
    assert (await api.call("getReaderGroupConfig", info)).config == group()
    assert (await api.call("listSubscribers", api.info)).subscribers == ["scope/group"]


async def test_groups_that_cannot_be(api: Any) -> None:
    answer = pb.CreateReaderGroupResponse
    assert (await api.call("createReaderGroup", group())).status == answer.SCOPE_NOT_FOUND
    await api.setup()
    assert (await api.call("createReaderGroup", group(readerGroupName="_x"))).status == answer.INVALID_RG_NAME
    with pytest.raises(BadRequestError, match="readerGroupId"):
        await api.call("createReaderGroup", group(readerGroupId="x"))
    with pytest.raises(BadRequestError, match="retentionType"):
        await api.call("createReaderGroup", group(retentionType=7))


@pytest.mark.parametrize("group_id", ["", "00000000-0000-0000-0000-000000000000"])
async def test_a_group_without_an_id_gets_one(api: Any, group_id: str) -> None:
    await api.setup()
    created = await api.call("createReaderGroup", group(readerGroupId=group_id))
    assert created.config.readerGroupId not in ("", group_id)


async def test_update_needs_the_stored_generation_and_id(api: Any) -> None:
    await api.setup()
    await api.call("createReaderGroup", group())
    answer = pb.UpdateReaderGroupResponse
    assert (await api.call("updateReaderGroup", group(generation=1))).status == answer.INVALID_CONFIG
    other = group(readerGroupId=GROUP_ID.replace("1", "9"))
    assert (await api.call("updateReaderGroup", other)).status == answer.INVALID_CONFIG
    updated = await api.call("updateReaderGroup", group(retentionType=0))
    assert (updated.status, updated.generation) == (answer.SUCCESS, 1)
    assert (await api.call("listSubscribers", api.info)).subscribers == []
    missing = await api.call("updateReaderGroup", group(readerGroupName="none"))
    assert missing.status == answer.RG_NOT_FOUND


async def test_deletion_needs_the_id(api: Any, world: Any) -> None:
    await api.setup()
    await api.call("createReaderGroup", group())
    info = pb.ReaderGroupInfo(scope="scope", readerGroup="group", readerGroupId="other")
    answer = pb.DeleteReaderGroupStatus
    assert (await api.call("deleteReaderGroup", info)).status == answer.RG_NOT_FOUND
    info.readerGroupId = GROUP_ID
    assert (await api.call("deleteReaderGroup", info)).status == answer.SUCCESS
    assert (await api.call("deleteReaderGroup", info)).status == answer.RG_NOT_FOUND
    assert not world.segments.names("scope/_RG")
    assert (await api.call("listSubscribers", api.info)).subscribers == []
    found = await api.call("getReaderGroupConfig", info)
    assert found.status == pb.ReaderGroupConfigResponse.RG_NOT_FOUND


async def test_published_cuts_are_checked(api: Any) -> None:
    await api.setup(2)
    await api.call("createReaderGroup", group())
    status = pb.UpdateSubscriberStatus

    async def publish(cut: dict[int, int], **fields: Any) -> int:
        request = pb.SubscriberStreamCut(
            **{
                "subscriber": "scope/group",
                "readerGroupId": GROUP_ID,
                "streamCut": pb.StreamCut(streamInfo=api.info, cut=cut),
                **fields,
            }
        )
        return int((await api.call("updateSubscriberStreamCut", request)).status)

    assert await publish({0: 5, 1: 5}) == status.SUCCESS
    assert await publish({0: 4, 1: 9}) == status.STREAM_CUT_NOT_VALID
    assert await publish({0: 6}) == status.STREAM_CUT_NOT_VALID
    assert await publish({}) == status.STREAM_CUT_NOT_VALID
    for unknown in (7, segment_id(2, 0), segment_id(2, 1), -1, 2**63 - 1):
        assert await publish({0: 6, 1: 6, unknown: 0}) == status.STREAM_CUT_NOT_VALID, unknown
    assert await publish({7: 6, 8: 6}) == status.STREAM_CUT_NOT_VALID
    found = await api.call("listSubscribers", api.info)
    assert found.subscribers == ["scope/group"]
    assert await publish({0: 6, 1: 6}, generation=1) == status.GENERATION_MISMATCH
    assert await publish({0: 6, 1: 6}, readerGroupId="x") == status.SUBSCRIBER_NOT_FOUND
    assert await publish({0: 6, 1: 6}, subscriber="scope/none") == status.SUBSCRIBER_NOT_FOUND
    assert await publish({0: 6, 1: 6}) == status.SUCCESS
    api.stream = "none"
    assert await publish({0: 6, 1: 6}) == status.STREAM_NOT_FOUND


# ---- key-value tables


def table(**fields: Any) -> pb.KeyValueTableConfig:
    return pb.KeyValueTableConfig(
        **{
            "scope": "scope",
            "kvtName": "table",
            "partitionCount": 2,
            "primaryKeyLength": 4,
            "secondaryKeyLength": 3,
            "rolloverSizeBytes": 9,
            **fields,
        }
    )


TABLE = pb.KeyValueTableInfo(scope="scope", kvtName="table")


async def test_life_of_a_table(api: Any, world: Any) -> None:
    status = pb.CreateKeyValueTableStatus
    assert (await api.call("createKeyValueTable", table())).status == status.SCOPE_NOT_FOUND
    await api.call("createScope", pb.ScopeInfo(scope="scope"))
    assert (await api.call("createKeyValueTable", table())).status == status.SUCCESS
    assert (await api.call("createKeyValueTable", table())).status == status.TABLE_EXISTS
    assert (await api.call("createKeyValueTable", table(kvtName="a b"))).status == status.INVALID_TABLE_NAME
    names = world.segments.names("scope/table_kvtable")
    assert [name.partition(".")[0] for name in names] == ["scope/table_kvtable/0", "scope/table_kvtable/1"]
    assert world.segments.segments[names[0]].key_length == 7
    assert (await api.call("getKeyValueTableConfiguration", TABLE)).config == table()
    ranges = (await api.call("getCurrentSegmentsKeyValueTable", TABLE)).segmentRanges
    assert [(r.segmentId.streamInfo.stream, r.minKey, r.maxKey) for r in ranges] == [
        ("table", 0.0, 0.5),
        ("table", 0.5, 1.0),
    ]
    own = [qualified_segment_name("scope", "table_kvtable", r.segmentId.segmentId) for r in ranges]
    assert own == names
    scope = pb.KVTablesInScopeRequest(scope=pb.ScopeInfo(scope="scope"))
    assert [item.kvtName for item in (await api.call("listKeyValueTablesInScope", scope)).kvtables] == ["table"]
    assert (await api.call("deleteKeyValueTable", TABLE)).status == pb.DeleteKVTableStatus.SUCCESS
    assert (await api.call("deleteKeyValueTable", TABLE)).status == pb.DeleteKVTableStatus.TABLE_NOT_FOUND
    assert not world.segments.names("scope/")
    assert (await api.call("createKeyValueTable", table())).status == status.SUCCESS
    assert not set(world.segments.names("scope/table_kvtable")) & set(names), "names of deleted segments come again"
    assert (await api.call("deleteKeyValueTable", TABLE)).status == pb.DeleteKVTableStatus.SUCCESS
    found = await api.call("getKeyValueTableConfiguration", TABLE)
    assert found.status == pb.KeyValueTableConfigResponse.TABLE_NOT_FOUND


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"partitionCount": 0}, "partitionCount"),
        ({"primaryKeyLength": 0}, "primaryKeyLength"),
        ({"secondaryKeyLength": -1}, "secondaryKeyLength"),
        ({"primaryKeyLength": 256}, "259 together"),
    ],
)
async def test_tables_that_cannot_be(api: Any, fields: dict[str, int], message: str) -> None:
    await api.call("createScope", pb.ScopeInfo(scope="scope"))
    with pytest.raises(BadRequestError, match=message):
        await api.call("createKeyValueTable", table(**fields))


# ---- scopes

SCOPE = pb.ScopeInfo(scope="scope")


async def test_life_of_a_scope(api: Any) -> None:
    created, deleted = pb.CreateScopeStatus, pb.DeleteScopeStatus
    assert (await api.call("createScope", SCOPE)).status == created.SUCCESS
    assert (await api.call("createScope", SCOPE)).status == created.SCOPE_EXISTS
    assert (await api.call("createScope", pb.ScopeInfo(scope="a/b"))).status == created.INVALID_SCOPE_NAME
    assert (await api.call("checkScopeExists", SCOPE)).exists
    assert (await api.call("deleteScope", SCOPE)).status == deleted.SUCCESS
    assert (await api.call("deleteScope", SCOPE)).status == deleted.SCOPE_NOT_FOUND
    assert not (await api.call("checkScopeExists", SCOPE)).exists
    with pytest.raises(NotAllowedError):
        await api.call("deleteScope", pb.ScopeInfo(scope="_system"))


async def test_scopes_in_use_are_deleted_only_with_everything(api: Any, world: Any) -> None:
    await api.setup()
    await api.begin()
    await api.call("createReaderGroup", group())
    await api.call("createKeyValueTable", table())
    assert (await api.call("deleteScope", SCOPE)).status == pb.DeleteScopeStatus.SCOPE_NOT_EMPTY
    assert (await api.call("createStream", api.config())).status == pb.CreateStreamStatus.STREAM_EXISTS
    assert (await api.call("deleteScopeRecursive", SCOPE)).status == pb.DeleteScopeStatus.SUCCESS
    assert world.segments.names("scope/") == []
    assert (await api.call("deleteScopeRecursive", SCOPE)).status == pb.DeleteScopeStatus.SCOPE_NOT_FOUND


async def test_scopes_are_listed_page_by_page(api: Any) -> None:
    for number in range(30):
        await api.call("createScope", pb.ScopeInfo(scope=f"scope-{number}"))
    names: list[str] = []
    token = pb.ContinuationToken()
    while True:
        page = await api.call("listScopes", pb.ScopesRequest(continuationToken=token))
        if not page.scopes:
            break
        names.extend(page.scopes)
        token = page.continuationToken
    assert sorted(names) == sorted(["_system", *(f"scope-{number}" for number in range(30))])


# ---- writers' times


async def test_times_and_positions_never_go_back(api: Any) -> None:
    await api.setup(2)
    answer = pb.TimestampResponse

    async def note(timestamp: int, position: dict[int, int], writer: str = "writer") -> int:
        cut = pb.StreamCut(streamInfo=api.info, cut=position)
        request = pb.TimestampFromWriter(writer=writer, timestamp=timestamp, position=cut)
        return int((await api.call("noteTimestampFromWriter", request)).result)

    assert await note(10, {0: 5}) == answer.SUCCESS
    assert await note(9, {0: 6}) == answer.INVALID_TIME
    assert await note(11, {0: 4}) == answer.INVALID_POSITION
    assert await note(11, {9: 4}) == answer.INVALID_POSITION
    assert await note(11, {}) == answer.INVALID_POSITION
    assert await note(11, {0: 6, 1: 1}) == answer.SUCCESS
    assert await note(1, {0: 0}, "other") == answer.SUCCESS
    first, _ = await api.scaled([0], [(0.0, 0.5)])
    assert first == segment_id(2, 1)
    assert await note(12, {first: 0, 1: 1}) == answer.SUCCESS
    assert await note(13, {0: 9, 1: 1}) == answer.INVALID_POSITION
    with pytest.raises(BadRequestError, match="writer name"):
        await note(1, {0: 0}, "a b")


async def test_a_writer_renews_its_time_without_a_change_of_the_root(api: Any, world: Any) -> None:
    await api.setup()
    key = StreamKey("scope", "stream")

    async def note(writer: str, timestamp: int) -> int:
        """Note a time; return the version of the root afterwards."""
        cut = pb.StreamCut(streamInfo=api.info, cut={0: timestamp})
        request = pb.TimestampFromWriter(writer=writer, timestamp=timestamp, position=cut)
        assert (await api.call("noteTimestampFromWriter", request)).result == pb.TimestampResponse.SUCCESS
        (root,) = await world.metadata.get(key.table, [key.root])
        return int(root.version)

    first = await note("a", 1)
    second = await note("b", 1)
    assert second > first, "the root lists another writer"
    assert [await note("a", 2), await note("b", 2), await note("a", 3)] == [second] * 3


async def test_a_full_stream_forgets_writers_that_left(api: Any, world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "WRITER_MARKS_PER_STREAM_MAX", 3)
    await api.setup()

    async def note(writer: str, timestamp: int = 1) -> int:
        cut = pb.StreamCut(streamInfo=api.info, cut={0: 0})
        request = pb.TimestampFromWriter(writer=writer, timestamp=timestamp, position=cut)
        return int((await api.call("noteTimestampFromWriter", request)).result)

    for writer in ("a", "b", "c"):
        assert await note(writer) == pb.TimestampResponse.SUCCESS
    with pytest.raises(OverloadedError, match="3 writers"):
        await note("d")
    await api.call("removeWriter", pb.RemoveWriterRequest(writer="b", stream=api.info))
    assert await note("d") == pb.TimestampResponse.SUCCESS
    with pytest.raises(OverloadedError, match="3 writers"):
        await note("e")
    world.clock.ms += limits.WRITER_MARK_IDLE_MAX_MS
    assert await note("c", 2) == pb.TimestampResponse.SUCCESS
    world.clock.ms += 1
    assert await note("e") == pb.TimestampResponse.SUCCESS, "a and d are silent for longer"
    assert await note("c", 1) == pb.TimestampResponse.INVALID_TIME, "c stays"


async def test_a_full_stream_forgets_writers_that_a_clock_ahead_noted(
    api: Any, world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clock that is ahead by no more than the time that a writer may be silent makes no writer look gone."""
    monkeypatch.setattr(limits, "WRITER_MARKS_PER_STREAM_MAX", 1)
    await api.setup()

    async def note(writer: str) -> int:
        cut = pb.StreamCut(streamInfo=api.info, cut={0: 0})
        request = pb.TimestampFromWriter(writer=writer, timestamp=1, position=cut)
        return int((await api.call("noteTimestampFromWriter", request)).result)

    world.clock.ms += limits.WRITER_MARK_IDLE_MAX_MS + 1
    assert await note("a") == pb.TimestampResponse.SUCCESS
    world.clock.ms -= limits.WRITER_MARK_IDLE_MAX_MS
    with pytest.raises(OverloadedError, match="1 writers"):
        await note("b")
    world.clock.ms -= 1
    assert await note("b") == pb.TimestampResponse.SUCCESS


async def test_a_commit_never_moves_the_time_of_its_writer_back(api: Any) -> None:
    await api.setup()
    cut = pb.StreamCut(streamInfo=api.info, cut={0: 0})

    async def note(timestamp: int) -> int:
        request = pb.TimestampFromWriter(writer="writer", timestamp=timestamp, position=cut)
        return int((await api.call("noteTimestampFromWriter", request)).result)

    assert await note(10) == pb.TimestampResponse.SUCCESS
    begun = await api.begin()
    await api.commit(begun.txnId, writerId="writer", timestamp=5)
    await api.until_state(begun.txnId, pb.TxnState.COMMITTED)
    assert await note(9) == pb.TimestampResponse.INVALID_TIME


async def test_writers_are_removed(api: Any) -> None:
    await api.setup()
    answer = pb.RemoveWriterResponse
    request = pb.RemoveWriterRequest(writer="writer", stream=api.info)
    assert (await api.call("removeWriter", request)).result == answer.UNKNOWN_WRITER
    cut = pb.StreamCut(streamInfo=api.info, cut={0: 0})
    await api.call("noteTimestampFromWriter", pb.TimestampFromWriter(writer="writer", timestamp=1, position=cut))
    assert (await api.call("removeWriter", request)).result == answer.SUCCESS
    api.stream = "none"
    missing = await api.call("removeWriter", pb.RemoveWriterRequest(writer="writer", stream=api.info))
    assert missing.result == answer.STREAM_DOES_NOT_EXIST


async def test_a_commit_with_a_time_notes_it(api: Any, world: Any) -> None:
    await api.setup()
    begun = await api.begin()
    world.segments.append(world.segments.names("scope/stream/0.#epoch.0#")[0], b"12345")
    await api.commit(begun.txnId, writerId="writer", timestamp=10)
    await api.until_state(begun.txnId, pb.TxnState.COMMITTED)
    cut = pb.StreamCut(streamInfo=api.info, cut={0: 4})
    noted = await api.call(
        "noteTimestampFromWriter", pb.TimestampFromWriter(writer="writer", timestamp=11, position=cut)
    )
    assert noted.result == pb.TimestampResponse.INVALID_POSITION
