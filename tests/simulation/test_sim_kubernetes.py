"""The simulated Kubernetes API: linearizable inside, unreliable outside, the same for the same seed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from sim import SimWorld
from sim.kubernetes import AttachedKubernetes
from tailrace.cluster.kubernetes import LEASES, STREAM_CLUSTERS, KubernetesApi, Manifest, WatchEvent
from tailrace.common.errors import (
    AlreadyExistsError,
    DeadlineError,
    NotFoundError,
    UnavailableError,
    WriteConflictError,
)


def lease(name: str, holder: str = "", **labels: str) -> Manifest:
    return {"metadata": {"name": name, "labels": labels}, "spec": {"holderIdentity": holder}}


def in_world(seed: int, scenario: Callable[[SimWorld, AttachedKubernetes], Awaitable[Any]]) -> SimWorld:
    with SimWorld(seed) as world:
        process = world.process("client")
        api = world.kubernetes.attach(process)

        async def main() -> None:
            task: asyncio.Task[Any] = process.spawn(scenario(world, api))  # type: ignore[arg-type]
            await asyncio.wait([task])
            task.result()

        world.run(main())
    return world


async def first_events(api: KubernetesApi, since: str, count: int, within_s: float) -> list[WatchEvent]:
    found: list[WatchEvent] = []

    async def collect() -> None:
        async for event in api.watch(LEASES, {}, since):
            found.append(event)
            if len(found) == count:
                return

    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(collect(), within_s)
    return found


def test_versions_are_compared() -> None:
    async def scenario(world: SimWorld, api: KubernetesApi) -> None:
        first = await api.create(LEASES, lease("a"))
        with pytest.raises(AlreadyExistsError):
            await api.create(LEASES, lease("a"))
        second = await api.replace(LEASES, {**first, "spec": {"holderIdentity": "x"}})
        assert second["metadata"]["resourceVersion"] != first["metadata"]["resourceVersion"]
        with pytest.raises(WriteConflictError):
            await api.replace(LEASES, {**first, "spec": {"holderIdentity": "y"}})
        assert (await api.get(LEASES, "a"))["spec"] == {"holderIdentity": "x"}
        assert await api.replace(LEASES, second) == second
        with pytest.raises(ValueError, match=r"metadata\.uid and metadata\.resourceVersion"):
            await api.replace(LEASES, lease("a"))

    in_world(1, scenario)


def test_an_object_of_the_same_name_is_another_object() -> None:
    async def scenario(world: SimWorld, api: KubernetesApi) -> None:
        first = await api.create(LEASES, lease("a"))
        assert world.kubernetes.wipe(LEASES, "a")
        assert not world.kubernetes.wipe(LEASES, "a")
        with pytest.raises(NotFoundError):
            await api.replace(LEASES, first)
        again = await api.create(LEASES, lease("a"))
        assert again["metadata"]["uid"] != first["metadata"]["uid"]
        with pytest.raises(WriteConflictError):
            await api.replace(LEASES, {**again, "metadata": {**again["metadata"], "uid": first["metadata"]["uid"]}})

    assert in_world(2, scenario).faults()["wiped Lease"] == 1


def test_status_is_written_apart() -> None:
    async def scenario(world: SimWorld, api: KubernetesApi) -> None:
        made = await api.create(STREAM_CLUSTERS, {"metadata": {"name": "c"}, "spec": {"n": 1}, "status": {"lost": 1}})
        assert "status" not in made
        with_status = await api.replace_status(STREAM_CLUSTERS, {**made, "spec": {"n": 2}, "status": {"m": 1}})
        assert (with_status["spec"], with_status["status"]) == ({"n": 1}, {"m": 1})
        with_spec = await api.replace(STREAM_CLUSTERS, {**with_status, "spec": {"n": 3}, "status": {"m": 9}})
        assert (with_spec["spec"], with_spec["status"]) == ({"n": 3}, {"m": 1})
        assert world.kubernetes.wipe_status(STREAM_CLUSTERS, "c")
        assert (await api.get(STREAM_CLUSTERS, "c"))["status"] == {}

    in_world(3, scenario)


def test_lists_select_by_label() -> None:
    async def scenario(world: SimWorld, api: KubernetesApi) -> None:
        await api.create(LEASES, lease("b", role="worker"))
        await api.create(LEASES, lease("a", role="worker"))
        await api.create(LEASES, lease("c"))
        found = await api.list(LEASES, {"role": "worker"})
        assert [item["metadata"]["name"] for item in found.items] == ["a", "b"]
        assert not (await api.list(STREAM_CLUSTERS, {})).items

    in_world(4, scenario)


def test_a_watch_reports_changes_in_order_from_its_version_on() -> None:
    async def scenario(world: SimWorld, api: KubernetesApi) -> None:
        made = await api.create(LEASES, lease("a", "0"))
        start = (await api.list(LEASES, {})).resource_version
        for number in range(1, 5):
            made = await api.replace(LEASES, {**made, "spec": {"holderIdentity": str(number)}})
        watching = asyncio.ensure_future(first_events(api, start, 6, 60))
        await asyncio.sleep(5)
        await api.replace(LEASES, {**made, "spec": {"holderIdentity": "5"}})
        world.kubernetes.wipe(LEASES, "a")
        events = await watching
        assert [event.kind for event in events] == ["MODIFIED"] * 5 + ["DELETED"]
        assert [event.manifest["spec"]["holderIdentity"] for event in events[:5]] == ["1", "2", "3", "4", "5"]
        assert not world.kubernetes.core.subscribers

    in_world(5, scenario)


def test_a_watch_from_too_long_ago_is_refused() -> None:
    async def scenario(world: SimWorld, api: KubernetesApi) -> None:
        start = (await api.list(LEASES, {})).resource_version
        await api.create(LEASES, lease("a"))
        world.kubernetes.core.compact()
        with pytest.raises(UnavailableError, match="410"):
            await first_events(api, start, 1, 60)

    in_world(6, scenario)


@pytest.mark.parametrize(
    ("knob", "fault", "error", "stored"),
    [
        ("throttled_chance", "kubernetes 429", UnavailableError, False),
        ("error_chance", "kubernetes 5xx", UnavailableError, False),
        ("error_after_effect_chance", "kubernetes 5xx after effect", UnavailableError, True),
        ("lost_reply_chance", "kubernetes reply lost", DeadlineError, True),
        ("own_conflict_chance", "conflict after own success", AlreadyExistsError, True),
    ],
)
def test_answers_that_fail(knob: str, fault: str, error: type[Exception], stored: bool) -> None:
    async def scenario(world: SimWorld, api: KubernetesApi) -> None:
        setattr(world.kubernetes, knob, 1.0)
        with pytest.raises(error):
            await api.create(LEASES, lease("a"))
        assert (("leases", "a") in world.kubernetes.core.objects) == stored
        world.kubernetes.heal()
        await api.list(LEASES, {})

    assert in_world(7, scenario).faults()[fault] == 1


def test_a_late_effect_comes_only_if_nothing_has_changed() -> None:
    async def scenario(world: SimWorld, api: KubernetesApi) -> None:
        kept = await api.create(LEASES, lease("kept", "0"))
        changed = await api.create(LEASES, lease("changed", "0"))
        world.kubernetes.late_chance = 1.0
        for manifest in (kept, changed):
            with pytest.raises(DeadlineError):
                await api.replace(LEASES, {**manifest, "spec": {"holderIdentity": "late"}})
        world.kubernetes.heal()
        await api.replace(LEASES, {**changed, "spec": {"holderIdentity": "other"}})
        await asyncio.sleep(60)
        assert (await api.get(LEASES, "kept"))["spec"]["holderIdentity"] == "late"
        assert (await api.get(LEASES, "changed"))["spec"]["holderIdentity"] == "other"

    in_world(8, scenario)


def test_an_outage_and_a_cut_end() -> None:
    async def scenario(world: SimWorld, api: KubernetesApi) -> None:
        other = world.kubernetes.attach(world.process("other"))
        world.kubernetes.outage(30)
        for _ in range(3):
            with pytest.raises(UnavailableError):
                await api.list(LEASES, {})
        await asyncio.sleep(30)
        await api.list(LEASES, {})
        world.kubernetes.cut_off(world.processes[0], 30)
        with pytest.raises(UnavailableError):
            await api.list(LEASES, {})
        await asyncio.sleep(30)
        await api.list(LEASES, {})
        del other

    in_world(9, scenario)


def test_lists_may_be_old_but_gets_are_not() -> None:
    async def scenario(world: SimWorld, api: KubernetesApi) -> None:
        world.kubernetes.stale_list_chance = 0.5
        made = await api.create(LEASES, lease("a", "0"))
        old = 0
        for number in range(1, 40):
            made = await api.replace(LEASES, {**made, "spec": {"holderIdentity": str(number)}})
            listed = (await api.list(LEASES, {})).items
            old += not listed or listed[0]["spec"]["holderIdentity"] != str(number)
            assert (await api.get(LEASES, "a"))["spec"]["holderIdentity"] == str(number)
        assert 0 < old <= world.kubernetes.faults["stale kubernetes list"]

    in_world(10, scenario)


@pytest.mark.parametrize("knob", ["dead_watch_chance", "late_watch_chance", "closed_watch_chance"])
def test_watches_that_tell_nothing_in_time(knob: str) -> None:
    async def scenario(world: SimWorld, api: KubernetesApi) -> None:
        start = (await api.list(LEASES, {})).resource_version
        setattr(world.kubernetes, knob, 1.0)
        watching = asyncio.ensure_future(first_events(api, start, 1, 600))
        await asyncio.sleep(25)
        before = world.loop.time()
        await api.create(LEASES, lease("a"))
        if knob == "closed_watch_chance":
            with pytest.raises(UnavailableError, match="closed"):
                await watching
        else:
            events = await watching
            assert bool(events) == (knob == "late_watch_chance")
            assert world.loop.time() - before > 0.1

    in_world(11, scenario)


def test_a_process_dies_at_a_request() -> None:
    outcomes = set()
    for seed in range(20):
        with SimWorld(seed) as world:
            process = world.process("client")
            api = world.kubernetes.attach(process)

            async def work(api: KubernetesApi = api) -> None:
                for name in "abc":
                    await api.create(LEASES, lease(name))

            async def main(world: SimWorld = world, work: Callable[[], Any] = work) -> None:
                process = world.processes[0]
                world.kubernetes.kill_at(process, 1, world.crash)
                process.spawn(work())
                await asyncio.sleep(10)

            world.run(main())
            outcomes.add("".join(name for _, name in sorted(world.kubernetes.core.objects)))
    assert outcomes == {"a", "ab"}
