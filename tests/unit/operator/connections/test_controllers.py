"""Connections to controllers: one each, bounded, and short with those that do not answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from harness.localobjects import NAMESPACE, LocalObjects
from tailrace.cluster.kubernetes import STREAM_CLUSTERS
from tailrace.common import limits
from tailrace.common.errors import DeadlineError, NotFoundError, OverloadedError, UnavailableError
from tailrace_operator.connections.controllers import ClusterName, ClusterState, Controllers

UNREACHABLE = "tcp://127.0.0.1:1"
MAIN = ClusterName(NAMESPACE, "main")


class Answering(Controllers):
    """Controllers that answer the first question, as far as `answers` says; counts the questions."""

    def __init__(self, objects: LocalObjects) -> None:
        super().__init__(objects, uri=self._address)
        self.answers = True
        self.asked = 0

    def _address(self, cluster: ClusterName) -> str:
        return UNREACHABLE

    def _link(self, cluster: ClusterName):  # type: ignore[no-untyped-def]
        link = super()._link(cluster)

        async def scope_exists(scope: str) -> bool:
            self.asked += 1
            if not self.answers:
                raise UnavailableError("no controller listens")
            return True

        link.client.context.controller.scope_exists = scope_exists  # type: ignore[method-assign]
        return link


@pytest.fixture
def objects() -> LocalObjects:
    """No resources."""
    return LocalObjects()


@pytest.fixture
async def controllers(objects: LocalObjects) -> AsyncIterator[Answering]:
    """Connections that answer."""
    made = Answering(objects)
    yield made
    await made.close()


async def test_a_client_is_kept_and_the_controller_is_asked_once_in_a_while(controllers: Answering) -> None:
    async with controllers.use(MAIN) as first:
        pass
    async with controllers.use(MAIN) as second:
        assert second is first
    assert controllers.asked == 1


async def test_a_controller_that_does_not_answer_is_left_alone_for_a_while(
    controllers: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    controllers.answers = False
    for _ in range(20):
        with pytest.raises(UnavailableError, match="main does not answer"):
            async with controllers.use(MAIN):
                raise AssertionError("no controller listens")
    assert controllers.asked == 1, "the others failed at once"
    controllers.answers = True
    link = controllers._links[MAIN]
    link.silent_until_s = 0.0
    async with controllers.use(MAIN):
        pass
    async with controllers.use(MAIN):
        pass
    assert controllers.asked == 2


async def test_a_cluster_that_changed_is_probed_again(controllers: Answering) -> None:
    controllers.invalidate(MAIN)  # nothing is known yet
    controllers.answers = False
    with pytest.raises(UnavailableError, match="main does not answer"):
        async with controllers.use(MAIN):
            raise AssertionError("no controller listens")
    controllers.answers = True
    controllers.invalidate(MAIN)
    async with controllers.use(MAIN):
        pass
    controllers.answers = False
    controllers.invalidate(MAIN)
    with pytest.raises(UnavailableError, match="main does not answer"):
        async with controllers.use(MAIN):
            raise AssertionError("it answered a moment ago")


async def test_concurrent_callers_wait_for_the_one_probe(controllers: Answering) -> None:
    async def use() -> None:
        async with controllers.use(MAIN):
            await asyncio.sleep(0)

    await asyncio.gather(*(use() for _ in range(50)))
    assert controllers.asked == 1


async def test_what_takes_too_long_ends_and_the_controller_is_asked_again(
    controllers: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "OPERATOR_CONTROLLER_DEADLINE_S", 0.01)
    with pytest.raises(DeadlineError, match="took more than"):
        async with controllers.use(MAIN):
            await asyncio.Event().wait()
    async with controllers.use(MAIN):
        pass
    assert controllers.asked == 2


async def test_clients_are_bounded_and_those_in_use_stay(
    controllers: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "OPERATOR_CLIENTS_MAX", 2)
    names = [ClusterName(NAMESPACE, f"c{number}") for number in range(3)]
    async with controllers.use(names[0]) as used:
        async with controllers.use(names[1]):
            pass
        async with controllers.use(names[2]):
            assert list(controllers._links) == [names[0], names[2]], "the idle one made room"
            with pytest.raises(OverloadedError):
                async with controllers.use(names[1]):
                    raise AssertionError("there is no room")
        async with controllers.use(names[0]) as again:
            assert again is used


async def test_a_cluster_is_looked_up_once_in_a_while(objects: LocalObjects, controllers: Answering) -> None:
    objects.make(STREAM_CLUSTERS, "main", {})
    for _ in range(5):
        assert await controllers.state(MAIN) is ClusterState.EXISTS
    assert objects.gets == 1
    manifest = await objects.get(STREAM_CLUSTERS, NAMESPACE, "main")
    await objects.set_finalizers(STREAM_CLUSTERS, manifest, ["x"])
    objects.remove(STREAM_CLUSTERS, "main")
    assert await controllers.state(MAIN) is ClusterState.EXISTS
    controllers.invalidate(MAIN)
    assert await controllers.state(MAIN) is ClusterState.DELETING
    assert await controllers.state(MAIN, fresh=True) is ClusterState.DELETING


async def test_connections_to_a_cluster_that_is_gone_are_closed(objects: LocalObjects, controllers: Answering) -> None:
    objects.make(STREAM_CLUSTERS, "main", {})
    async with controllers.use(MAIN):
        pass
    objects.remove(STREAM_CLUSTERS, "main")
    assert await controllers.state(MAIN, fresh=True) is ClusterState.MISSING
    assert MAIN not in controllers._links
    assert await controllers.state(MAIN) is ClusterState.MISSING
    with pytest.raises(NotFoundError):
        await objects.get(STREAM_CLUSTERS, NAMESPACE, "main")


async def test_how_often_policies_are_applied(controllers: Answering, objects: LocalObjects) -> None:
    tier2 = {"bucket": "data", "endpoint": "http://minio:9000", "credentialsSecret": "s3"}
    objects.make(STREAM_CLUSTERS, "main", {"tier2": tier2, "retention": {"period": "2m"}})
    assert await controllers.retention_period_ms(MAIN) == 120_000
    controllers.invalidate(MAIN)
    objects.edit(STREAM_CLUSTERS, "main", {"tier2": {}})
    assert await controllers.retention_period_ms(MAIN) is None
    assert await controllers.retention_period_ms(ClusterName(NAMESPACE, "missing")) is None
