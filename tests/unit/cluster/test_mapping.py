"""Placement of segments: the published check values, and that it is stable and even."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.cluster.endpoints import (
    ContainerEndpoints,
    Endpoint,
    EndpointMap,
    ListenerKind,
)
from tailrace.cluster.segment_mapping import container_of, jump_hash
from tailrace.common.errors import BadRequestError, UnavailableError
from tailrace.common.limits import MIB
from tailrace.common.names import container_key


@pytest.mark.parametrize(
    ("name", "count", "container"),
    [
        ("scope/stream/0", 1, 0),
        ("scope/stream/0", 4, 3),
        ("scope/stream/0", 16, 3),
        ("a/b/1", 4, 3),
        ("a/b/1", 16, 6),
    ],
)
def test_published_values(name: str, count: int, container: int) -> None:
    assert container_of(name, count) == container


@pytest.mark.parametrize(
    "name",
    [
        "scope/stream/0.#epoch.7",
        "scope/stream/0.#epoch.7#transaction.0000000000000001000000000000000f",
        "scope/stream/0.#epoch.7#transient.0000000000000001000000000000000f.0000000000000001000000000000000f",
    ],
)
def test_epoch_and_temporary_parts_do_not_move_a_segment(name: str) -> None:
    assert container_of(name, 16) == container_of("scope/stream/0", 16)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("a/b/1", "a/b/1"),
        ("a/b/1.#epoch.2", "a/b/1"),
        ("a/b/1.#epoch.2.#epoch.3", "a/b/1.#epoch.2"),
        ("a/b/1.#epoch.", "a/b/1.#epoch."),
        ("a/b/1.#epoch.x", "a/b/1.#epoch.x"),
        ("a/b/1.#epoch.2x", "a/b/1.#epoch.2x"),
        (".#epoch.2", ""),
        ("", ""),
        ("a/b/1.#epoch.2#transaction.", "a/b/1"),
        ("a/b/1.#epoch.2#transaction", "a/b/1.#epoch.2#transaction"),
        ("a/b/1.#epoch.2#transaction.a#transient.b", "a/b/1"),
        ("a/b/1.#epoch.2#transient.a#transaction.b", "a/b/1"),
        ("a/b/1#transient.a.#epoch.2", "a/b/1"),
    ],
)
def test_the_part_that_decides_the_container(name: str, key: str) -> None:
    assert container_key(name) == key


@pytest.mark.parametrize("part", ["#transaction.", "#transient.", ".#epoch.1", ".#epoch."])
@pytest.mark.parametrize("end", ["", "/0.#epoch.0", "\n/0.#epoch.0"])
def test_a_long_name_is_looked_through_once(part: str, end: str) -> None:
    """If each part were compared with the rest of the name, this would last for hours."""
    name = "scope/" + part * (4 * MIB // len(part)) + end
    assert len(container_key(name)) <= len(name)


@given(st.integers(0, 2**64 - 1), st.integers(1, 200))
def test_a_new_bucket_only_takes_keys(key: int, buckets: int) -> None:
    before, after = jump_hash(key, buckets), jump_hash(key, buckets + 1)
    assert 0 <= before < buckets
    assert after in (before, buckets)


def test_segments_spread_evenly() -> None:
    counts = [0] * 16
    for number in range(16_000):
        counts[container_of(f"scope/stream/{number}", 16)] += 1
    assert max(counts) < 1150
    assert min(counts) > 850


def test_no_container_is_refused() -> None:
    with pytest.raises(BadRequestError, match="container count"):
        container_of("a/b/0", 0)


def test_clients_get_the_kind_of_endpoint_that_they_came_in_on() -> None:
    inside, outside = Endpoint("10.0.0.1", 1), Endpoint("store.example", 2)
    both = EndpointMap(4, dict.fromkeys(range(4), ContainerEndpoints(inside, outside)))
    assert both.endpoint_of("a/b/0") == ("10.0.0.1", 1)
    assert both.endpoint_of("a/b/0", ListenerKind.EXTERNAL) == ("store.example", 2)
    only = EndpointMap(4, dict.fromkeys(range(4), ContainerEndpoints(inside)))
    assert only.endpoint_of("a/b/0", ListenerKind.EXTERNAL) == ("10.0.0.1", 1)


def test_containers_come_and_move() -> None:
    endpoints = EndpointMap(1)
    with pytest.raises(UnavailableError, match="container 0"):
        endpoints.endpoint_of("a/b/0")
    endpoints.publish(0, ContainerEndpoints(Endpoint("h", 1)))
    assert endpoints.endpoint_of("a/b/0") == ("h", 1)
    endpoints.publish(0, ContainerEndpoints(Endpoint("other", 2)))
    assert endpoints.endpoint_of("a/b/0") == ("other", 2)
    with pytest.raises(ValueError, match="container 1 of 1"):
        endpoints.publish(1, ContainerEndpoints(Endpoint("h", 1)))
