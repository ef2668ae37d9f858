"""Ownership and placement as a whole, in simulated time: workers, placer, Kubernetes API and logs.

See docs/design.md#ownership.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from sim import SimWorld
from sim.owners import CLUSTER, OwnerFleet
from tailrace.cluster.endpoint_follower import EndpointFollower
from tailrace.cluster.endpoints import EndpointMap
from tailrace.cluster.kubernetes import LEASES, STREAM_CLUSTERS
from tailrace.cluster.leases import container_lease_name

Scenario = Callable[[OwnerFleet], Awaitable[None]]


def run(scenario: Scenario, *, seed: int = 1, containers: int = 6, workers: int = 3) -> SimWorld:
    with SimWorld(seed) as world:

        async def main() -> None:
            fleet = OwnerFleet(world, containers, workers)
            await fleet.settle()
            await scenario(fleet)
            fleet.check()

        world.run(main())
    return world


def test_containers_spread_evenly() -> None:
    async def scenario(fleet: OwnerFleet) -> None:
        await asyncio.sleep(30)
        await fleet.settle()
        assert fleet.sizes() == [2, 2, 2]
        before = fleet.opens()
        await asyncio.sleep(300)
        assert fleet.opens() == before

    run(scenario)


def test_a_crash_is_over_in_less_than_ten_seconds() -> None:
    async def scenario(fleet: OwnerFleet) -> None:
        await asyncio.sleep(30)
        began_s = fleet.world.loop.time()
        before = fleet.assigned()
        fleet.world.crash(fleet.owners["w1"].process)
        await asyncio.sleep(20)
        await fleet.settle()
        assert fleet.sizes() == [3, 3]
        moved = [number for number, worker in fleet.assigned().items() if before[number] != worker]
        assert [before[number] for number in moved] == ["w1", "w1"]
        assert fleet.longest_gap_s(began_s, fleet.world.loop.time()) < 10

    for seed in range(2):
        run(scenario, seed=seed)


def test_a_worker_that_starts_again_soon_keeps_its_containers() -> None:
    async def scenario(fleet: OwnerFleet) -> None:
        await asyncio.sleep(30)
        before = fleet.assigned()
        fleet.world.crash(fleet.owners["w1"].process)
        await asyncio.sleep(1)
        fleet.start("w1")
        await asyncio.sleep(20)
        await fleet.settle()
        assert fleet.assigned() == before

    run(scenario)


def test_a_drain_hands_over_one_after_the_other_and_is_short() -> None:
    async def scenario(fleet: OwnerFleet) -> None:
        await asyncio.sleep(30)
        began_s, epochs = fleet.world.loop.time(), len(fleet.events)
        await fleet.owners["w1"].drain()
        assert not fleet.owners["w1"].host.owned()
        await fleet.settle()
        assert fleet.sizes() == [3, 3]
        assert fleet.longest_gap_s(began_s, fleet.world.loop.time()) < 3
        # No worker was fenced: each log was closed by the one before it was opened by the next.
        events = [event[1:4] for event in fleet.events[epochs:] if event[1] != "ack"]
        for number in {number for _, number, _ in events}:
            assert [what for what, its, _ in events if its == number] == ["close", "open"]

    for seed in range(2):
        run(scenario, seed=seed)


def test_the_last_worker_leaves_without_waiting() -> None:
    async def scenario(fleet: OwnerFleet) -> None:
        began_s = fleet.world.loop.time()
        await fleet.owners["w0"].drain()
        assert fleet.world.loop.time() - began_s < 5
        assert not fleet.owners["w0"].host.owned()

    run(scenario, workers=1)


@pytest.mark.parametrize("outage_s", [3, 60])
def test_an_outage_of_the_api_moves_nothing(outage_s: float) -> None:
    async def scenario(fleet: OwnerFleet) -> None:
        await asyncio.sleep(30)
        before, opens, began_s = fleet.assigned(), fleet.opens(), fleet.world.loop.time()
        fleet.world.kubernetes.outage(outage_s)
        await asyncio.sleep(outage_s + 60)
        assert fleet.assigned() == before
        assert fleet.opens() == opens
        assert fleet.longest_gap_s(began_s, fleet.world.loop.time()) < 3

    for seed in range(2):
        run(scenario, seed=seed)


def test_workers_that_do_not_reach_the_api_together_keep_their_containers() -> None:
    async def scenario(fleet: OwnerFleet) -> None:
        await asyncio.sleep(30)
        before, opens = fleet.assigned(), fleet.opens()
        for name in ("w0", "w1"):
            fleet.world.kubernetes.cut_off(fleet.owners[name].process, 120)
        await asyncio.sleep(180)
        assert {"w0", "w1"} <= set(fleet.prober.asked)
        assert fleet.assigned() == before
        assert fleet.opens() == opens

    run(scenario)


def test_most_workers_may_die_at_once() -> None:
    async def scenario(fleet: OwnerFleet) -> None:
        await asyncio.sleep(30)
        for name in ("w0", "w1"):
            fleet.world.crash(fleet.owners[name].process)
        await asyncio.sleep(10)
        assert await fleet.settle() < 20
        assert fleet.sizes() == [6]

    run(scenario)


@pytest.mark.parametrize("what", ["status", "containers' and workers' Leases", "everything but the cluster"])
def test_what_is_wiped_comes_back_and_nothing_moves(what: str) -> None:
    async def scenario(fleet: OwnerFleet) -> None:
        await asyncio.sleep(30)
        before, opens, began_s = fleet.assigned(), fleet.opens(), fleet.world.loop.time()
        if "status" in what or "everything" in what:
            fleet.world.kubernetes.wipe_status(STREAM_CLUSTERS, CLUSTER)
        if "status" not in what:
            fleet.world.kubernetes.wipe_all(LEASES)
        await asyncio.sleep(60)
        await fleet.settle()
        assert fleet.longest_gap_s(began_s, fleet.world.loop.time()) < 10
        if what != "everything but the cluster":
            assert fleet.assigned() == before
            assert fleet.opens() == opens
        assert fleet.sizes() == [2, 2, 2]

    for seed in range(2):
        run(scenario, seed=seed)


def test_without_a_cluster_everything_stays_unchanged() -> None:
    async def scenario(fleet: OwnerFleet) -> None:
        await asyncio.sleep(30)
        opens, began_s = fleet.opens(), fleet.world.loop.time()
        fleet.world.kubernetes.wipe_all(LEASES)
        fleet.world.kubernetes.wipe(STREAM_CLUSTERS, CLUSTER)
        await asyncio.sleep(120)
        assert fleet.opens() == opens
        assert fleet.longest_gap_s(began_s, fleet.world.loop.time()) < 3
        fleet.world.kubernetes.core.create(
            STREAM_CLUSTERS, {"metadata": {"name": CLUSTER}, "spec": {"containers": fleet.containers}}
        )
        await fleet.settle()

    run(scenario)


def test_a_zombie_is_fenced_and_comes_back_as_a_worker() -> None:
    async def scenario(fleet: OwnerFleet) -> None:
        await asyncio.sleep(30)
        fleet.world.pause(fleet.owners["w1"].process, 60)
        await asyncio.sleep(30)
        assert await fleet.settle() < 5
        assert fleet.sizes() == [3, 3]
        await asyncio.sleep(60)
        await fleet.settle()
        assert fleet.sizes() == [2, 2, 2]

    run(scenario)


def test_a_loop_that_hangs_is_given_up() -> None:
    async def scenario(fleet: OwnerFleet) -> None:
        await asyncio.sleep(30)
        fleet.owners["w1"].hang()
        await asyncio.sleep(60)
        assert "w1" not in fleet.assigned().values()

    run(scenario)


def test_a_worker_that_was_started_again_elsewhere_ends() -> None:
    """Two processes of one name: the younger stays, and they do not fence each other for ever."""

    async def scenario(fleet: OwnerFleet) -> None:
        await asyncio.sleep(30)
        old = fleet.owners["w1"]
        fleet.start("w1")
        await asyncio.sleep(20)
        assert old.superseded
        assert not old.process.alive
        await fleet.settle()
        opens = fleet.opens()
        await asyncio.sleep(120)
        assert fleet.opens() == opens

    for seed in range(2):
        run(scenario, seed=seed)


@pytest.mark.parametrize("text", ["1000000", str(2**61), "nonsense", "0"])
def test_whatever_is_written_into_a_lease_the_container_opens_again(text: str) -> None:
    """The log judges: one that cannot be opened for what a Lease says goes on from its own last epoch."""

    def write(fleet: OwnerFleet, number: int) -> None:
        core = fleet.world.kubernetes.core
        lease = core.get(LEASES, container_lease_name(CLUSTER, number))
        lease["metadata"]["annotations"]["tailrace.io/epoch"] = text
        core.replace(LEASES, lease)

    async def scenario(fleet: OwnerFleet) -> None:
        await asyncio.sleep(30)
        for _ in range(3):
            owner = fleet.assigned()[0]
            write(fleet, 0)
            fleet.world.crash(fleet.owners[owner].process)
            await asyncio.sleep(fleet.world.random.uniform(0, 2))
            fleet.start(owner)
            for _ in range(4):  # in the middle of the openings, and beside a living owner
                await asyncio.sleep(fleet.world.random.uniform(0, 2))
                write(fleet, 0)
            owner = fleet.assigned()[0]
            second = fleet.owners[owner]
            fleet.start(owner)  # a second process of the worker
            await asyncio.sleep(20)
            assert second.superseded
            await fleet.settle()

    for seed in range(3):
        run(scenario, seed=seed)


def test_another_placer_takes_over_and_nothing_moves() -> None:
    async def scenario(fleet: OwnerFleet) -> None:
        await asyncio.sleep(30)
        opens = fleet.opens()
        fleet.start_placer()  # beside the other, as after a pause of it
        await asyncio.sleep(30)
        fleet.world.crash(fleet.placer_process)
        fleet.start_placer()
        await asyncio.sleep(30)
        assert fleet.opens() == opens
        fleet.world.crash(fleet.owners["w2"].process)
        await asyncio.sleep(20)
        await fleet.settle()
        assert fleet.sizes() == [3, 3]

    run(scenario)


def test_controllers_send_clients_to_the_owners() -> None:
    async def scenario(fleet: OwnerFleet) -> None:
        process = fleet.world.process("controller")
        api = fleet.world.kubernetes.attach(process)
        follower = EndpointFollower(api, CLUSTER, EndpointMap(fleet.containers))
        process.spawn(follower.run())
        fleet.world.kubernetes.dead_watch_chance = 1.0
        for name in ("w0", "w1"):
            fleet.world.crash(fleet.owners[name].process)
            await asyncio.sleep(20)
            await fleet.settle()
            await asyncio.sleep(12)
            hosts = {follower.endpoints.endpoint_of(f"scope/stream/{number}")[0] for number in range(100)}
            assert hosts == set(fleet.assigned().values())
        fleet.world.kubernetes.wipe_status(STREAM_CLUSTERS, CLUSTER)
        fleet.world.crash(fleet.placer_process)
        await asyncio.sleep(12)
        assert {follower.endpoints.endpoint_of(f"scope/stream/{number}")[0] for number in range(100)} == hosts

    run(scenario)
