"""How much memory there is, and whether the budgets fit into it."""

from pathlib import Path

import pytest

from tailrace.common import limits
from tailrace.common.budgets import budgets_for, check_fits, memory_limit
from tailrace.common.errors import StartError

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
    assert dict(objects.lines())["frames on their way to the object store"] == copies
    for budgets in (files, objects):
        *parts, (name, total) = budgets.lines()
        assert name == "total"
        # One connection's share is part of all connections'.
        assert sum(size for name, size in parts if name != "in flight, one connection") == total


def test_a_cache_that_is_too_small() -> None:
    with pytest.raises(StartError, match="too small"):
        budgets_for(limits.CACHE_MIN_BYTES - 1, 4)
