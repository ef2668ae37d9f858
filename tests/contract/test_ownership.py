"""Every implementation of the epochs port keeps the same contract (docs/design.md#ownership)."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.epochcases import EPOCH_CASES, EpochCase, EpochPlace
from harness.kubernetescases import title
from harness.localkubernetes import LocalKubernetes
from sim import SimWorld
from sim.kubernetes import KubernetesCore
from sim.ports import SimClock
from tailrace.cluster.cluster_map import Assignment, ClusterMap, write_map
from tailrace.cluster.file_epochs import FileEpochs
from tailrace.cluster.kubernetes import LEASES, STREAM_CLUSTERS, Kind, KubernetesApi, Manifest
from tailrace.cluster.lease_epochs import LeaseEpochs, any_epoch_taken
from tailrace.cluster.leases import WorkerLease, container_lease_name, write_worker_lease
from tailrace.common import limits
from tailrace.common.errors import DeadlineError, NotFoundError, NotOwnerError, TailraceError, UnavailableError

CONTAINERS = 4


def new_cluster(core: KubernetesCore, owner: str = "w") -> None:
    """A cluster whose map names one worker for every container."""
    made = core.create(STREAM_CLUSTERS, {"metadata": {"name": "c"}, "spec": {"containers": CONTAINERS}})
    name_owner(core, made, owner)


def name_owner(core: KubernetesCore, cluster: Manifest, owner: str) -> None:
    assignments = {number: Assignment(owner) for number in range(CONTAINERS)}
    core.replace_status(STREAM_CLUSTERS, write_map(cluster, ClusterMap(CONTAINERS, assignments)))


def lease_epochs(api: KubernetesApi, worker: str = "w", incarnation: str = "1") -> LeaseEpochs:
    return LeaseEpochs(api, "c", worker, incarnation, SimClock(asyncio.get_running_loop()))


@pytest.fixture(params=["file", "lease"])
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> EpochPlace:
    core = KubernetesCore()
    new_cluster(core)

    async def wipe(number: int) -> None:
        if request.param == "file":
            (tmp_path / "epochs" / f"{number}.json").unlink()
        else:
            core.delete(LEASES, container_lease_name("c", number))

    if request.param == "file":
        return EpochPlace(lambda: FileEpochs(tmp_path), wipe)
    return EpochPlace(lambda: lease_epochs(LocalKubernetes(core)), wipe)


@pytest.mark.parametrize("case", EPOCH_CASES, ids=title)
async def test_epochs_keep_the_contract(place: EpochPlace, case: EpochCase) -> None:
    await case(place)


# -- files ------------------------------------------------------------------------------------------------------------

TAKER = """
import sys
from pathlib import Path
from tailrace.cluster.data_folder import note_opened, take_epoch
from tailrace.common.errors import OverloadedError
folder = Path(sys.argv[1])
sys.stdin.readline()
for _ in range(60):
    while True:
        try:
            epoch = take_epoch(folder, 0)
            break
        except OverloadedError:
            pass
    print(epoch)
    try:
        note_opened(folder, 0, epoch)
    except OverloadedError:
        pass
"""


def test_processes_over_one_folder_never_get_the_same_epoch(tmp_path: Path) -> None:
    takers = [
        subprocess.Popen([sys.executable, "-c", TAKER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for _ in range(3)
    ]
    for taker in takers:
        assert taker.stdin is not None
        taker.stdin.write(b"\n")
        taker.stdin.flush()
    taken = [int(line) for taker in takers for line in taker.communicate(timeout=60)[0].split()]
    assert [taker.returncode for taker in takers] == [0, 0, 0]
    assert sorted(taken) == list(range(1, 181))


# -- Leases -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def core() -> KubernetesCore:
    core = KubernetesCore()
    new_cluster(core)
    return core


async def test_only_the_worker_that_the_map_names_gets_an_epoch(core: KubernetesCore) -> None:
    api = LocalKubernetes(core)
    with pytest.raises(NotOwnerError, match="assigned to w, not to other"):
        await lease_epochs(api, "other").take(0)
    name_owner(core, core.get(STREAM_CLUSTERS, "c"), "other")
    assert await lease_epochs(api, "other").take(0) == 1
    with pytest.raises(NotOwnerError, match="assigned to other, not to w"):
        await lease_epochs(api).take(0)


async def test_without_a_map_no_worker_gets_an_epoch(core: KubernetesCore) -> None:
    cluster = core.get(STREAM_CLUSTERS, "c")
    core.replace_status(STREAM_CLUSTERS, {**cluster, "status": {}})
    with pytest.raises(NotOwnerError, match="assigned to no worker"):
        await lease_epochs(LocalKubernetes(core)).take(0)
    core.delete(STREAM_CLUSTERS, "c")
    with pytest.raises(NotOwnerError, match="cluster c does not exist"):
        await lease_epochs(LocalKubernetes(core)).take(0)


async def test_a_worker_that_was_started_again_elsewhere_gets_no_epoch(core: KubernetesCore) -> None:
    api = LocalKubernetes(core)
    core.create(LEASES, write_worker_lease("c", WorkerLease("w", "2", 1), None, 0))
    with pytest.raises(NotOwnerError, match="started elsewhere"):
        await lease_epochs(api, incarnation="1").take(0)
    assert await lease_epochs(api, incarnation="2").take(0) == 1


async def test_a_worker_that_was_named_once_does_not_overtake_the_one_that_is_named_now(core: KubernetesCore) -> None:
    slow = LocalKubernetes(core)

    async def meanwhile(verb: str, kind: Any, name: str) -> None:
        if (verb, kind) == ("get", STREAM_CLUSTERS):  # its answer names `w`; then the world moves on
            slow.after = None
            name_owner(core, core.get(STREAM_CLUSTERS, "c"), "new")
            assert await lease_epochs(LocalKubernetes(core), "new").take(0) == 1

    slow.after = meanwhile
    with pytest.raises(NotOwnerError):
        await lease_epochs(slow).take(0)


@pytest.mark.parametrize("verb", ["create", "replace"])
async def test_an_epoch_whose_outcome_is_unknown_is_never_returned(core: KubernetesCore, verb: str) -> None:
    api = LocalKubernetes(core)
    epochs = lease_epochs(api)
    if verb == "replace":
        await epochs.take(0)

    async def lose(sent: str, kind: Any, name: str) -> None:
        if sent == verb:
            api.after = None
            raise DeadlineError("no answer")

    api.after = lose
    before = 1 if verb == "replace" else 0
    with pytest.raises(UnavailableError):
        await epochs.take(0)
    assert await lease_epochs(LocalKubernetes(core)).take(0) == before + 2


async def test_a_worker_gives_up_when_rivals_always_win(core: KubernetesCore) -> None:
    api = LocalKubernetes(core)

    async def rival(verb: str, kind: Any, name: str) -> None:
        if verb in ("create", "replace"):
            await lease_epochs(LocalKubernetes(core)).take(0)

    api.before = rival
    with pytest.raises(UnavailableError, match="lost 20 times to others"):
        await lease_epochs(api).take(0)
    assert len([verb for verb, _ in api.requests if verb in ("create", "replace")]) == limits.EPOCH_CONFLICTS_MAX


@pytest.mark.parametrize("text", ["", "-1", "1.5", "x", "9" * 40, "٣"])
async def test_an_epoch_that_cannot_be_read_counts_as_lost(core: KubernetesCore, text: str) -> None:
    epochs = lease_epochs(LocalKubernetes(core))
    await epochs.take(0)
    lease = core.get(LEASES, container_lease_name("c", 0))
    lease["metadata"]["annotations"]["tailrace.io/epoch"] = text
    core.replace(LEASES, lease)
    assert await epochs.take(0, 5) == 6


async def test_who_lets_go_is_the_holder_no_longer_but_the_epoch_stays(core: KubernetesCore) -> None:
    epochs = lease_epochs(LocalKubernetes(core))
    assert await epochs.holder(0) == ""
    await epochs.release(0)
    await epochs.take(0)
    assert await epochs.holder(0) == "w"
    await epochs.release(0)
    assert await epochs.holder(0) == ""
    assert await epochs.take(0) == 2


async def test_a_process_does_not_release_what_another_process_has_taken_since(core: KubernetesCore) -> None:
    old, new = lease_epochs(LocalKubernetes(core)), lease_epochs(LocalKubernetes(core))
    await old.take(0)
    await new.take(0)
    await old.release(0)
    assert await new.holder(0) == "w"


async def test_an_epoch_that_is_beyond_the_log_is_given_back(core: KubernetesCore) -> None:
    """A user edited the Lease by hand; no worker could open the log with the epoch after it."""
    epochs = lease_epochs(LocalKubernetes(core))
    for _ in range(6):
        await epochs.take(0)
    write_epoch(core, "1000000")
    assert await epochs.take(0) == 1000001
    await epochs.lower(0, 6)
    assert await epochs.holder(0) == "w"
    assert await epochs.take(0) == 7
    await epochs.release(0)
    assert await epochs.holder(0) == ""


async def test_an_epoch_is_given_back_only_by_who_took_the_last_one(core: KubernetesCore) -> None:
    one, two = lease_epochs(LocalKubernetes(core)), lease_epochs(LocalKubernetes(core))
    await one.take(0, 100)
    await two.take(0)
    await one.lower(0, 6)
    await lease_epochs(LocalKubernetes(core)).lower(0, 6)
    assert await two.take(0) == 103
    await two.lower(0, 200)  # the log is further by now
    assert await two.take(0) == 104


async def test_what_was_given_back_is_not_made_again(core: KubernetesCore) -> None:
    """Deleting the Lease heals whatever stands in it: the log is the floor."""
    epochs = lease_epochs(LocalKubernetes(core))
    await epochs.take(0, 1000000)
    core.delete(LEASES, container_lease_name("c", 0))
    await epochs.lower(0, 6)
    await epochs.keep([0])
    assert await epochs.take(0) == 7


async def test_a_worker_does_not_release_another_workers_epoch_of_the_same_number(core: KubernetesCore) -> None:
    old, new = lease_epochs(LocalKubernetes(core)), lease_epochs(LocalKubernetes(core), "other")
    await old.take(0)
    name_owner(core, core.get(STREAM_CLUSTERS, "c"), "other")
    write_epoch(core, "0")
    assert await new.take(0) == 1
    await old.release(0)
    assert await new.holder(0) == "other"


def write_epoch(core: KubernetesCore, text: str) -> None:
    """What ``kubectl annotate lease`` does."""
    lease = core.get(LEASES, container_lease_name("c", 0))
    lease["metadata"]["annotations"]["tailrace.io/epoch"] = text
    core.replace(LEASES, lease)


async def test_leases_that_were_wiped_are_made_again_by_who_holds_the_containers(core: KubernetesCore) -> None:
    epochs, other = (lease_epochs(LocalKubernetes(core)) for _ in range(2))
    for number in (0, 1, 2):
        await epochs.take(number)
    await other.take(1)
    for number in (0, 2):
        core.delete(LEASES, container_lease_name("c", number))
    assert await epochs.holder(0) == ""
    await epochs.keep([0, 1, 3])
    assert await epochs.holder(0) == "w"
    assert await epochs.holder(2) == ""  # it has let go of that
    assert await epochs.holder(3) == ""  # and never had this
    assert [await epochs.take(0), await epochs.take(1)] == [2, 3]


async def test_a_namespace_that_is_gone_is_looked_at_again(core: KubernetesCore) -> None:
    """Any other error would end the process that keeps the Leases, and no process would create them again."""
    api = LocalKubernetes(core)
    epochs = lease_epochs(api)
    await epochs.take(0)
    core.delete(LEASES, container_lease_name("c", 0))

    async def gone(verb: str, kind: Kind, name: str) -> None:
        if verb == "create":
            raise NotFoundError("namespaces tailrace not found")

    api.before = gone
    with pytest.raises(UnavailableError, match="namespaces tailrace not found"):
        await epochs.keep([0])
    api.before = None
    await epochs.keep([0])
    assert await epochs.holder(0) == "w"


async def test_leases_tell_whether_there_was_an_owner_ever(core: KubernetesCore) -> None:
    api = LocalKubernetes(core)
    core.create(LEASES, write_worker_lease("c", WorkerLease("w", "1", 1), None, 0))
    assert not await any_epoch_taken(api, "c")
    epochs = lease_epochs(api)
    await epochs.take(2)
    await epochs.release(2)
    assert await any_epoch_taken(api, "c")
    assert not await any_epoch_taken(api, "other")


async def test_a_cluster_that_was_made_again_under_its_name_had_no_owner(core: KubernetesCore) -> None:
    """Its Leases go on counting; it may have another Tier 2 without a `cluster.json`."""
    api = LocalKubernetes(core)
    core.replace_status(
        STREAM_CLUSTERS,
        write_map(core.get(STREAM_CLUSTERS, "c"), ClusterMap(4, {2: Assignment("w")})),
    )
    clock = SimClock(asyncio.get_running_loop())
    before, after = (LeaseEpochs(api, "c", "w", "1", clock, name) for name in ("before", "after"))
    epoch = await before.take(2)
    await before.keep([2])
    assert await any_epoch_taken(api, "c", "before")
    assert not await any_epoch_taken(api, "c", "after")
    assert await after.take(2) > epoch
    assert await any_epoch_taken(api, "c", "after")
    await after.release(2)
    assert await any_epoch_taken(api, "c", "after")
    assert not await any_epoch_taken(api, "c", "before")


def test_whatever_fails_an_epoch_is_taken_once() -> None:
    """Rivals under every fault of the API: epochs of one Lease object are returned once, and rise."""
    faults: dict[str, int] = {}
    for seed in range(60):
        with SimWorld(seed) as world:
            taken = world.run(_rivals(world))
        assert taken, seed
        assert len(set(taken)) == len(taken), (seed, taken)
        for name, count in world.faults().items():
            faults[name] = faults.get(name, 0) + count
    expected = {"kubernetes 429", "kubernetes 5xx", "kubernetes 5xx after effect", "kubernetes reply lost"}
    assert expected | {"conflict after own success", "late kubernetes effect", "wiped Lease"} <= faults.keys()


async def _rivals(world: SimWorld) -> list[tuple[int, int]]:
    """Epochs that were returned, each after the number of its Lease object."""
    api = world.kubernetes
    new_cluster(api.core)
    chances = ("throttled", "error", "error_after_effect", "lost_reply", "own_conflict", "late", "slow")
    for chance in chances:
        if world.random.random() < 0.6:
            setattr(api, f"{chance}_chance", 0.15)
    api.late_max_s = 3.0
    taken: list[tuple[int, int]] = []
    generation = 0

    async def rival(epochs: LeaseEpochs) -> None:
        for _ in range(12):
            try:
                epoch = await epochs.take(0)
            except TailraceError:
                continue
            taken.append((generation, epoch))

    rivals = []
    for number in range(3):
        process = world.process(f"rival {number}")
        clock = SimClock(world.loop, skew_ms=number * 1000)
        rivals.append((process, LeaseEpochs(api.attach(process), "c", "w", "1", clock)))
    for _ in range(2):
        tasks = [process.spawn(rival(epochs)) for process, epochs in rivals]
        await asyncio.wait(tasks)
        for task in tasks:
            task.result()
        await asyncio.sleep(10)  # until no call for this Lease object is under way
        api.wipe(LEASES, container_lease_name("c", 0))
        generation += 1
    return taken


def test_the_simulated_rivals_find_a_version_that_is_not_compared() -> None:
    """The test above can fail: with an API that forgets to compare, epochs are handed out twice."""

    class Careless(KubernetesCore):
        def _compare(self, kind: Any, manifest: Manifest) -> Manifest:
            return self._object(kind, manifest["metadata"]["name"])

    doubled = 0
    for seed in range(20):
        with SimWorld(seed) as world:
            world.kubernetes.core = Careless()
            taken = world.run(_rivals(world))
        doubled += len(set(taken)) != len(taken)
    assert doubled
