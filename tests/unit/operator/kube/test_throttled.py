"""A request that the Kubernetes API throttles is made again: a reconciliation makes hundreds of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from kubernetes import client

from harness.kubernetesserver import NAMESPACE, KubernetesServer, kubernetes_server
from tailrace.cluster.kubernetes import LEASES, ThrottledError
from tailrace.cluster.kubernetes_requests import translated
from tailrace.common import limits
from tailrace.common.errors import UnavailableError, WriteConflictError
from tailrace_operator.kube.objects import HttpObjects


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "KUBERNETES_THROTTLED_MIN_S", 0.01)


@pytest.fixture
async def server() -> AsyncIterator[tuple[KubernetesServer, HttpObjects]]:
    async with kubernetes_server() as (found, address):
        objects = HttpObjects(client.Configuration(host=address), "test")
        found.core.create(LEASES, {"metadata": {"name": "one"}})
        yield found, objects
        objects.close()


async def test_a_throttled_request_is_repeated(server: tuple[KubernetesServer, HttpObjects]) -> None:
    api, objects = server
    api.answers = [429, 429]
    assert (await objects.get(LEASES, NAMESPACE, "one"))["metadata"]["name"] == "one"
    assert api.requests == ["GET"] * 3
    api.answers = [429]
    assert len(await objects.list(LEASES, NAMESPACE)) == 1


async def test_one_that_is_throttled_again_and_again_fails(server: tuple[KubernetesServer, HttpObjects]) -> None:
    api, objects = server
    api.answers = [429] * 100
    with pytest.raises(UnavailableError, match="get leases one: the Kubernetes API answers 429"):
        await objects.get(LEASES, NAMESPACE, "one")
    assert api.requests == ["GET"] * limits.OPERATOR_THROTTLED_ATTEMPTS


async def test_a_caller_that_measures_time_hears_of_it_at_once(server: tuple[KubernetesServer, HttpObjects]) -> None:
    """A standby, which counts for how long workers are silent: they are throttled, too."""
    api, objects = server
    address = objects._calls.address
    once = HttpObjects(client.Configuration(host=address), "test", attempts=1)
    api.answers = [429]
    with pytest.raises(ThrottledError):
        await once.list(LEASES, NAMESPACE)
    assert api.requests == ["GET"]
    once.close()


@pytest.mark.parametrize("code", [500, 503, 403])
async def test_other_failures_are_left_to_the_caller(server: tuple[KubernetesServer, HttpObjects], code: int) -> None:
    """Of a write that was begun the outcome is unknown."""
    api, objects = server
    api.answers = [code]
    with pytest.raises(UnavailableError):
        await objects.get(LEASES, NAMESPACE, "one")
    assert api.requests == ["GET"]


async def test_a_pause_ends_with_its_caller(
    server: tuple[KubernetesServer, HttpObjects], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "KUBERNETES_THROTTLED_MIN_S", 3600.0)
    monkeypatch.setattr(limits, "KUBERNETES_THROTTLED_MAX_S", 3600.0)
    api, objects = server
    api.answers = [429]
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1.0):
            await objects.get(LEASES, NAMESPACE, "one")


@pytest.mark.parametrize(
    ("headers", "pause_s"),
    [
        ({"Retry-After": "3"}, 3.0),
        ({"Retry-After": "600"}, 5.0),
        ({"Retry-After": "soon"}, 0.01),
        ({}, 0.01),
        (None, 0.01),
    ],
)
def test_the_pause_is_what_the_api_asks_for_within_bounds(headers: dict[str, str] | None, pause_s: float) -> None:
    error = client.ApiException(429, "Too Many Requests")
    error.headers = headers
    found = translated("get x", error, WriteConflictError)
    assert isinstance(found, ThrottledError)
    assert found.pause_s == pause_s
