"""The placer's steps: what it reads, what it writes, and what it leaves alone (docs/design.md#ownership)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Any

from harness.localkubernetes import LocalKubernetes
from sim import SimWorld
from tailrace.cluster.cluster_map import Assignment, ClusterMap, read_map, write_map
from tailrace.cluster.endpoints import ContainerEndpoints, Endpoint
from tailrace.cluster.failure import FailureDetector, Renewal
from tailrace.cluster.kubernetes import LEASES, STREAM_CLUSTERS
from tailrace.cluster.leases import (
    WORKER_ROLE,
    ContainerLease,
    WorkerLease,
    container_lease_name,
    labels_of,
    read_worker_lease,
    worker_lease_name,
    write_container_lease,
    write_worker_lease,
)
from tailrace.cluster.placer import Decision, Placer, Unconfirmed
from tailrace.cluster.prober import HelloProber
from tailrace.common import limits
from tailrace.common.errors import UnavailableError, WriteConflictError
from tailrace.wire import commands as c
from tailrace.wire.codec import encode
from tailrace.wire.commands_append import WRONG_HOST_OLDEST_VERSION

COUNT = 4
WORKERS = labels_of("c", WORKER_ROLE)


def endpoints_of(worker: str) -> ContainerEndpoints:
    return ContainerEndpoints(Endpoint(f"host-{worker}", 1))


class Stage:
    """A cluster, its placer, and workers that renew with each step."""

    def __init__(self, workers: Iterable[str] = "ab", holders: str = "") -> None:
        self.api = LocalKubernetes()
        self.core = self.api.core
        self.core.create(STREAM_CLUSTERS, {"metadata": {"name": "c"}, "spec": {"containers": COUNT}})
        self.renewals = dict.fromkeys(workers, 0)
        self.leaving: set[str] = set()
        self.clusters: dict[str, str] = {}
        self.starts: dict[str, int] = {}
        self.answering: set[str] = set()
        self.store_silent_s: dict[str, int] = {}
        self.refusing: set[str] = set()
        self.asked: list[tuple[str, ContainerEndpoints | None]] = []
        self.refusal_takes_s = 0.0
        for number, holder in enumerate(holders):
            self.hold(number, holder)
        self.placer = Placer(self.api, "c", self)

    async def answers(self, worker: str, endpoints: ContainerEndpoints | None) -> bool:
        """See Prober.answers."""
        self.asked.append((worker, endpoints))
        return worker in self.answering and endpoints is not None

    async def refuses(self, worker: str, endpoints: ContainerEndpoints | None) -> bool:
        """See Prober.refuses."""
        await asyncio.sleep(self.refusal_takes_s)
        return worker in self.refusing and endpoints is not None

    def hold(self, number: int, holder: str) -> None:
        """Write a container's Lease: held by a worker, by no worker (``.``), or not there (``-``)."""
        name = container_lease_name("c", number)
        if ("leases", name) in self.core.objects:
            self.core.delete(LEASES, name)
        if holder != "-":
            lease = ContainerLease(number, holder.strip("."), 1)
            self.core.create(LEASES, write_container_lease("c", lease, None, 0))

    async def step(self, *, silent: Collection[str] = "") -> Decision:
        """One second later."""
        await asyncio.sleep(1.0)
        for worker in self.renewals:
            if worker in silent:
                continue
            self.renewals[worker] += 1
            leaving, cluster_id = worker in self.leaving, self.clusters.get(worker, "")
            incarnation = str(self.starts.get(worker, 1))
            lease = WorkerLease(
                worker,
                incarnation,
                self.renewals[worker],
                leaving,
                endpoints_of(worker),
                cluster_id,
                store_silent_s=self.store_silent_s.get(worker, 0),
            )
            name = worker_lease_name("c", worker)
            if ("leases", name) in self.core.objects:
                self.core.replace(LEASES, write_worker_lease("c", lease, self.core.get(LEASES, name), 0))
            else:
                self.core.create(LEASES, write_worker_lease("c", lease, None, 0))
        return await self.placer.step()

    def put(self, owners: str, before: str = "", workers: str = "ab") -> None:
        """Write a map: the owner of each container by a letter, ``-`` for none."""
        assignments = {n: Assignment(owner, before) for n, owner in enumerate(owners) if owner != "-"}
        cluster_map = ClusterMap(COUNT, assignments, {worker: endpoints_of(worker) for worker in workers})
        self.core.replace_status(STREAM_CLUSTERS, write_map(self.core.get(STREAM_CLUSTERS, "c"), cluster_map))

    @property
    def map(self) -> ClusterMap:
        """Return the stored map."""
        return read_map(self.core.get(STREAM_CLUSTERS, "c"))

    @property
    def owners(self) -> str:
        """Owners as of `put`, with a capital where the container is handed over."""
        found = [self.map.assignments.get(number) for number in range(COUNT)]
        return "".join("-" if a is None else a.worker.upper() if a.handed_over_by else a.worker for a in found)


def on_stage(scenario: Callable[[Stage], Awaitable[None]], **options: Any) -> None:
    with SimWorld(1) as world:

        async def main() -> None:
            await scenario(Stage(**options))

        world.run(main())


STREAK = round(limits.WORKER_STORE_SILENT_S) + 2
"""Looks after which the placer knows whom the object store answers."""


def test_who_is_cut_off_from_the_object_store_has_no_containers_until_it_answers_again() -> None:
    async def scenario(stage: Stage) -> None:
        for _ in range(STREAK):
            await stage.step()
        assert stage.owners == "aabb"
        stage.store_silent_s = {"a": round(limits.WORKER_STORE_SILENT_S) - 1}
        await stage.step()
        assert stage.owners == "aabb"
        stage.store_silent_s = {"a": round(limits.WORKER_STORE_SILENT_S)}
        decision = await stage.step()
        assert "without an answer of the object store: a" in decision.reason
        assert stage.owners == "bbbb", "at once, and not handed over: it cannot flush"
        for _ in range(round(limits.PLACER_UNEVEN_MAX_S) + 10):
            await stage.step()
        assert stage.owners == "bbbb"
        stage.store_silent_s = {}
        for _ in range(round(limits.PLACER_BALANCE_DELAY_S + limits.PLACER_UNHELD_MAX_S) + 10):
            await stage.step()
        assert sorted(stage.owners.lower()) == ["a", "a", "b", "b"]

    on_stage(scenario)


def test_when_the_object_store_answers_no_worker_nothing_moves() -> None:
    async def scenario(stage: Stage) -> None:
        for _ in range(STREAK):
            await stage.step()
        before = stage.owners
        stage.store_silent_s = {"a": 30, "b": 5, "c": 8}
        for _ in range(STREAK):
            await stage.step()
        assert stage.owners == before
        stage.store_silent_s = {"a": 30}  # the others notice its return first
        for _ in range(STREAK - 3):
            await stage.step()
        assert stage.owners == before
        stage.store_silent_s = {}
        for _ in range(STREAK):
            await stage.step()
        assert stage.owners == before

    on_stage(scenario, workers="abc")


def test_who_leaves_proves_nothing_of_the_object_store() -> None:
    async def scenario(stage: Stage) -> None:
        for _ in range(STREAK):
            await stage.step()
        stage.leaving = {"b"}
        stage.store_silent_s = {"a": 30}
        decision = await stage.step()
        assert "without an answer" not in decision.reason
        assert "a" in stage.owners.lower(), "b takes no containers, though the store answers it"

    on_stage(scenario)


def test_who_is_silent_and_refuses_connections_is_replaced_before_the_lapse() -> None:
    async def scenario(stage: Stage) -> None:
        for _ in range(3):
            await stage.step()
        assert stage.owners == "aabb"
        stage.refusing = {"a", "b"}  # a worker that renews is not asked
        for _ in range(10):
            await stage.step()
        assert stage.owners == "aabb"
        await stage.step(silent="a")
        assert stage.owners == "aabb"
        assert "gone: a" in (await stage.step(silent="a")).reason
        assert stage.owners == "bbbb"
        assert not stage.asked, "a refusal needs no Hello"

    on_stage(scenario)


def test_who_is_silent_and_accepts_connections_has_its_whole_lapse() -> None:
    async def scenario(stage: Stage) -> None:
        for _ in range(3):
            await stage.step()
        for _ in range(4):
            await stage.step(silent="a")
            assert stage.owners == "aabb"
        await stage.step(silent="a")
        assert stage.owners == "bbbb"

    on_stage(scenario)


def test_many_that_neither_answer_nor_refuse_are_given_up_as_few_are() -> None:
    """To ask them must not take so long that the next look counts as a lost connection, time after time."""
    workers = [f"w{number:03}" for number in range(400)]

    async def scenario(stage: Stage) -> None:
        stage.refusal_takes_s = limits.PROBE_REFUSAL_DEADLINE_S
        for _ in range(3):
            await stage.step()
        began_s = asyncio.get_running_loop().time()
        while "gone" not in (await stage.step(silent=workers[:190])).reason:
            assert asyncio.get_running_loop().time() - began_s < 20
        assert {assignment.worker for assignment in stage.map.assignments.values()} <= {*workers[190:]}

    on_stage(scenario, workers=workers)


def test_no_worker_lapses_while_others_are_asked() -> None:
    """Silence ends with the last look: who renewed after it is not known yet."""

    async def scenario(stage: Stage) -> None:
        for _ in range(3):
            await stage.step()
        for _ in range(3):
            await stage.step(silent="a")
        stage.refusal_takes_s = 1.5
        assert "gone" not in (await stage.step(silent="a")).reason
        stage.refusal_takes_s = 0.0
        for _ in range(3):
            assert "gone" not in (await stage.step()).reason
        assert stage.owners == "aabb"

    on_stage(scenario)


def test_a_new_cluster_is_placed_once_its_workers_are_known_to_live() -> None:
    async def scenario(stage: Stage) -> None:
        first = await stage.step()
        assert first == Decision("nothing moves until it is known whether a, b are alive", changed=True)
        assert stage.owners == "----"
        second = await stage.step()
        assert second == Decision("workers that take containers: 2; containers placed: 4", changed=True)
        assert stage.owners == "aabb"
        assert stage.map.workers == {"a": endpoints_of("a"), "b": endpoints_of("b")}
        assert await stage.step() == Decision("workers that take containers: 2")

    on_stage(scenario)


def test_a_lost_map_is_made_again_from_the_leases() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.step()
        await stage.step()
        assert stage.owners == "baba"
        assert not any(assignment.handed_over_by for assignment in stage.map.assignments.values())

    on_stage(scenario, holders="baba")


def test_a_lost_map_with_holders_that_are_not_seen_yet_moves_nothing() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.step()
        for _ in range(3):
            decision = await stage.step()
            assert decision.reason == "nothing moves until it is known whether x are alive"
            assert stage.owners == "xaxa"
        stage.renewals["x"] = 0
        await stage.step()
        assert stage.owners == "xaxa"

    on_stage(scenario, workers="a", holders="xaxa")


def test_a_worker_that_only_the_map_names_is_waited_for_and_given_up() -> None:
    async def scenario(stage: Stage) -> None:
        stage.put("abxx")
        for _ in range(6):
            await stage.step()
            assert stage.owners == "abxx"
        await stage.step()
        assert stage.owners == "abab"

    on_stage(scenario)


def test_a_map_that_names_an_unknown_worker_moves_nothing_at_once() -> None:
    async def scenario(stage: Stage) -> None:
        for _ in range(3):
            await stage.step()
        stage.put("abxx")  # by another placer, which knows more
        assert (await stage.step()).reason == "nothing moves until it is known whether x are alive"
        assert stage.owners == "abxx"

    on_stage(scenario)


def test_a_drain_moves_a_few_at_a_time_and_says_whom_to_wait_for() -> None:
    async def scenario(stage: Stage) -> None:
        stage.put("aaab")
        for number, holder in enumerate("aaab"):
            stage.hold(number, holder)
        stage.leaving.add("a")
        await stage.step()
        await stage.step()
        assert stage.owners == "BBab"
        assert stage.map.assignments[0] == Assignment("b", "a")
        stage.hold(0, ".")  # let go: on its way
        stage.hold(1, "b")  # taken: done
        await stage.step()
        assert stage.owners == "BbBb"
        stage.hold(2, "-")  # unknown: done
        assert (await stage.step()).reason == "workers that take containers: 1; leaving: a; were on their way: 1"
        assert stage.owners == "Bbbb"
        stage.hold(0, "b")
        await stage.step()
        assert stage.owners == "bbbb"

    on_stage(scenario)


def test_a_hand_over_by_a_worker_that_died_is_over() -> None:
    async def scenario(stage: Stage) -> None:
        stage.put("bbcc", before="a", workers="abc")
        for number in range(COUNT):
            stage.hold(number, "a")
        for _ in range(10):
            await stage.step(silent="a")
        assert stage.owners == "bbcc"

    on_stage(scenario, workers="abc")


def test_a_hand_over_whose_end_is_not_reported_is_over_at_last() -> None:
    """`a` took an epoch when the map was lost, and never opened the container: `b` has it, and needs no other epoch."""

    async def scenario(stage: Stage) -> None:
        stage.put("bbbb", before="a")
        for _ in range(2 + int(limits.HANDOVER_TIMEOUT_S)):
            await stage.step()
        assert stage.owners == "BBBB"
        for _ in range(int(limits.HANDOVER_RECORD_MAX_S)):
            await stage.step()
        assert "B" not in stage.owners
        for _ in range(2 * int(limits.HANDOVER_RECORD_MAX_S)):
            await stage.step()
        assert sorted(stage.owners) == ["a", "a", "b", "b"]

    on_stage(scenario, holders="aaaa")


def test_containers_of_a_leaving_worker_stay_when_there_is_no_other() -> None:
    async def scenario(stage: Stage) -> None:
        stage.put("aaaa", workers="a")
        stage.leaving.add("a")
        for _ in range(4):
            await stage.step()
        assert stage.owners == "aaaa"

    on_stage(scenario, workers="a")


def test_the_pods_of_those_that_fell_silent_together_are_asked() -> None:
    async def scenario(stage: Stage) -> None:
        for _ in range(3):
            await stage.step()
        assert stage.owners == "aabb"
        stage.answering.add("a")
        reasons = [(await stage.step(silent="ab")).reason for _ in range(11)]
        assert "workers that take containers: 0; silent together and kept until they are probed: a, b" in reasons
        assert stage.asked == [("a", endpoints_of("a")), ("b", endpoints_of("b"))]
        assert stage.owners == "aabb"  # no worker takes them
        stage.renewals["c"] = 0
        await stage.step(silent="ab")
        await stage.step(silent="ab")
        assert stage.owners == "aacc"

    on_stage(scenario)


# -- balance ----------------------------------------------------------------------------------------------------------

CALM_STEPS = int(limits.PLACER_BALANCE_DELAY_S)
LAPSE_STEPS = int(limits.WORKER_LEASE_LAPSE_S) + 2


async def lose_b(stage: Stage) -> None:
    """Two workers, of which one dies: the other one has everything."""
    for _ in range(3):
        await stage.step()
    assert stage.owners == "aabb"
    for _ in range(LAPSE_STEPS):
        if (await stage.step(silent="b")).changed:
            break
    assert stage.owners == "aaaa"


def test_who_comes_to_lead_asks_those_that_fell_silent_together_where_their_leases_say() -> None:
    """It may know of their silence before its first step, and has not read the map then."""

    async def scenario(stage: Stage) -> None:
        detector = FailureDetector()
        stage.answering = set("abcd")
        for number in range(20):
            await stage.step(silent="abc" if number >= 5 else "")
            leases = [read_worker_lease(item) for item in (await stage.api.list(LEASES, WORKERS)).items]
            renewals = {lease.worker: Renewal(lease.incarnation, lease.renewal) for lease in leases if lease}
            now_s = asyncio.get_running_loop().time()
            detector.look(now_s, renewals)
            asks = detector.verdict(now_s).ask
        assert stage.owners == "abcd"
        assert asks == ("a", "b", "c")
        stage.asked.clear()
        stage.placer = Placer(stage.api, "c", stage, detector=detector)
        for _ in range(5):
            await stage.step(silent="abc")
            assert stage.owners == "abcd"
        assert stage.asked == [(worker, endpoints_of(worker)) for worker in "abc"]

    on_stage(scenario, workers="abcd")


def test_a_worker_that_is_back_gets_its_share_when_the_map_has_been_calm_for_a_while() -> None:
    """Its containers were just recovered elsewhere: a move at once would be a second interruption for their clients."""

    async def scenario(stage: Stage) -> None:
        await lose_b(stage)
        for _ in range(CALM_STEPS):
            decision = await stage.step()
            assert stage.owners == "aaaa"
        assert decision.reason == "workers that take containers: 2; move later: 2"
        await stage.step()
        assert stage.owners == "aaBa"

    on_stage(scenario)


def test_a_new_cluster_whose_workers_come_one_after_the_other_is_even_in_the_end() -> None:
    async def scenario(stage: Stage) -> None:
        for _ in range(3):
            await stage.step()
        assert stage.owners == "aaaa"
        for worker in "bcd":
            stage.renewals[worker] = 0
            for _ in range(CALM_STEPS):
                await stage.step()
        assert stage.owners == "aaaa", "each of them is a change"
        for _ in range(CALM_STEPS):
            await stage.step()
        assert sorted(stage.owners.lower()) == ["a", "b", "c", "d"]

    on_stage(scenario, workers="a")


def test_a_worker_that_was_started_again_recovers_what_it_has_before_anything_moves() -> None:
    async def scenario(stage: Stage) -> None:
        stage.put("aaaa")
        for _ in range(CALM_STEPS):
            await stage.step()
        stage.starts["a"] = 2  # within the time of a lapse: it keeps everything
        for _ in range(CALM_STEPS):
            await stage.step()
            assert stage.owners == "aaaa"
        await stage.step()
        assert stage.owners == "aaBa"

    on_stage(scenario)


def test_containers_of_a_worker_that_is_gone_are_lost_until_another_takes_them() -> None:
    async def scenario(stage: Stage) -> None:
        everything = frozenset(range(COUNT))
        assert stage.placer.unconfirmed is None
        stage.put("aabb")
        await stage.step()
        assert stage.placer.unconfirmed == Unconfirmed(worker_unknown=everything), "no worker was heard yet"
        await stage.step()
        assert stage.placer.unconfirmed == Unconfirmed()
        while stage.owners != "aaaa":
            await stage.step(silent="b")
            assert stage.placer.unconfirmed == Unconfirmed(), "who is gone has lost nothing that another one has"
        while "gone: a, b" not in (await stage.step(silent="ab")).reason:
            assert stage.placer.unconfirmed in (Unconfirmed(), Unconfirmed(worker_unknown=everything))
        assert stage.owners == "aaaa"
        assert stage.placer.unconfirmed == Unconfirmed(worker_dead=everything)
        assert (await stage.step(silent="a")).changed
        assert stage.owners == "bbbb"
        assert stage.placer.unconfirmed == Unconfirmed()

    on_stage(scenario)


def test_who_leaves_is_not_kept_waiting_for_calm() -> None:
    async def scenario(stage: Stage) -> None:
        await lose_b(stage)
        stage.leaving.add("a")
        await stage.step()
        assert stage.owners == "BBaa"

    on_stage(scenario)


def test_containers_that_are_not_taken_yet_are_waited_for() -> None:
    async def scenario(stage: Stage) -> None:
        stage.put("aaaa")
        for number, holder in enumerate("aab."):  # the last two are not with whom they are assigned to
            stage.hold(number, holder)
        for _ in range(2 * CALM_STEPS):
            await stage.step()
        assert stage.owners == "aaaa"
        stage.hold(2, "a")
        await stage.step()
        assert stage.owners == "aaaa"
        stage.hold(3, "a")
        await stage.step()
        assert stage.owners == "aaBa"

    on_stage(scenario)


def test_the_wait_for_containers_that_are_never_taken_ends() -> None:
    async def scenario(stage: Stage) -> None:
        stage.put("aaaa")
        stage.hold(0, ".")
        for _ in range(CALM_STEPS + int(limits.PLACER_UNHELD_MAX_S)):
            await stage.step()
            assert stage.owners == "aaaa"
        for _ in range(5):
            await stage.step()
        assert stage.owners == "aabb"

    on_stage(scenario)


def test_a_worker_that_is_started_again_and_again_does_not_keep_others_without_a_share() -> None:
    async def scenario(stage: Stage) -> None:
        stage.put("aaaa")
        for number in range(int(limits.PLACER_UNEVEN_MAX_S)):
            stage.starts["a"] = 1 + number // 10
            await stage.step()
            assert stage.owners == "aaaa"
        for _ in range(5):
            await stage.step()
        assert stage.owners == "aabb"

    on_stage(scenario)


def test_endpoints_that_change_are_written_and_those_of_the_lost_stay_as_long_as_they_are_needed() -> None:
    async def scenario(stage: Stage) -> None:
        for _ in range(3):
            await stage.step()
        stage.core.delete(LEASES, worker_lease_name("c", "b"))
        await stage.step(silent="b")
        assert stage.map.workers.keys() == {"a", "b"}
        for _ in range(6):
            await stage.step(silent="b")
        assert stage.owners == "aaaa"
        assert stage.map.workers.keys() == {"a"}

    on_stage(scenario)


def test_a_worker_that_was_given_up_is_named_while_containers_are_assigned_to_it() -> None:
    """Its Lease stays; who leaves would wait for it to take containers."""

    async def scenario(stage: Stage) -> None:
        await lose_b(stage)
        await stage.step(silent="b")
        assert stage.map.workers.keys() == {"a"}
        await stage.step()
        assert stage.map.workers.keys() == {"a", "b"}
        stage.put("bbbb")
        for _ in range(LAPSE_STEPS):
            stage.leaving.add("a")
            await stage.step(silent="b")
        assert stage.map.workers.keys() == {"a", "b"}, "b is to have them all, and no other worker takes them"

    on_stage(scenario)


def test_what_fails_ends_the_step_and_the_next_one_goes_on() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.step()
        errors: dict[str, Exception] = {}

        async def fail(verb: str, kind: Any, name: str) -> None:
            if verb in errors:
                raise errors.pop(verb)

        stage.api.before = fail
        errors["list"] = UnavailableError("away")
        assert "could not be listed" in (await stage.step()).reason
        errors["get"] = UnavailableError("away")
        assert "the map was not written: away" in (await stage.step()).reason
        errors["status"] = WriteConflictError("changed")
        assert "the map was not written: changed" in (await stage.step()).reason
        assert stage.owners == "----"
        await stage.step()
        assert stage.owners == "aabb"
        stage.core.delete(STREAM_CLUSTERS, "c")
        assert "there is no cluster" in (await stage.step()).reason

    on_stage(scenario)


def test_all_else_in_the_status_stays() -> None:
    async def scenario(stage: Stage) -> None:
        manifest = stage.core.get(STREAM_CLUSTERS, "c")
        stage.core.replace_status(STREAM_CLUSTERS, {**manifest, "status": {"conditions": ["x"]}})
        await stage.step()
        await stage.step()
        assert stage.owners == "aabb"
        assert stage.core.get(STREAM_CLUSTERS, "c")["status"]["conditions"] == ["x"]

    on_stage(scenario)


# -- asking pods ------------------------------------------------------------------------------------------------------


def test_a_pod_answers_when_it_says_anything() -> None:
    with SimWorld(1) as world:

        class Server(asyncio.Protocol):
            def __init__(self, answer: bytes) -> None:
                self.answer = answer

            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                self.transport: Any = transport

            def data_received(self, data: bytes) -> None:
                if self.answer == b"close":
                    self.transport.close()
                else:
                    self.transport.write(self.answer)

        async def main() -> None:
            pod, asker = world.process("pod"), world.process("placer")
            loop = world.loop

            async def serve() -> None:
                answers = {
                    1: encode(c.Hello(16, 5)),
                    2: b"",
                    3: b"close",
                    4: b"\0\0",
                    6: encode(c.Hello(16, WRONG_HOST_OLDEST_VERSION)),
                    7: encode(c.KeepAlive()) + bytes(8),
                    8: encode(c.Hello(17, 5)) + encode(c.KeepAlive()),
                }
                for port, answer in answers.items():
                    await loop.create_server(lambda answer=answer: Server(answer), "pod", port)

            await pod.spawn(serve())

            async def ask(port: int) -> bool:
                return await HelloProber().answers("w", ContainerEndpoints(Endpoint("pod", port)))

            async def refuses(port: int) -> bool:
                return await HelloProber().refuses("w", ContainerEndpoints(Endpoint("pod", port)))

            assert [await asker.spawn(refuses(port)) for port in range(1, 9)] == [port == 5 for port in range(1, 9)]
            assert not await asker.spawn(HelloProber().refuses("w", None))

            began_s = loop.time()
            found = [await asker.spawn(ask(port)) for port in range(1, 9)]
            assert found == [True, False, False, False, False, False, False, True]
            assert loop.time() - began_s < 4 * limits.PROBE_DEADLINE_S
            assert not await asker.spawn(HelloProber().answers("w", None))

        world.run(main())


def test_workers_of_a_cluster_that_had_the_name_before_get_nothing_of_the_new_one() -> None:
    """Their pods are still ending, and hold their own containers, over their own Tier 2."""

    async def scenario(stage: Stage) -> None:
        core = stage.core
        core.delete(STREAM_CLUSTERS, "c")
        core.create(STREAM_CLUSTERS, {"metadata": {"name": "c"}, "spec": {"containers": COUNT}})
        uid = core.get(STREAM_CLUSTERS, "c")["metadata"]["uid"]
        stage.clusters = {"a": "old", "b": "old"}
        for number in range(COUNT):
            core.create(LEASES, write_container_lease("c", ContainerLease(number, "ab"[number % 2], 7, "old"), None, 0))
        for _ in range(4):
            await stage.step()
        assert stage.owners == "----"
        assert not stage.map.workers, "no client is to be sent there"

        stage.renewals["d"], stage.clusters["d"] = 0, uid
        for _ in range(3):
            await stage.step()
        assert stage.owners == "dddd"
        assert set(stage.map.workers) == {"d"}

    on_stage(scenario)


def test_workers_of_an_adopted_cluster_are_the_cluster_s_own() -> None:
    async def scenario(stage: Stage) -> None:
        core = stage.core
        core.delete(STREAM_CLUSTERS, "c")
        spec = {"containers": COUNT, "adoptClusterId": "old"}
        core.create(STREAM_CLUSTERS, {"metadata": {"name": "c"}, "spec": spec})
        stage.clusters = {"a": "old", "b": "old"}
        for _ in range(3):
            await stage.step()
        assert stage.owners == "aabb"

    on_stage(scenario)


async def test_an_endpoint_that_is_no_name_is_an_answer_and_no_failure() -> None:
    """Every client that may write Leases sets the annotations with endpoints; a placer that fails places nothing."""
    for host in ("x" * 64 + ".svc", "a..b", "\ud800", "a\x00b"):
        assert not await HelloProber().answers("w", ContainerEndpoints(Endpoint(host, 1)))
        assert not await HelloProber().refuses("w", ContainerEndpoints(Endpoint(host, 1)))
