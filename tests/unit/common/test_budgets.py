"""How much memory there is, and whether the budgets fit into it."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.common import limits
from tailrace.common.budgets import (
    budgets_for,
    check_fits,
    check_pod_fits,
    controller_budgets,
    memory_limit,
    pod_budgets,
    smallest_controller_bytes,
    smallest_pod_bytes,
)
from tailrace.common.errors import StartError
from tailrace.segmentstore.attributes.page import PageBytes
from tailrace.segmentstore.attributes.pages import PageCache, PageKey, PageRoom

GIB = limits.GIB


def machine(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


MEMINFO = {"proc/meminfo": "MemTotal:       16777216 kB\nMemFree:        1 kB\n"}


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        ({}, None),
        (MEMINFO, 16 * GIB),
        ({**MEMINFO, "proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "max\n"}, 16 * GIB),
        ({**MEMINFO, "proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "1073741824\n"}, GIB),
        (
            {
                **MEMINFO,
                "proc/self/cgroup": "0::/system.slice/tailrace.service\n",
                "sys/fs/cgroup/system.slice/tailrace.service/memory.max": "max\n",
                "sys/fs/cgroup/system.slice/memory.max": "2147483648\n",
            },
            2 * GIB,
        ),
        (
            {
                **MEMINFO,
                "proc/self/cgroup": "0::/elsewhere/in/the/host\n",
                "sys/fs/cgroup/memory.max": "3221225472\n",
            },
            3 * GIB,
        ),
        (
            {
                **MEMINFO,
                "proc/self/cgroup": "5:cpu,cpuacct:/a\n4:memory:/a/b\n1:name=systemd:/\n",
                "sys/fs/cgroup/memory/a/b/memory.limit_in_bytes": "1073741824\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            },
            GIB,
        ),
        (
            {
                **MEMINFO,
                "proc/self/cgroup": "4:memory:/\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            },
            16 * GIB,
        ),
    ],
)
def test_the_memory_of_a_machine(tmp_path: Path, files: dict[str, str], limit: int | None) -> None:
    assert memory_limit(machine(tmp_path, files)) == limit


def test_this_machine_has_memory() -> None:
    limit = memory_limit()
    assert limit is not None
    assert limit > 0


def test_budgets_that_do_not_fit_are_refused_with_both_numbers() -> None:
    budgets = budgets_for(GIB, 4)
    check_fits(budgets, None)
    check_fits(budgets, budgets.total_bytes)
    with pytest.raises(StartError, match=rf"add up to {budgets.total_bytes * 2 // limits.MIB} MiB, .* has 1024 MiB"):
        check_fits(budgets, GIB, workers=2)


def test_the_copies_of_frames_on_their_way_to_a_store_are_counted() -> None:
    files, objects = budgets_for(GIB, 4), budgets_for(GIB, 4, object_logs=True)
    copies = objects.total_bytes - files.total_bytes
    assert copies == limits.ALL_CONNECTIONS_IN_FLIGHT_MAX_BYTES
    assert dict(objects.lines())["frames sent to the object store"] == copies
    for budgets in (files, objects):
        *parts, (name, total) = budgets.lines()
        assert name == "total"
        # One connection's share is part of all connections'.
        assert sum(size for name, size in parts if name != "in flight, one connection") == total


def test_a_cache_that_is_too_small() -> None:
    with pytest.raises(StartError, match="too small"):
        budgets_for(limits.CACHE_MIN_BYTES - 1, 4)


WORKERS = st.integers(1, limits.WORKERS_MAX)
CONTAINERS = st.integers(1, limits.CONTAINERS_MAX)


@given(WORKERS, CONTAINERS, st.integers(0, 64 * GIB))
def test_the_budgets_of_a_pod_fill_its_memory_and_never_exceed_it(workers: int, containers: int, more: int) -> None:
    memory = smallest_pod_bytes(workers, containers) + more
    pod = pod_budgets(memory, workers, containers)
    assert memory - workers <= pod.total_bytes <= memory
    assert pod.worker.cache_bytes >= limits.CACHE_MIN_BYTES
    assert pod.worker.log_put_bytes, "a pod's logs are in the object store"
    attributes = pod.worker.attribute_bytes
    assert attributes <= containers * limits.ATTRIBUTE_PAGES_CACHED_MAX_BYTES, (
        "more than all containers use is of no use"
    )
    assert attributes >= limits.POD_ATTRIBUTES_MIN_BYTES
    assert pod.worker.index_page_bytes + pod.worker.attribute_value_bytes == attributes
    assert 0 < pod.worker.attribute_value_bytes <= limits.ATTRIBUTE_VALUES_MAX_BYTES
    assert 2 * pod.worker.attribute_value_bytes <= pod.worker.index_page_bytes
    assert pod.spare_bytes >= memory // 9


@given(WORKERS, CONTAINERS, st.data())
def test_a_pod_that_is_too_small_is_refused(workers: int, containers: int, data: st.DataObject) -> None:
    smallest = smallest_pod_bytes(workers, containers)
    memory = data.draw(st.integers(0, smallest - 1))
    numbers = rf"memory of {memory // limits.MIB} MiB .* at least {smallest // limits.MIB} MiB"
    with pytest.raises(StartError, match=numbers):
        pod_budgets(memory, workers, containers)


@given(WORKERS, CONTAINERS, st.integers(0, 64 * GIB), st.integers(1, GIB))
def test_more_memory_is_never_less_cache(workers: int, containers: int, more: int, step: int) -> None:
    memory = smallest_pod_bytes(workers, containers) + more
    less, greater = (pod_budgets(bytes_, workers, containers).worker for bytes_ in (memory, memory + step))
    assert greater.cache_bytes >= less.cache_bytes
    assert greater.index_page_bytes >= less.index_page_bytes


def test_the_defaults_of_a_cluster_fit() -> None:
    assert pod_budgets(1536 * limits.MIB, 2, 16).worker.cache_bytes >= 96 * limits.MIB
    assert pod_budgets(GIB, 1, 16).worker.cache_bytes >= 192 * limits.MIB


@pytest.mark.parametrize(("workers", "containers"), [(0, 1), (limits.WORKERS_MAX + 1, 1), (1, 0), (1, 10**6)])
def test_numbers_that_are_none(workers: int, containers: int) -> None:
    with pytest.raises(StartError, match="must be between"):
        pod_budgets(64 * GIB, workers, containers)


def test_the_parts_of_a_pod_are_reported() -> None:
    pod = pod_budgets(2 * GIB, 2, 16)
    lines = dict(pod.lines())
    assert lines["memory of the pod"] == 2 * GIB
    assert lines["worker cache"] == pod.worker.cache_bytes
    assert lines["main process"] + lines["spare"] + 2 * lines["each worker"] == pod.total_bytes


def test_a_pod_whose_figure_exceeds_its_cgroup_is_refused_with_both_numbers() -> None:
    check_pod_fits(GIB, None)
    check_pod_fits(GIB, GIB)
    with pytest.raises(StartError, match=r"--memory 2048 MiB .* 1024 MiB"):
        check_pod_fits(2 * GIB, GIB)


def test_a_busy_container_gives_way_to_the_others_within_the_room_of_all() -> None:
    room = PageRoom(1000)
    busy, other = PageCache(10_000, room), PageCache(10_000, room)
    for number in range(20):
        busy.put(PageKey("object", number, 100), PageBytes(bytes(100)))
    assert (busy.used_bytes, room.used_bytes) == (1000, 1000)
    for number in range(8):
        other.put(PageKey("object", number, 100), PageBytes(bytes(100)))
    assert room.used_bytes == 1000
    assert abs(busy.used_bytes - other.used_bytes) <= 200, "neither starves the other"
    assert busy.get(PageKey("object", 19, 100)) is not None
    busy.close()
    assert room.used_bytes == other.used_bytes


@given(st.integers(0, 8 * GIB))
def test_the_budgets_of_a_controller_fit_its_memory(memory_bytes: int) -> None:
    smallest = smallest_controller_bytes()
    if memory_bytes < smallest - limits.MIB:
        with pytest.raises(StartError, match=rf"{memory_bytes // limits.MIB} MiB .* at least {smallest // limits.MIB}"):
            controller_budgets(memory_bytes)
    if memory_bytes < smallest:
        return
    budgets = controller_budgets(memory_bytes)
    lines = dict(budgets.lines())
    parts = ("process", "recent records", "records", "calls", "streams with work", "spare")
    assert sum(lines[part] for part in parts) <= lines["memory of the pod"] == memory_bytes
    assert limits.CONTROLLER_CALLS_MIN <= budgets.calls_max <= limits.RPC_CONCURRENT_MAX
    assert limits.CONTROLLER_STREAMS_MIN <= budgets.streams_max <= limits.WORKFLOW_STREAMS_MAX


def test_a_controller_of_the_default_size_has_room_for_many_streams() -> None:
    budgets = controller_budgets(512 * limits.MIB)
    assert budgets.streams_max > 10_000
    assert budgets.records_bytes == limits.IMMUTABLE_RECORDS_CACHED_MAX_BYTES
