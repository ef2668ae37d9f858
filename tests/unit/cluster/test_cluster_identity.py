"""``cluster.json``: one prefix, one cluster, whichever comes first and whatever gets lost on the way.

See docs/design.md#tier-2.
"""

from __future__ import annotations

import asyncio
import errno
import json
from pathlib import Path

import pytest

from harness.folderdisk import FolderDisk
from sim import SimWorld
from tailrace.cluster.cluster_identity import CLUSTER_KEY, bind_tier2, read_cluster_id, read_identity
from tailrace.common import limits
from tailrace.common.errors import StartError, UnavailableError
from tailrace.storage.obstores import open_object_store
from tailrace.storage.port import ObjectStore


@pytest.fixture
def store() -> ObjectStore:
    return open_object_store("memory://")


async def test_the_first_marks_and_the_next_agree(store: ObjectStore) -> None:
    assert await read_cluster_id(store, "Tier 2") is None
    for _ in range(2):
        await bind_tier2(store, "Tier 2", "one", 4, bound=False)
    await bind_tier2(store, "Tier 2", "one", 4, bound=True)
    mark = await read_identity(store, "Tier 2")
    assert mark is not None
    assert (mark.cluster_id, mark.containers) == ("one", 4)


async def test_another_cluster_is_refused(store: ObjectStore) -> None:
    await bind_tier2(store, "Tier 2", "one", 4, bound=False)
    with pytest.raises(StartError, match=r"^Tier 2 belongs to cluster one, not to two$"):
        await bind_tier2(store, "Tier 2", "two", 4, bound=False)


async def test_another_number_of_containers_is_refused(store: ObjectStore) -> None:
    await bind_tier2(store, "Tier 2", "one", 4, bound=False)
    with pytest.raises(StartError, match=r"^Tier 2 belongs to a cluster of 4 containers, not of 8$"):
        await bind_tier2(store, "Tier 2", "one", 8, bound=False)


async def test_a_mark_that_was_there_and_is_gone_is_refused(store: ObjectStore) -> None:
    with pytest.raises(StartError, match=r"has no cluster\.json"):
        await bind_tier2(store, "Tier 2", "one", 4, bound=True)
    assert await read_cluster_id(store, "Tier 2") is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "is damaged"),
        (b"[]", "is damaged"),
        (b'{"format": 1, "cluster": "one"}', "is damaged"),
        (b'{"format": 1, "cluster": "one", "containers": "x"}', "is damaged"),
        (b'{"format": 2}', "is newer than"),
        (b'{"format": 1' + b"0" * 2000 + b"}", "is damaged"),
        (b'{"format": 1e999, "cluster": "one", "containers": 4}', "is damaged"),
        (b'{"format": 1, "cluster": "one", "containers": 1e999}', "is damaged"),
        (b'{"format": true, "cluster": "one", "containers": 4}', "is damaged"),
        (b'{"format": 1, "cluster": "a\\nsecret", "containers": 4}', "is damaged"),
        (b'{"format": 1, "cluster": "' + b"x" * 65 + b'", "containers": 4}', "is damaged"),
        (b'{"format": 1, "cluster": ["one"], "containers": 4}', "is damaged"),
        (b"[" * 60_000, "is damaged"),
    ],
)
async def test_a_mark_that_cannot_be_read_is_refused(store: ObjectStore, text: bytes, reason: str) -> None:
    await store.put(CLUSTER_KEY, [text])
    with pytest.raises(StartError, match=reason):
        await bind_tier2(store, "Tier 2", "one", 4, bound=False)
    assert await store.get(CLUSTER_KEY) == text


def test_many_that_start_at_once_agree_whatever_gets_lost() -> None:
    """Workers of two clusters start over one prefix: all of one cluster serve, none of the other does."""
    outcomes: dict[str, int] = {}
    for seed in range(60):
        with SimWorld(seed) as world:
            world.store.failure_chance = world.store.lost_reply_chance = world.store.late_chance = 0.1
            world.store.late_max_s = 2.0
            found = world.run(_start_many(world))
            mark = json.loads(world.store.objects[CLUSTER_KEY])
        assert mark["cluster"] in ("one", "two")
        for cluster, outcome in found:
            outcomes[outcome] = outcomes.get(outcome, 0) + 1
            assert outcome in (("bound", "unknown") if cluster == mark["cluster"] else ("refused", "unknown")), seed
    assert outcomes["bound"] > 100
    assert outcomes["refused"] > 100
    assert outcomes.get("unknown", 0) < 30


async def _start_many(world: SimWorld) -> list[tuple[str, str]]:
    async def start(store: ObjectStore, cluster: str) -> tuple[str, str]:
        try:
            await bind_tier2(store, "Tier 2", cluster, 4, bound=False)
        except StartError:
            return cluster, "refused"
        except UnavailableError:
            return cluster, "unknown"
        return cluster, "bound"

    tasks = []
    for number in range(8):
        process = world.process(f"worker {number}")
        tasks.append(process.spawn(start(world.store.attach(process), ("one", "two")[number % 2])))
    await asyncio.wait(tasks)
    await asyncio.sleep(5)
    return [task.result() for task in tasks]


async def test_a_mark_that_another_process_has_not_synced_is_durable_before_it_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "CLUSTER_OBJECT_RETRY_S", 0.001)
    disk = FolderDisk(monkeypatch, tmp_path, forgives=True)
    await bind_tier2(open_object_store(f"file://{tmp_path}"), "Tier 2", "one", 4, bound=False)
    disk.unsync(CLUSTER_KEY)
    disk.fail("")
    with pytest.raises(UnavailableError, match=f"sync {tmp_path}: .*Input/output error"):
        await bind_tier2(open_object_store(f"file://{tmp_path}"), "Tier 2", "one", 4, bound=False)
    disk.fail()
    await bind_tier2(open_object_store(f"file://{tmp_path}"), "Tier 2", "one", 4, bound=False)
    assert disk.survives(CLUSTER_KEY)


async def test_a_bound_store_need_only_be_readable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CLUSTER_OBJECT_RETRY_S", 0.001)
    disk = FolderDisk(monkeypatch, tmp_path)
    await bind_tier2(open_object_store(f"file://{tmp_path}"), "Tier 2", "one", 4, bound=False)
    disk.fail("", code=errno.EROFS)
    await bind_tier2(open_object_store(f"file://{tmp_path}", create=False), "Tier 2", "one", 4, bound=True)
