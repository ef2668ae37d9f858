"""Ages from looks at lengths; conditions of groups; the state of the Rust client."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, cast

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.localobjects import LocalObjects
from tailrace.client.group import rust
from tailrace.client.group.reader_group import group_config
from tailrace.client.group.state.records import Init
from tailrace.client.group.state.state import initial_state
from tailrace.client.group.view import view_of
from tailrace.client.model import StreamName
from tailrace.common import limits
from tailrace.common.errors import CorruptionError
from tailrace.common.real_ports import SystemClock
from tailrace.common.stream_cut import StreamCut, parse_stream_cut
from tailrace_operator.readergroup import conditions
from tailrace_operator.readergroup.history import Age, LengthHistory, oldest
from tailrace_operator.readergroup.measure import Sample
from tailrace_operator.readergroup.plan import differences, digest_field, is_edited, oldest_resource, wanted_config
from tailrace_operator.readergroup.reconcile import ReaderGroupReconciler
from tailrace_operator.reconcile.outcome import Status
from tailrace_operator.schema.specs import LagThreshold, ReaderGroupSpec

if TYPE_CHECKING:
    from tailrace_operator.connections.controllers import Controllers

SPEC = ReaderGroupSpec("main", "scope", "group", ("scope/a", "scope/b"))


# -- ages


@given(st.lists(st.tuples(st.floats(0.01, 100), st.integers(0, 50)), min_size=1, max_size=200), st.data())
def test_an_age_is_never_wrong(steps: list[tuple[float, int]], data: st.DataObject) -> None:
    """Bytes are written just after one look or just before the next; their true age lies between the two bounds."""
    history = LengthHistory()
    written: list[tuple[float | None, float]] = []  # the looks between which each byte came
    now_s, length = 0.0, 0
    before_s: float | None = None
    for pause_s, grown in steps:
        now_s += pause_s
        written += [(before_s, now_s)] * grown
        length += grown
        history.note(now_s, length)
        before_s = now_s
    if length == 0:
        return
    position = data.draw(st.integers(0, length - 1))
    age = history.age(position, now_s)
    not_before_s, not_after_s = written[position]
    assert age.least_s <= now_s - not_after_s + 1e-9
    if age.most_s is not None:
        assert not_before_s is not None
        assert age.most_s >= now_s - not_before_s - 1e-9
    elif not_before_s is not None and len(steps) <= limits.OPERATOR_LAG_SAMPLES_MAX:
        raise AssertionError("a look before the byte was there is remembered")


def test_nothing_unread_has_no_age() -> None:
    history = LengthHistory()
    history.note(1.0, 10)
    assert history.age(10, 5.0) == Age(0.0, 0.0)
    assert history.age(9, 5.0) == Age(4.0, None)


def test_a_history_is_bounded() -> None:
    history = LengthHistory()
    for number in range(10_000):
        history.note(float(number), number)
    assert len(history._times_s) <= limits.OPERATOR_LAG_SAMPLES_MAX
    assert history.age(9998, 10_000.0) == Age(1.0, 2.0)


def test_the_oldest_of_several_is_known_when_all_are() -> None:
    assert oldest([]) == Age(0.0, 0.0)
    assert oldest([Age(1, 5), Age(2, 3)]) == Age(2, 5)
    assert oldest([Age(1, 5), Age(2, None)]) == Age(2, None)


# -- conditions


def sample(lag_bytes: int, age: Age) -> Sample:
    """A measured group."""
    return Sample(1, 0, lag_bytes, age, {}, None)


@pytest.mark.parametrize(
    ("threshold", "lag_bytes", "age", "status", "reason"),
    [
        (None, 10**9, Age(1, 1), Status.FALSE, "NoThreshold"),
        (LagThreshold(bytes=100), 100, Age(9, 9), Status.FALSE, "KeepsUp"),
        (LagThreshold(bytes=100), 101, Age(0, 0), Status.TRUE, "LagBytes"),
        (LagThreshold(bytes=100, seconds=10), 1, Age(11, 12), Status.TRUE, "LagSeconds"),
        (LagThreshold(seconds=10), 1, Age(11, None), Status.TRUE, "LagSeconds"),
        (LagThreshold(seconds=10), 1, Age(2, None), Status.UNKNOWN, "AgeUnknown"),
        (LagThreshold(seconds=10), 1, Age(2, 11), Status.FALSE, "KeepsUp"),
    ],
)
def test_lagging(threshold: LagThreshold | None, lag_bytes: int, age: Age, status: Status, reason: str) -> None:
    found = conditions.lagging(sample(lag_bytes, age), threshold)
    assert (found.status, found.reason) == (status, reason)
    assert found.is_warning is (status is Status.TRUE)


def test_seconds_are_left_out_while_they_are_not_known() -> None:
    assert conditions.numbers(sample(5, Age(3.0, None)))["lagSeconds"] is None
    assert conditions.numbers(sample(5, Age(3.0, 3.2)))["lagSeconds"] == 4


def test_cuts_that_are_too_large_are_left_out() -> None:
    small = StreamCut("scope", "a", {1: 5})
    large = StreamCut("scope", "b", {number * 7919**3 % 2**40: number * 104_729**2 for number in range(9000)})
    (found,) = conditions.cuts({"scope/b": large, "scope/a": small})
    assert (found["stream"], parse_stream_cut(found["cut"])) == ("scope/a", small)


@pytest.mark.parametrize(
    ("spec", "unknown"),
    [
        ({}, {"Lagging"}),
        ({"retentionType": "ManualStreamCut"}, {"Lagging", "BlockingRetention"}),
        ({"retentionType": "Never"}, set()),
    ],
    ids=["no subscriber", "subscriber", "invalid"],
)
def test_while_controllers_are_away_what_they_would_say_is_not_known(spec: dict[str, Any], unknown: set[str]) -> None:
    """What a group has lost, and that it is no subscriber, stays known."""
    reconciler = ReaderGroupReconciler(LocalObjects(), cast("Controllers", None), SystemClock())
    manifest = {
        "metadata": {"name": "group", "namespace": "here"},
        "spec": {"cluster": "main", "scope": "scope", "streams": ["a"], **spec},
    }
    found = reconciler.away(manifest, "no controller answers")
    assert {one.type for one in found} == unknown
    assert {(one.status, one.reason) for one in found} <= {(Status.UNKNOWN, "Unavailable")}


# -- plans


def test_a_configuration_that_was_made_of_the_spec_does_not_differ() -> None:
    cut = StreamCut("scope", "a", {0: 7})
    assert differences(SPEC, wanted_config(SPEC, {})) == []
    assert differences(SPEC, wanted_config(SPEC, {"scope/a": cut})) == [], "a group begins once"
    other = group_config({StreamName("scope", "a"): None}, automatic_checkpoint_ms=-1)
    assert differences(SPEC, other) == ["streams", "checkpointIntervalMs"]


def test_a_new_resource_is_not_edited() -> None:
    assert not is_edited(SPEC, {"metadata": {"generation": 1}})
    assert not is_edited(SPEC, {"metadata": {"generation": 2}, "status": digest_field(SPEC)})
    former = dataclasses.replace(SPEC, group_refresh_ms=1234)
    assert is_edited(SPEC, {"metadata": {"generation": 2}, "status": digest_field(former)})


@pytest.mark.parametrize(
    ("generation", "status", "edited"), [(2, "False", True), (2, "True", False), (1, "False", False)]
)
def test_an_edit_that_was_refused_is_still_to_be_carried_out(generation: int, status: str, edited: bool) -> None:
    """What is refused is observed, and the digest stays that of what was carried out."""
    condition = {"type": "Accepted", "status": status, "observedGeneration": generation}
    former = dataclasses.replace(SPEC, group_refresh_ms=1234)
    carried_out = {} if generation == 1 else digest_field(SPEC if status == "True" else former)
    found = {"observedGeneration": generation, "conditions": [condition], **carried_out}
    assert is_edited(SPEC, {"metadata": {"generation": generation}, "status": found}) is edited


@pytest.mark.parametrize(
    "edit",
    [
        {"streams": ("scope/a", "scope/b", "scope/c")},
        {"retention_type": "ManualStreamCut"},
        {"checkpoint_interval_ms": None},
        {"max_outstanding_checkpoints": 9},
        {"group_refresh_ms": 1234},
    ],
    ids=lambda edit: "".join(edit),
)
def test_every_field_that_configures_the_group_is_in_its_digest(edit: dict[str, Any]) -> None:
    assert digest_field(dataclasses.replace(SPEC, **edit)) != digest_field(SPEC)


def test_other_fields_are_not_in_the_digest() -> None:
    """Nor is the order of the streams, which are a set."""
    threshold = LagThreshold(1 << 30, None)
    other = dataclasses.replace(SPEC, lag_threshold=threshold, deletion_policy="Delete", streams=SPEC.streams[::-1])
    assert digest_field(other) == digest_field(SPEC)


def test_the_oldest_resource_is_the_first_by_time_then_name() -> None:
    def made(name: str, at: str) -> dict[str, Any]:
        return {"metadata": {"name": name, "uid": f"uid-{name}", "creationTimestamp": at}}

    assert oldest_resource([made("b", "2026-01-01T00:00:00Z"), made("a", "2026-01-02T00:00:00Z")]) == "uid-b"
    assert oldest_resource([made("b", "2026-01-01T00:00:00Z"), made("a", "2026-01-01T00:00:00Z")]) == "uid-a"


# -- states


def test_positions_of_the_java_state_are_the_furthest_reported() -> None:
    config = group_config({StreamName("scope", "a"): None})
    names = [f"scope/a/{number}.#epoch.0" for number in range(3)]
    state = initial_state(Init(config, {(name, None): 10 for name in names}, {names[2]: 50}))
    state.assigned = {"r": {names[0]: 10, names[1]: -1}}
    state.unassigned = {names[2]: 30}
    state.last_read = {names[0]: 25, names[1]: 5, names[2]: 20}
    found = view_of(state)
    assert found.offsets == {names[0]: 25, names[1]: -1, names[2]: 30}
    assert (found.streams, found.online_readers, found.unassigned_segments) == (("scope/a",), 1, 1)
    assert found.ends == {names[2]: 50}


class Key(dict[str, Any]):
    """A map that is the key of a map."""

    def __hash__(self) -> int:  # type: ignore[override]
        return id(self)


def entry(outer: str, inner: str, type_id: str, data: Any) -> tuple[bytes, bytes]:
    """As the Rust client writes it (docs/protocol/reader-group-state.md#rust-groups)."""
    key = f"{len(outer):02}{outer}" + (f"/{inner}" if inner else "")
    return cbor2.dumps(key), cbor2.dumps({"type_id": type_id, "data": list(cbor2.dumps(data))})


def test_the_rust_state_is_read() -> None:
    stream = {"scope": {"name": "scope"}, "stream": {"name": "a"}}
    segment = Key({**stream, "segment": {"number": 3 << 32 | 1, "tx_id": None}})
    found = rust.decode_view(
        "place",
        [
            entry("config", "default", "X", {"V1": {"starting_stream_cuts": {Key(stream): "Tail"}}}),
            entry("config", "", "blob", 0),
            entry("assigned_segments", "r/1", "HashMap", {segment: {"read": 12}}),
            entry("assigned_segments", "r2", "HashMap", {}),
            entry("assigned_segments", "r3", "tombstone", {}),
            entry("unassigned_segments", "scope/a/0.#epoch.0", "Offset", {"read": 5}),
            entry("unassigned_segments", "scope/a/9.#epoch.0", "tombstone", {}),
            entry("distance_to_tail", "r2", "u64", 2**64 - 1),
        ],
    )
    assert found.streams == ("scope/a",)
    assert found.offsets == {"scope/a/1.#epoch.3": 12, "scope/a/0.#epoch.0": 5}
    assert (found.online_readers, found.unassigned_segments, found.group_id) == (2, 1, None)


@given(st.binary(max_size=40), st.binary(max_size=40))
def test_anything_else_is_corruption_of_that_table(key: bytes, value: bytes) -> None:
    with pytest.raises(CorruptionError, match="the table"):
        rust.decode_view("the table", [(key, value)])


def test_the_name_of_the_rust_state() -> None:
    assert rust.state_table("scope", "group") == "scope/group_kvtable/0.#epoch.0"
