"""The REST interface over a running controller."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from tailrace.common import limits
from tailrace.common.errors import NotFoundError, UnavailableError
from tailrace.controller.metadata.changes import Change
from tailrace.controller.metadata.model import Epoch, StreamSegment
from tailrace.controller.metadata.ports import UNCONDITIONAL, Put
from tailrace.controller.metadata.records import StreamRecord, encode
from tailrace.controller.metadata.stream_store import StreamKey
from tailrace.controller.rest import groups
from tailrace.controller.rest.app import create_app
from tailrace.rpc import controller_pb2 as pb

PAGE = Path(__file__).resolve().parents[4] / "docs/operations/observe.md"
DEADLINE_S = 120.0
FIXED = {"type": "FIXED_NUM_SEGMENTS", "minSegments": 1}


@pytest.fixture
async def rest(controller: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the application."""
    transport = httpx.ASGITransport(app=create_app(controller))
    async with httpx.AsyncClient(transport=transport, base_url="http://controller") as client:
        yield client


async def make_stream(rest: httpx.AsyncClient, **fields: Any) -> httpx.Response:
    await rest.post("/v1/scopes", json={"scopeName": "scope"})
    body = {"streamName": "stream", "scalingPolicy": FIXED, **fields}
    return await rest.post("/v1/scopes/scope/streams", json=body)


async def test_scopes(rest: httpx.AsyncClient) -> None:
    assert (await rest.get("/v1/scopes/scope")).status_code == 404
    assert (await rest.post("/v1/scopes", json={"scopeName": "_x"})).status_code == 400
    created = await rest.post("/v1/scopes", json={"scopeName": "scope"})
    assert (created.status_code, created.json()) == (201, {"scopeName": "scope"})
    assert (await rest.post("/v1/scopes", json={"scopeName": "scope"})).status_code == 409
    assert (await rest.get("/v1/scopes")).json() == {"scopes": [{"scopeName": "_system"}, {"scopeName": "scope"}]}
    assert (await rest.get("/v1/scopes/scope")).json() == {"scopeName": "scope"}
    await make_stream(rest)
    assert (await rest.delete("/v1/scopes/scope")).status_code == 412
    assert (await rest.delete("/v1/scopes/none")).status_code == 404


async def test_life_of_a_stream(rest: httpx.AsyncClient) -> None:
    made = await make_stream(rest, streamTags=["t"], rolloverSizeBytes=5)
    assert made.status_code == 201
    expected = {
        "scopeName": "scope",
        "streamName": "stream",
        "scalingPolicy": {
            "type": "FIXED_NUM_SEGMENTS",
            "targetRate": None,
            "scaleFactor": None,
            "minSegments": 1,
        },
        "retentionPolicy": None,
        "tags": ["t"],
        "timestampAggregationTimeout": 0,
        "rolloverSizeBytes": 5,
    }
    assert made.json() == expected
    path = "/v1/scopes/scope/streams"
    assert (await make_stream(rest)).status_code == 409
    assert (await rest.get(f"{path}/stream")).json() == expected
    changed = await rest.put(f"{path}/stream", json={"scalingPolicy": FIXED, "streamTags": ["u"]})
    assert changed.json()["tags"] == ["u"]
    assert (await rest.delete(f"{path}/stream")).status_code == 412
    assert (await rest.put(f"{path}/stream/state", json={"streamState": "OPEN"})).status_code == 400
    sealed = await rest.put(f"{path}/stream/state", json={"streamState": "SEALED"})
    assert (sealed.status_code, sealed.json()) == (200, {"streamState": "SEALED"})
    assert (await rest.put(f"{path}/stream", json={"scalingPolicy": FIXED})).status_code == 500
    assert (await rest.delete(f"{path}/stream")).status_code == 204
    assert (await rest.get(f"{path}/stream")).status_code == 404
    assert (await rest.delete(f"{path}/stream")).status_code == 404


async def test_streams_that_cannot_be(rest: httpx.AsyncClient) -> None:
    assert (await make_stream(rest, streamName="_internal")).status_code == 400
    refused = await make_stream(rest, scalingPolicy={"type": "FIXED_NUM_SEGMENTS", "minSegments": 0})
    assert refused.status_code == 400
    assert "minNumSegments" in refused.json()["detail"]
    missing = await rest.post("/v1/scopes/none/streams", json={"streamName": "s", "scalingPolicy": FIXED})
    assert missing.status_code == 404


async def test_internal_streams_are_shown_and_not_changed(rest: httpx.AsyncClient) -> None:
    """Sealed, a mark stream would take no more watermarks of its stream."""
    await make_stream(rest)
    path = "/v1/scopes/scope/streams/_MARKstream"
    before = await rest.get(path)
    assert before.status_code == 200
    refused = [
        await rest.put(path, json={"scalingPolicy": {**FIXED, "minSegments": 2}}),
        await rest.put(f"{path}/state", json={"streamState": "SEALED"}),
        await rest.delete(path),
    ]
    assert [answer.status_code for answer in refused] == [400] * 3
    assert all("stream name '_MARKstream'" in answer.json()["detail"] for answer in refused)
    assert (await rest.get(path)).json() == before.json()


async def test_a_list_that_is_cut_says_so(rest: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    await make_stream(rest)
    paths = ["/v1/scopes", "/v1/scopes/scope/streams", "/v1/scopes/scope/readergroups"]  # two names each: one internal

    async def cut() -> list[str | None]:
        return [(await rest.get(path)).headers.get("tailrace-list-cut") for path in paths]

    monkeypatch.setattr(limits, "LIST_PAGE_ENTRIES_MAX", 1)
    monkeypatch.setattr(limits, "REST_PAGE_ENTRIES_MAX", 2)
    assert await cut() == [None] * 3
    monkeypatch.setattr(limits, "REST_PAGE_ENTRIES_MAX", 1)
    assert await cut() == ["1"] * 3


async def test_lists_filter(rest: httpx.AsyncClient) -> None:
    await make_stream(rest, streamTags=["t"])
    path = "/v1/scopes/scope/streams"

    async def listed(**query: str) -> list[str]:
        return [item["streamName"] for item in (await rest.get(path, params=query)).json()["streams"]]

    assert await listed() == ["stream"]
    assert await listed(filter_type="showInternalStreams") == ["_MARKstream"]
    assert await listed(filter_type="tag", filter_value="t") == ["stream"]
    assert await listed(filter_type="tag", filter_value="x") == []
    assert (await rest.get("/v1/scopes/none/streams")).status_code == 404


@pytest.mark.parametrize(
    ("policy", "answer"),
    [
        ({"type": "LIMITED_SIZE_MB", "value": 3, "maxValue": 9}, {"value": 3, "maxValue": 9}),
        ({"type": "LIMITED_DAYS", "value": 2}, {"value": 2, "maxValue": None}),
        (
            {"type": "LIMITED_DAYS", "value": 0, "timeBasedRetention": {"days": 1, "hours": 2, "minutes": 3}},
            {"value": 0, "timeBasedRetention": {"days": 1, "hours": 2, "minutes": 3}},
        ),
        (
            {"type": "LIMITED_DAYS", "value": 1, "maxTimeBasedRetention": {"days": 1, "hours": 1}},
            {"value": 1, "maxTimeBasedRetention": {"days": 1, "hours": 1, "minutes": 0}},
        ),
    ],
)
async def test_retention_policies(rest: httpx.AsyncClient, policy: dict[str, Any], answer: dict[str, Any]) -> None:
    stored = (await make_stream(rest, retentionPolicy=policy)).json()["retentionPolicy"]
    assert {name: stored[name] for name in answer} == answer
    assert stored["type"] == policy["type"]


@pytest.mark.parametrize(
    ("kind", "least", "most", "shown"),
    [
        (pb.RetentionPolicy.SIZE, 900_000, 2**20 + 1, {"value": 1, "maxValue": 2}),
        (pb.RetentionPolicy.TIME, 1, 0, {"value": 0, "timeBasedRetention": {"days": 0, "hours": 0, "minutes": 1}}),
        (pb.RetentionPolicy.TIME, 86_399_999, 2**63 - 1, {"value": 1, "timeBasedRetention": None}),
    ],
)
async def test_a_policy_that_is_shown_and_put_back_keeps_no_less(
    rest: httpx.AsyncClient, api: Any, kind: Any, least: int, most: int, shown: dict[str, Any]
) -> None:
    await api.setup(1, retentionPolicy=pb.RetentionPolicy(retentionType=kind, retentionParam=least, retentionMax=most))
    path = "/v1/scopes/scope/streams/stream"
    found = (await rest.get(path)).json()
    assert {name: found["retentionPolicy"][name] for name in shown} == shown
    body = {"scalingPolicy": FIXED, "streamTags": ["new"], "retentionPolicy": found["retentionPolicy"]}
    assert (await rest.put(path, json=body)).status_code == 200
    stored = (await api.call("getStreamConfiguration", api.info)).retentionPolicy
    assert stored.retentionParam >= least


async def test_a_look_at_a_group_waits_no_longer_than_its_deadline_for_others(
    controller: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "REST_GROUP_REPORTS_MAX", 1)
    monkeypatch.setattr(limits, "REST_GROUP_REPORT_DEADLINE_S", 0.2)
    looking = 0

    async def waits(*_: Any) -> None:
        nonlocal looking
        looking += 1
        await asyncio.Event().wait()

    monkeypatch.setattr(groups, "_describe", waits)
    transport = httpx.ASGITransport(app=create_app(controller))
    async with httpx.AsyncClient(transport=transport, base_url="http://controller") as client:
        asked = [client.get("/v1/scopes/scope/readergroups/group") for _ in range(10)]
        answers = await asyncio.gather(*asked)
    assert {answer.status_code for answer in answers} == {503}
    assert looking < 10, "those that waited ended with their own deadline"


async def test_scaling_events(rest: httpx.AsyncClient, api: Any, world: Any) -> None:
    await make_stream(rest)
    begin_ms = world.clock.ms
    world.clock.ms += 1000
    await api.scaled([0], [(0.0, 0.5), (0.5, 1.0)])
    world.clock.ms += 1000
    path = "/v1/scopes/scope/streams/stream/scaling-events"
    both = (await rest.get(path, params={"from": begin_ms + 500, "to": world.clock.ms})).json()
    assert [(item["timestamp"], item["splits"], len(item["segmentList"])) for item in both] == [
        (begin_ms, 0, 1),
        (begin_ms + 1000, 1, 2),
    ]
    assert both[1]["segmentList"][0] == {"number": 1, "startTime": begin_ms + 1000, "keyStart": 0.0, "keyEnd": 0.5}
    for query in ({}, {"from": 1}, {"from": -1, "to": 5}, {"from": 5, "to": 1}):
        assert (await rest.get(path, params=query)).status_code == 400


async def test_scaling_events_of_a_stream_with_many_segments(rest: httpx.AsyncClient, world: Any, api: Any) -> None:
    """Two epochs each have one time, as those that a commit adds which rolls over a scale."""
    await make_stream(rest)
    key, epochs, wide = StreamKey("scope", "stream"), 100, 1000
    store = api.controller.services.core.context.store
    begin_ms = (await store.active_epoch(key, await store.load(key))).created_ms
    bounds = [number / wide for number in range(wide + 1)]
    segments = tuple(StreamSegment(number, *bound) for number, bound in enumerate(itertools.pairwise(bounds)))
    for number in range(1, epochs):
        stored = encode(Epoch(number, begin_ms + (number + 1) // 2, segments, splits=number))
        await world.metadata.put(key.table, [Put(key.epoch(0, number), stored, UNCONDITIONAL)])

    def decide(root: StreamRecord | None, _: Any) -> Change[None]:
        assert root is not None
        return Change(None, {key.root: msgspec.structs.replace(root, active_epoch=epochs - 1)})

    await store.change(key, (), decide)
    path = "/v1/scopes/scope/streams/stream/scaling-events"
    found: list[dict[str, Any]] = []
    until_ms = begin_ms + epochs
    while not found or found[0]["timestamp"] > begin_ms:
        page = (await rest.get(path, params={"from": 0, "to": until_ms})).json()
        segments_in_page = sum(len(item["segmentList"]) for item in page)
        assert 0 < segments_in_page <= limits.HISTORY_SEGMENTS_PER_REPLY_MAX + wide
        found = [*page, *found]
        until_ms = page[0]["timestamp"] - 1
    assert [item["splits"] for item in found] == list(range(epochs))
    assert found[-1]["segmentList"][1] == {
        "number": 1,
        "startTime": begin_ms + epochs // 2,
        "keyStart": 0.001,
        "keyEnd": 0.002,
    }


async def test_reader_groups(rest: httpx.AsyncClient, api: Any) -> None:
    await make_stream(rest)
    await api.call("createReaderGroup", pb.ReaderGroupConfiguration(scope="scope", readerGroupName="group"))
    path = "/v1/scopes/scope/readergroups"
    assert (await rest.get(path)).json() == {"readerGroups": [{"readerGroupName": "group"}]}
    assert (await rest.delete(f"{path}/group")).status_code == 204
    assert (await rest.delete(f"{path}/group")).status_code == 404
    assert (await rest.get(path)).json() == {"readerGroups": []}
    assert (await rest.get("/v1/scopes/none/readergroups")).status_code == 404
    assert (await rest.get(f"{path}/not%20allowed")).status_code == 404  # `tests/cli` asks for those that can exist


async def test_health_and_metrics(rest: httpx.AsyncClient) -> None:
    assert (await rest.get("/ping")).content == b""
    health = (await rest.get("/v1/health")).json()
    assert (health["name"], health["status"], health["readiness"]) == ("controller", "UP", True)
    assert (await rest.get("/v1/health/readiness")).json() is True
    assert (await rest.get("/v1/health/liveness")).json() is True
    assert (await rest.get("/v1/health/status")).json() == {"status": "UP"}
    assert (await rest.get("/v1/health/details/workflows")).json()["details"]["activeStreams"] == "0"
    assert (await rest.get("/v1/health/grpc")).json()["status"] == "STARTING"
    assert (await rest.get("/v1/health/readiness/grpc")).json() is False
    assert (await rest.get("/v1/health/nothing")).status_code == 404
    metrics = (await rest.get("/prometheus")).text
    assert "tailrace_controller_ready 1.0" in metrics
    assert "process_resident_memory_bytes " in metrics


async def test_metrics_have_the_same_path_as_elsewhere(rest: httpx.AsyncClient) -> None:
    answers = [await rest.get(path) for path in ("/metrics", "/prometheus")]
    assert [answer.status_code for answer in answers] == [200, 200]
    assert answers[0].headers["content-type"] == answers[1].headers["content-type"]
    first, second = (figures(answer.text).keys() for answer in answers)
    assert first == second
    assert "tailrace_controller_ready" in first


async def test_every_metric_is_described(rest: httpx.AsyncClient) -> None:
    page = PAGE.read_text().partition("Metrics of a controller")[2].partition("Metrics of a container")[0]
    rows = [row.split(" | ")[0] for row in page.splitlines() if row.startswith("| `")]
    described = {name for row in rows for name in re.findall(r"`([a-z0-9_]+)(?:\{[^`]*\})?`", row)}
    found = re.findall(r"^# TYPE tailrace_controller_(\w+)", (await rest.get("/metrics")).text, re.MULTILINE)
    assert sorted(found) == sorted(described)


def figures(text: str) -> dict[str, float]:
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in text.splitlines() if line[0] != "#"}


async def scraped(rest: httpx.AsyncClient) -> dict[str, float]:
    return figures((await rest.get("/prometheus")).text)


async def test_calls_are_counted(rest: httpx.AsyncClient, api: Any) -> None:
    await make_stream(rest)
    await api.call("getCurrentSegments", pb.StreamInfo(scope="scope", stream="stream"))
    with pytest.raises(NotFoundError):
        await api.call("getCurrentSegments", pb.StreamInfo(scope="none", stream="stream"))
    found = await scraped(rest)
    assert found['tailrace_controller_calls_total{call="getCurrentSegments",code="OK"}'] == 1
    assert found['tailrace_controller_calls_total{call="getCurrentSegments",code="NOT_FOUND"}'] == 1
    assert found['tailrace_controller_call_seconds_count{call="getCurrentSegments"}'] == 2
    assert found['tailrace_controller_call_seconds_bucket{call="getCurrentSegments",le="+Inf"}'] == 2
    assert "tailrace_controller_call_seconds_sum" in " ".join(found)


async def test_what_workflows_do_is_shown(rest: httpx.AsyncClient, api: Any, world: Any) -> None:
    await make_stream(rest)
    info = pb.StreamInfo(scope="scope", stream="stream")
    before = await scraped(rest)
    assert before["tailrace_controller_failed_steps_total"] == 0
    assert before["tailrace_controller_oldest_work_seconds"] == 0
    await api.call("createTransaction", pb.CreateTxnRequest(streamInfo=info, lease=30_000))
    await until(rest, lambda found: found["tailrace_controller_open_transactions"] == 1)
    assert (await scraped(rest))["tailrace_controller_oldest_work_seconds"] == 0, "it waits for its client"
    truncate = world.segments.truncate_segment

    async def refuse(*_: Any) -> None:
        raise UnavailableError("the container is away")

    world.segments.truncate_segment = refuse
    cut = pb.StreamCut(streamInfo=info, cut={0: 0})
    truncating = asyncio.create_task(api.call("truncateStream", cut))
    await until(rest, lambda found: found["tailrace_controller_failed_steps_total"] > 0)
    assert (await scraped(rest))["tailrace_controller_oldest_work_seconds"] > 0
    world.segments.truncate_segment = truncate
    await truncating
    await until(rest, lambda found: found["tailrace_controller_oldest_work_seconds"] == 0)


async def until(rest: httpx.AsyncClient, holds: Callable[[dict[str, float]], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not holds(await scraped(rest)):  # noqa: ASYNC110  # a scrape has no event
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    "fields",
    [
        {"scalingPolicy": {"type": "FIXED_NUM_SEGMENTS", "minSegments": 2**31}},
        {"scalingPolicy": {"type": "BY_RATE_IN_EVENTS_PER_SEC", "minSegments": 1, "targetRate": -(2**40)}},
        {"rolloverSizeBytes": 2**63},
        {"timestampAggregationTimeout": 2**70},
        {"retentionPolicy": {"type": "LIMITED_SIZE_MB", "value": 2**60}},
        {"retentionPolicy": {"type": "LIMITED_DAYS", "value": -(2**40)}},
        {"retentionPolicy": {"type": "LIMITED_DAYS", "timeBasedRetention": {"days": 2**62, "hours": 2**62}}},
        {"retentionPolicy": {"type": "LIMITED_SIZE_MB"}},
        {"retentionPolicy": {"type": "LIMITED_DAYS", "maxValue": 7}},
        {"streamTags": ["\ud800"]},
    ],
)
async def test_values_that_no_message_can_hold_are_the_callers_fault(
    rest: httpx.AsyncClient, fields: dict[str, Any]
) -> None:
    await make_stream(rest)
    for method, path in (("POST", "/v1/scopes/scope/streams"), ("PUT", "/v1/scopes/scope/streams/stream")):
        body = json.dumps({"streamName": "other", "scalingPolicy": FIXED, **fields})
        refused = await rest.request(method, path, content=body, headers={"content-type": "application/json"})
        assert refused.status_code == 400, refused.text
        assert "detail" in refused.json()


@pytest.mark.parametrize("body", ["{", '{"scopeName": NaN}', '{"scopeName": ["secret"]}', "[]", "", "\ufeff{}"])
async def test_bodies_that_are_no_request_are_refused_without_being_repeated(
    rest: httpx.AsyncClient, body: str
) -> None:
    refused = await rest.post("/v1/scopes", content=body.encode(), headers={"content-type": "application/json"})
    assert refused.status_code == 400
    assert "secret" not in refused.text


@pytest.mark.parametrize(
    ("method", "path"), [("POST", "/v1/scopes/scope/streams"), ("PUT", "/v1/scopes/scope/streams/stream")]
)
async def test_a_body_with_many_mistakes_is_answered_with_the_first(
    rest: httpx.AsyncClient, method: str, path: str
) -> None:
    """A mistake in the answer is fifty times as long as in the body, and a body has room for 500,000."""
    await make_stream(rest)
    body = {"streamName": "other", "scalingPolicy": FIXED, "streamTags": [0] * 1000}
    refused = await rest.request(method, path, json=body)
    assert refused.status_code == 400
    assert [mistake["loc"] for mistake in refused.json()["detail"]] == [["body", "streamTags", 0]]
