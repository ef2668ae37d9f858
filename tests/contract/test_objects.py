"""The operator's port to objects of any kind, over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from kubernetes import client

from harness.apiserver import NAMESPACE, ApiServer, api_server
from tailrace.cluster.kubernetes import STREAM_CLUSTERS, Manifest
from tailrace.common import limits
from tailrace.common.errors import BadRequestError, NotFoundError, UnavailableError, WriteConflictError
from tailrace_operator.kube.manifests import FIELD_MANAGER, Notice
from tailrace_operator.kube.objects import CONFIG_MAPS, EVENTS, SERVICES, HttpObjects

NOW = "2026-01-02T03:04:05Z"


@pytest.fixture
async def server(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[ApiServer, HttpObjects]]:
    monkeypatch.setattr(limits, "KUBERNETES_CALL_DEADLINE_S", 60.0)  # how fast a busy machine answers is not tested
    async with api_server() as (server, address):
        objects = HttpObjects(client.Configuration(host=address), "test-pod")
        yield server, objects
        objects.close()


@pytest.fixture
def api(server: tuple[ApiServer, HttpObjects]) -> ApiServer:
    return server[0]


@pytest.fixture
def objects(server: tuple[ApiServer, HttpObjects]) -> HttpObjects:
    return server[1]


def config_map(name: str = "a", **data: str) -> Manifest:
    return {"metadata": {"name": name, "namespace": NAMESPACE, "labels": {"x": name}}, "data": data}


def cluster(name: str = "c") -> Manifest:
    return {"metadata": {"name": name}, "spec": {"containers": 4}}


async def test_what_is_applied_is_there(objects: HttpObjects) -> None:
    with pytest.raises(NotFoundError):
        await objects.get(CONFIG_MAPS, NAMESPACE, "a")
    made = await objects.apply(CONFIG_MAPS, NAMESPACE, config_map(k="v"))
    assert (made["kind"], made["apiVersion"], made["data"]) == ("ConfigMap", "v1", {"k": "v"})
    assert await objects.get(CONFIG_MAPS, NAMESPACE, "a") == made
    assert await objects.apply(CONFIG_MAPS, NAMESPACE, config_map(k="v")) == made, "no change, no version"


async def test_an_apply_corrects_what_it_names_and_leaves_the_rest(api: ApiServer, objects: HttpObjects) -> None:
    await objects.apply(CONFIG_MAPS, NAMESPACE, config_map(k="v", old="v"))
    api.edit(CONFIG_MAPS, "a", {"data": {"k": "drifted", "foreign": "v"}})
    found = await objects.apply(CONFIG_MAPS, NAMESPACE, config_map(k="v"))
    assert found["data"] == {"k": "v", "foreign": "v"}, "what this manager named before is gone"


async def test_an_apply_to_a_certain_object_finds_no_other(objects: HttpObjects) -> None:
    made = await objects.apply(CONFIG_MAPS, NAMESPACE, config_map(k="v"))
    wrong = config_map(k="w")
    wrong["metadata"]["uid"] = "00000000-0000-4000-8000-000000000000"
    with pytest.raises(WriteConflictError):
        await objects.apply(CONFIG_MAPS, NAMESPACE, wrong)
    assert await objects.get(CONFIG_MAPS, NAMESPACE, "a") == made


async def test_an_apply_to_a_certain_version_finds_no_other(objects: HttpObjects) -> None:
    made = await objects.apply(CONFIG_MAPS, NAMESPACE, config_map(k="v"))
    manifest = config_map(k="w")
    manifest["metadata"] |= {name: made["metadata"][name] for name in ("uid", "resourceVersion")}
    changed = await objects.apply(CONFIG_MAPS, NAMESPACE, manifest)
    assert changed["data"] == {"k": "w"}
    with pytest.raises(WriteConflictError):
        await objects.apply(CONFIG_MAPS, NAMESPACE, {**manifest, "data": {"k": "x"}})
    assert await objects.get(CONFIG_MAPS, NAMESPACE, "a") == changed


async def test_an_apply_to_a_certain_object_makes_none(objects: HttpObjects) -> None:
    gone = config_map(k="v")
    gone["metadata"]["uid"] = "00000000-0000-4000-8000-000000000000"
    with pytest.raises(WriteConflictError):
        await objects.apply(CONFIG_MAPS, NAMESPACE, gone)
    with pytest.raises(NotFoundError):
        await objects.get(CONFIG_MAPS, NAMESPACE, "a")


async def test_an_apply_that_may_only_make_an_object_changes_none(api: ApiServer, objects: HttpObjects) -> None:
    made = await objects.apply(CONFIG_MAPS, NAMESPACE, config_map(k="v"), only_new=True)
    assert (made["data"], made["metadata"]["name"]) == ({"k": "v"}, "a")
    assert [entry["manager"] for entry in made["metadata"]["managedFields"]] == [FIELD_MANAGER]
    with pytest.raises(WriteConflictError):
        await objects.apply(CONFIG_MAPS, NAMESPACE, config_map(k="w"), only_new=True)
    assert await objects.get(CONFIG_MAPS, NAMESPACE, "a") == made
    others = api.make(CONFIG_MAPS, config_map("b", k="theirs"))
    with pytest.raises(WriteConflictError):
        await objects.apply(CONFIG_MAPS, NAMESPACE, config_map("b", k="v"), only_new=True)
    assert api.find(CONFIG_MAPS, "b") == others


async def test_lists_are_by_namespace_and_label(api: ApiServer, objects: HttpObjects) -> None:
    for name, namespace in (("a", NAMESPACE), ("b", NAMESPACE), ("c", "elsewhere")):
        api.make(CONFIG_MAPS, config_map(name), namespace)
    here = await objects.list(CONFIG_MAPS, NAMESPACE)
    assert [item["metadata"]["name"] for item in here] == ["a", "b"]
    assert here[0]["kind"] == "ConfigMap"
    everywhere = await objects.list(CONFIG_MAPS, None)
    assert [item["metadata"]["name"] for item in everywhere] == ["c", "a", "b"], "by namespace first"
    assert [item["metadata"]["name"] for item in await objects.list(CONFIG_MAPS, NAMESPACE, {"x": "b"})] == ["b"]


async def test_any_number_of_objects_is_read_in_pages_of_one_moment(api: ApiServer, objects: HttpObjects) -> None:
    names = [f"a{number:04}" for number in range(limits.KUBERNETES_PAGE * 2 + 1)]
    for name in names:
        api.make(CONFIG_MAPS, config_map(name))
    first = await objects.page(CONFIG_MAPS, NAMESPACE)
    assert (len(first.items), first.items[0]["kind"]) == (limits.KUBERNETES_PAGE, "ConfigMap")
    api.remove(CONFIG_MAPS, names[-1])
    second = await objects.page(CONFIG_MAPS, NAMESPACE, first.rest)
    third = await objects.page(CONFIG_MAPS, NAMESPACE, second.rest)
    assert third.rest is None
    assert [item["metadata"]["name"] for page in (first, second, third) for item in page.items] == names
    assert (await objects.page(CONFIG_MAPS, "elsewhere")).items == ()


async def test_a_list_of_more_objects_than_one_request_can_bring_is_complete(
    api: ApiServer, objects: HttpObjects
) -> None:
    names = [f"a{number:04}" for number in range(limits.KUBERNETES_PAGE * 2 + 1)]
    for name in names:
        api.make(CONFIG_MAPS, config_map(name))
    api.longest_list = limits.KUBERNETES_PAGE
    assert [item["metadata"]["name"] for item in await objects.list(CONFIG_MAPS, NAMESPACE)] == names
    assert await objects.list(CONFIG_MAPS, NAMESPACE, {"x": names[-1]}) == (api.find(CONFIG_MAPS, names[-1]),)


async def test_pages_of_a_list_that_was_begun_long_ago_are_not_there(api: ApiServer, objects: HttpObjects) -> None:
    for number in range(limits.KUBERNETES_PAGE + 1):
        api.make(CONFIG_MAPS, config_map(f"a{number}"))
    first = await objects.page(CONFIG_MAPS, None)
    api.forget_pages()
    with pytest.raises(UnavailableError):
        await objects.page(CONFIG_MAPS, None, first.rest)
    del api.kinds[CONFIG_MAPS.plural]
    with pytest.raises(NotFoundError):
        await objects.page(CONFIG_MAPS, None)


async def test_a_status_is_merged_and_compared(api: ApiServer, objects: HttpObjects) -> None:
    made = api.make(STREAM_CLUSTERS, cluster())
    first = await objects.merge_status(STREAM_CLUSTERS, made, {"a": 1, "b": {"c": 2}})
    assert (first["status"], first["spec"]) == ({"a": 1, "b": {"c": 2}}, {"containers": 4})
    with pytest.raises(WriteConflictError):
        await objects.merge_status(STREAM_CLUSTERS, made, {"a": 2})
    second = await objects.merge_status(STREAM_CLUSTERS, first, {"a": None, "d": 3})
    assert second["status"] == {"b": {"c": 2}, "d": 3}
    assert second["metadata"]["generation"] == 1
    api.remove(STREAM_CLUSTERS, "c")
    with pytest.raises((NotFoundError, WriteConflictError)):
        await objects.merge_status(STREAM_CLUSTERS, second, {"a": 2})
    api.make(STREAM_CLUSTERS, cluster())
    with pytest.raises(WriteConflictError):
        await objects.merge_status(STREAM_CLUSTERS, second, {"a": 2})


async def test_fields_of_a_specification_are_merged_and_compared(api: ApiServer, objects: HttpObjects) -> None:
    made = api.make(STREAM_CLUSTERS, {"metadata": {"name": "c"}, "spec": {"containers": 4, "image": "a"}})
    changed = await objects.merge_spec(STREAM_CLUSTERS, made, {"containers": 8})
    assert changed["spec"] == {"containers": 8, "image": "a"}
    with pytest.raises(WriteConflictError):
        await objects.merge_spec(STREAM_CLUSTERS, made, {"containers": 2})
    assert (await objects.get(STREAM_CLUSTERS, NAMESPACE, "c"))["spec"]["containers"] == 8


async def test_finalizers_hold_and_let_go(api: ApiServer, objects: HttpObjects) -> None:
    made = api.make(STREAM_CLUSTERS, cluster())
    held = await objects.set_finalizers(STREAM_CLUSTERS, made, ["tailrace.io/operator"])
    with pytest.raises(WriteConflictError):
        await objects.set_finalizers(STREAM_CLUSTERS, made, [])
    await objects.delete(STREAM_CLUSTERS, NAMESPACE, "c", held["metadata"]["uid"])
    leaving = await objects.get(STREAM_CLUSTERS, NAMESPACE, "c")
    assert leaving["metadata"]["deletionTimestamp"]
    await objects.set_finalizers(STREAM_CLUSTERS, leaving, [])
    with pytest.raises(NotFoundError):
        await objects.get(STREAM_CLUSTERS, NAMESPACE, "c")


async def test_only_the_object_that_is_meant_is_deleted(objects: HttpObjects) -> None:
    made = await objects.apply(SERVICES, NAMESPACE, {"metadata": {"name": "s", "namespace": NAMESPACE}, "spec": {}})
    with pytest.raises(WriteConflictError):
        await objects.delete(SERVICES, NAMESPACE, "s", "00000000-0000-4000-8000-000000000000")
    await objects.delete(SERVICES, NAMESPACE, "s", made["metadata"]["uid"])
    with pytest.raises(NotFoundError):
        await objects.delete(SERVICES, NAMESPACE, "s", made["metadata"]["uid"])


async def test_events_are_about_an_object(api: ApiServer, objects: HttpObjects) -> None:
    made = api.make(STREAM_CLUSTERS, cluster())
    await objects.create_event(
        STREAM_CLUSTERS, made, Notice("BucketMissing", "spec.tier2.bucket: …", warning=True), NOW
    )
    await objects.create_event(STREAM_CLUSTERS, made, Notice("Serving", "x" * 5000), NOW)
    events = sorted(api.all(EVENTS), key=lambda event: str(event["reason"]))
    assert [(event["reason"], event["type"]) for event in events] == [
        ("BucketMissing", "Warning"),
        ("Serving", "Normal"),
    ]
    about = events[0]["involvedObject"]
    assert (about["kind"], about["name"], about["uid"]) == ("StreamCluster", "c", made["metadata"]["uid"])
    assert events[0]["reportingInstance"] == "test-pod"
    assert len(events[1]["message"]) <= 1024


async def test_refusals_tell_what_the_server_said(api: ApiServer, objects: HttpObjects) -> None:
    api.refuse["configmaps"] = lambda manifest: "data.k: must not be w" if manifest["data"] == {"k": "w"} else None
    with pytest.raises(BadRequestError, match=r"data\.k: must not be w"):
        await objects.apply(CONFIG_MAPS, NAMESPACE, config_map(k="w"))
    await objects.apply(CONFIG_MAPS, NAMESPACE, config_map(k="v"))
    api.down = True
    with pytest.raises(UnavailableError):
        await objects.get(CONFIG_MAPS, NAMESPACE, "a")


async def test_namespaces_end(api: ApiServer, objects: HttpObjects) -> None:
    assert not await objects.namespace_is_terminating(NAMESPACE)
    api.ending.add(NAMESPACE)
    assert await objects.namespace_is_terminating(NAMESPACE)


@pytest.mark.parametrize("name", ["..", ".", "a/b", "../secrets"])
async def test_no_name_leads_elsewhere(objects: HttpObjects, name: str) -> None:
    with pytest.raises(BadRequestError):
        await objects.get(CONFIG_MAPS, NAMESPACE, name)
