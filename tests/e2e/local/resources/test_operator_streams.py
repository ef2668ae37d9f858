"""Stream resources and their streams on a real server: made, edited, scaled, deleted, changed by others."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from harness.localobjects import NAMESPACE, NOW, Hand
from tailrace.client.async_client import Client
from tailrace.client.control.owners import StreamDescription
from tailrace.client.model import StreamName
from tailrace.common.errors import NoSuchStreamError, UnavailableError
from tailrace.common.real_ports import SystemClock
from tailrace.common.stream_policies import RetentionPolicy, ScaleType, ScalingPolicy, StreamConfig
from tailrace_operator.connections.controllers import ClusterName, Controllers
from tailrace_operator.kube.objects import STREAM_CLUSTERS, STREAMS
from tailrace_operator.reconcile.deletion_policy import FORCE_DELETE
from tailrace_operator.stream.reconcile import StreamReconciler

KNOWN_DEADLINE_S = 120.0


class Orders:
    """A Stream called orders, and the stream as the controller has it."""

    def __init__(self, hand: Hand, client: Client, scope: str) -> None:
        self.hand = hand
        self.client = client
        self.scope = scope
        self.stream = StreamName(scope, "orders")

    def make(self, name: str = "orders", **spec: Any) -> str:
        """Apply the resource; its uid."""
        made = self.hand.objects.make(STREAMS, name, {"cluster": "main", "scope": self.scope, **spec})
        return str(made["metadata"]["uid"])

    def edit(self, **spec: Any) -> None:
        """Change its spec."""
        self.hand.objects.edit(STREAMS, "orders", spec)

    async def look(self, name: str = "orders") -> None:
        """Reconcile."""
        await self.hand.look(STREAMS, name)

    def condition(self, condition: str = "Ready", name: str = "orders") -> tuple[str, str]:
        """Status and reason."""
        return self.hand.condition(STREAMS, name, condition)

    @property
    def status(self) -> dict[str, Any]:
        """The status but for its conditions."""
        found = self.hand.status(STREAMS, "orders")
        return {name: value for name, value in found.items() if name != "conditions"}

    def is_gone(self) -> bool:
        """Whether the resource is gone."""
        return not self.hand.objects.exists(STREAMS, "orders")

    @property
    def reasons(self) -> list[str]:
        """Events."""
        return self.hand.objects.reasons("orders")

    async def found(self) -> StreamDescription:
        """The stream."""
        return await self.client.context.controller.describe_stream(self.stream)

    async def write(self, count: int = 1) -> None:
        """Some events of 10 bytes."""
        writer = self.client.writer(self.stream)
        await writer.start()
        for _ in range(count):
            await writer.write_event(b"0123456789", "k")
        await writer.close()


@pytest.fixture
async def orders(hand: Hand, client: Client, scope: str) -> Orders:
    """Nothing exists yet, and the controller knows what streams hold: it does not after its start."""
    known = StreamName("known", "stream")
    await client.streams.create_scope(known.scope)
    await client.streams.create_stream(known, StreamConfig(ScalingPolicy.fixed(1)))
    async with asyncio.timeout(KNOWN_DEADLINE_S):
        while (await client.context.controller.describe_stream(known)).held_bytes is None:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return Orders(hand, client, scope)


async def test_a_resource_becomes_a_stream_with_scope_and_status(orders: Orders) -> None:
    uid = orders.make(
        scaling={"minSegments": 3}, tags=["red", "blue"], retention={"type": "Size", "min": "1Ki", "max": "1Gi"}
    )
    await orders.look()
    found = await orders.found()
    assert found.config == StreamConfig(
        ScalingPolicy.fixed(3), RetentionPolicy.by_size_bytes(1024, 2**30), ("blue", "red")
    )
    assert found.owner == f"{NAMESPACE}/orders/{uid}"
    assert orders.status == {
        "observedGeneration": 1,
        "uid": uid,
        "epoch": 0,
        "segments": 3,
        "headBytes": 0,
        "tailBytes": 0,
        "measuredTime": NOW,
        "bytes": 0,
        "tier2Bytes": 0,
        "retention": {"retainedBytes": 0},
    }
    assert orders.condition() == ("True", "InStep")
    assert orders.condition("Accepted") == ("True", "Accepted")
    assert orders.condition("AutoScaling") == ("False", "Fixed")
    assert orders.condition("RetentionEnforced") == ("True", "Enforced")
    assert "StreamCreated" in orders.reasons


async def test_nothing_is_written_for_a_stream_that_does_not_change(orders: Orders) -> None:
    orders.make()
    await orders.look()
    before = await orders.hand.objects.get(STREAMS, NAMESPACE, "orders")
    count = len(orders.hand.objects.events)
    await orders.look()
    assert await orders.hand.objects.get(STREAMS, NAMESPACE, "orders") == before
    assert len(orders.hand.objects.events) == count


async def test_the_status_follows_the_stream(orders: Orders) -> None:
    orders.make(scaling={"type": "EventRate", "target": 100})
    await orders.look()
    await orders.write(5)
    await orders.client.streams.scale_to(orders.stream, 4)
    await orders.look()
    assert orders.status["segments"] == 4, "rates are not fought"
    assert orders.status["epoch"] == 1
    assert (orders.status["lastScale"]["splits"], orders.status["lastScale"]["merges"]) == (1, 0)
    assert orders.reasons.count("StreamScaled") == 1
    await orders.look()
    assert orders.reasons.count("StreamScaled") == 1
    assert orders.status["tailBytes"] == orders.status["bytes"] == 5 * 18
    await orders.client.streams.truncate_stream(orders.stream, await orders.client.streams.tail(orders.stream))
    await orders.look()
    assert (orders.status["headBytes"], orders.status["bytes"]) == (90, 0)
    assert orders.condition("AutoScaling") == ("True", "Enforced")


async def test_scaling_the_resource_splits_and_merges(orders: Orders) -> None:
    orders.make()
    await orders.look()
    for count in (4, 5, 2, 1):
        orders.edit(scaling={"minSegments": count})
        await orders.look()
        assert (await orders.found()).segments == orders.status["segments"] == count
    assert "StreamUpdated" in orders.reasons


async def test_a_minimum_of_a_rate_is_only_raised_to(orders: Orders) -> None:
    orders.make(scaling={"type": "ByteRate", "target": 10, "scaleFactor": 3, "minSegments": 2})
    await orders.look()
    assert (await orders.found()).config.scaling == ScalingPolicy(ScaleType.BY_RATE_IN_KBYTES, 2, 10, 3)
    orders.edit(scaling={"type": "ByteRate", "target": 10, "scaleFactor": 3, "minSegments": 5})
    await orders.look()
    assert (await orders.found()).segments == 5
    orders.edit(scaling={"type": "ByteRate", "target": 10, "scaleFactor": 3, "minSegments": 1})
    await orders.look()
    found = await orders.found()
    assert (found.segments, found.config.scaling.min_segments) == (5, 1)


async def test_changes_by_others_are_taken_back_but_for_what_resources_do_not_tell(orders: Orders) -> None:
    orders.make(scaling={"minSegments": 2}, tags=["mine"])
    await orders.look()
    config = msgspec.structs.replace(
        (await orders.found()).config, tags=("theirs",), timestamp_aggregation_timeout_ms=1234, retention=None
    )
    await orders.client.streams.update_stream(orders.stream, config)
    await orders.client.streams.scale_to(orders.stream, 3)
    await orders.look()
    found = await orders.found()
    assert (found.segments, found.config.tags, found.config.timestamp_aggregation_timeout_ms) == (2, ("mine",), 1234)
    assert found.owner.endswith(orders.status["uid"])


async def test_a_stream_that_was_deleted_is_made_again(orders: Orders) -> None:
    orders.make()
    await orders.look()
    await orders.client.streams.seal_stream(orders.stream)
    await orders.look()
    assert orders.condition() == ("False", "Sealed")
    await orders.client.streams.delete_stream(orders.stream)
    await orders.look()
    assert orders.condition() == ("True", "InStep")
    assert (await orders.found()).incarnation == 1


async def test_a_stream_made_by_hand_is_taken_over_with_its_data(orders: Orders) -> None:
    await orders.client.streams.create_scope(orders.scope)
    await orders.client.streams.create_stream(orders.stream)
    await orders.write()
    orders.make(tags=["now"])
    await orders.look()
    assert (orders.status["bytes"], (await orders.found()).config.tags) == (18, ("now",))


async def test_two_resources_of_one_stream(orders: Orders) -> None:
    orders.make(deletionPolicy="Delete")
    await orders.look()
    orders.make("other", streamName="orders", tags=["other"], deletionPolicy="Delete")
    await orders.look("other")
    assert orders.condition("Accepted", "other") == ("False", "StreamOwnedByAnother")
    assert orders.condition("Ready", "other") == ("False", "StreamOwnedByAnother")
    assert (await orders.found()).config.tags == ()
    orders.hand.objects.remove(STREAMS, "other")
    await orders.look("other")
    assert not orders.hand.objects.exists(STREAMS, "other")
    assert (await orders.found()).state == "active", "the second one has nothing to delete"


async def test_the_second_of_two_resources_takes_over_when_the_first_is_gone(orders: Orders) -> None:
    orders.make()
    await orders.look()
    await orders.write()
    orders.make("other", streamName="orders")
    await orders.look("other")
    orders.hand.objects.remove(STREAMS, "orders")
    await orders.look("other")
    assert orders.condition("Accepted", "other") == ("True", "Accepted")
    assert "StreamAdopted" in orders.hand.objects.reasons("other")
    assert (await orders.found()).tail_bytes == 18


async def test_a_retained_stream_is_adopted_by_the_next_resource_of_the_name(orders: Orders) -> None:
    orders.make()
    await orders.look()
    await orders.write()
    orders.hand.objects.remove(STREAMS, "orders")
    assert orders.is_gone(), "nothing holds a resource that leaves its stream"
    uid = orders.make()
    await orders.look()
    assert "StreamAdopted" in orders.reasons
    assert (await orders.found()).owner.endswith(uid)
    assert orders.status["bytes"] == 18


async def test_a_look_that_is_late_takes_nothing_from_the_next_resource_of_the_name(orders: Orders) -> None:
    orders.make(tags=["old"])
    late = await orders.hand.objects.get(STREAMS, NAMESPACE, "orders")
    await orders.look()
    orders.hand.objects.remove(STREAMS, "orders")
    uid = orders.make(tags=["new"])
    await orders.look()
    outcome = await orders.hand.reconcilers[STREAMS.plural].reconcile(late)
    assert outcome.conditions[0].reason == "StreamOwnedByAnother"
    found = await orders.found()
    assert (found.owner.endswith(uid), found.config.tags) == (True, ("new",))


async def test_deletion_deletes_and_the_name_is_free_at_once(orders: Orders) -> None:
    for _ in range(2):
        orders.make(deletionPolicy="Delete")
        await orders.look()
        await orders.write()
        assert (await orders.found()).tail_bytes == 18
        orders.hand.objects.remove(STREAMS, "orders")
        assert not orders.is_gone(), "until the stream is"
        await orders.look()
        assert orders.is_gone()
        assert orders.reasons[-1] == "StreamDeleted"
        with pytest.raises(NoSuchStreamError):
            await orders.found()
    assert await orders.client.context.controller.scope_exists(orders.scope)


async def test_a_policy_that_becomes_retain_lets_the_stream_stay(orders: Orders) -> None:
    orders.make(deletionPolicy="Delete")
    await orders.look()
    orders.edit(deletionPolicy="Retain")
    await orders.look()
    orders.hand.objects.remove(STREAMS, "orders")
    assert orders.is_gone()
    assert (await orders.found()).state == "active"


async def test_a_stream_made_again_by_hand_is_not_deleted(orders: Orders) -> None:
    orders.make(deletionPolicy="Delete")
    await orders.look()
    orders.hand.objects.remove(STREAMS, "orders")
    await orders.client.streams.seal_stream(orders.stream)
    await orders.client.streams.delete_stream(orders.stream)
    await orders.client.streams.create_stream(orders.stream)
    await orders.look()
    assert orders.is_gone()
    assert orders.reasons[-1] == "StreamRetained"
    assert (await orders.found()).state == "active"


@pytest.mark.parametrize("gone", ["sealed", "deleted", "never made"])
async def test_deletion_ends_whatever_was_done_before(orders: Orders, gone: str) -> None:
    orders.make(deletionPolicy="Delete")
    if gone != "never made":
        await orders.look()
        await orders.client.streams.seal_stream(orders.stream)
    else:
        manifest = await orders.hand.objects.get(STREAMS, NAMESPACE, "orders")
        await orders.hand.objects.set_finalizers(STREAMS, manifest, ["tailrace.io/operator"])
    if gone == "deleted":
        await orders.client.streams.delete_stream(orders.stream)
    orders.hand.objects.remove(STREAMS, "orders")
    await orders.look()
    assert orders.is_gone()


@pytest.mark.parametrize("cause", ["cluster gone", "cluster leaving", "namespace ends", "annotation", "bad spec"])
async def test_nothing_holds_a_resource_whose_stream_cannot_be_deleted(orders: Orders, cause: str) -> None:
    orders.make(deletionPolicy="Delete")
    await orders.look()
    objects = orders.hand.objects
    if cause == "cluster leaving":
        manifest = await objects.get(STREAM_CLUSTERS, NAMESPACE, "main")
        await objects.set_finalizers(STREAM_CLUSTERS, manifest, ["tailrace.io/operator"])
    if cause in ("cluster gone", "cluster leaving"):
        objects.remove(STREAM_CLUSTERS, "main")
    elif cause == "namespace ends":
        objects.terminating.add(NAMESPACE)
    elif cause == "annotation":
        objects.annotate(STREAMS, "orders", FORCE_DELETE)
    else:
        orders.edit(scaling={"type": "Unheard"})
    objects.remove(STREAMS, "orders")
    await orders.look()
    assert orders.is_gone()
    assert orders.reasons[-1] == "StreamRetained"
    assert (await orders.found()).state == "active"


async def test_a_deletion_that_may_have_begun_is_not_said_to_keep_the_data(orders: Orders) -> None:
    orders.make(deletionPolicy="Delete")
    await orders.look()
    objects = orders.hand.objects
    unreachable = Controllers(objects, uri=lambda _: "tcp://127.0.0.1:1")
    orders.hand.reconcilers = {STREAMS.plural: StreamReconciler(objects, unreachable, SystemClock())}
    objects.remove(STREAMS, "orders")
    await orders.look()
    assert orders.condition() == ("False", "DeletionWaits")
    objects.annotate(STREAMS, "orders", FORCE_DELETE)
    await orders.look()
    await unreachable.close()
    assert orders.is_gone()
    assert orders.reasons[-1] == "StreamDeletionUnfinished"


async def test_deletion_waits_for_a_controller_that_is_down_and_says_so(orders: Orders) -> None:
    orders.make(deletionPolicy="Delete")
    await orders.look()
    objects = orders.hand.objects
    unreachable = Controllers(objects, uri=lambda _: "tcp://127.0.0.1:1")
    up = orders.hand.reconcilers
    orders.hand.reconcilers = {STREAMS.plural: StreamReconciler(objects, unreachable, SystemClock())}
    objects.remove(STREAMS, "orders")
    await orders.look()
    assert not orders.is_gone()
    assert orders.condition() == ("False", "DeletionWaits")
    with pytest.raises(UnavailableError, match="does not answer"):
        async with unreachable.use(ClusterName(NAMESPACE, "main")):
            raise AssertionError("no controller listens")
    await unreachable.close()
    orders.hand.reconcilers = up
    await orders.look()
    assert orders.is_gone()
    with pytest.raises(NoSuchStreamError):
        await orders.found()


async def test_impossible_requests_are_conditions(orders: Orders) -> None:
    orders.make(cluster="unknown")
    await orders.look()
    assert orders.condition("Accepted") == ("False", "ClusterNotFound")
    assert orders.condition() == ("False", "ClusterNotFound")
    orders.make("bad", scaling={"type": "EventRate"})
    await orders.look("bad")
    assert orders.condition("Accepted", "bad") == ("False", "InvalidSpec")
