"""Which objects are rewritten to free their dead bytes, and what that costs (docs/design.md#reclamation)."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.common import limits
from tailrace.common.limits import KIB, MIB
from tailrace.segmentstore.background.reclaim_policy import ObjectUse, choose

LENGTH = st.one_of(st.integers(1, 200), st.integers(1, 64 * KIB), st.integers(1, 4 * MIB), st.just(8 * MIB))
OBJECTS = st.lists(st.tuples(LENGTH, st.floats(0, 1)), max_size=60)


def objects_of(lengths: list[tuple[int, float]]) -> dict[str, ObjectUse]:
    return {
        f"o{number}": ObjectUse(stored, max(1, int(stored * live))) for number, (stored, live) in enumerate(lengths)
    }


def reclaimed(objects: dict[str, ObjectUse]) -> tuple[dict[str, ObjectUse], int, int]:
    """Move until nothing is chosen; return the objects then, the bytes written, and the bytes freed."""
    objects, written, freed = dict(objects), 0, 0
    for number in range(10_000):
        chosen = choose(objects)
        if not chosen:
            return objects, written, freed
        live = sum(objects[key].live_bytes for key in chosen)
        assert live <= limits.RECLAIM_PASS_BYTES or len(chosen) == 1
        written += live
        freed += sum(objects.pop(key).dead_bytes for key in chosen)
        objects[f"new{number}"] = ObjectUse(live, live)
    raise AssertionError("reclamation does not come to an end")


@settings(max_examples=300, deadline=None)
@given(OBJECTS)
def test_what_is_held_is_bounded_by_what_is_live(lengths: list[tuple[int, float]]) -> None:
    objects = objects_of(lengths)
    after, written, freed = reclaimed(objects)
    live = sum(use.live_bytes for use in objects.values())
    held = sum(use.stored_bytes for use in after.values())
    assert sum(use.live_bytes for use in after.values()) == live
    assert held <= (1 + limits.RECLAIM_DEAD_SHARE) * live + limits.RECLAIM_SLACK_BYTES
    assert held == sum(use.stored_bytes for use in objects.values()) - freed
    assert written <= freed / limits.RECLAIM_DEAD_SHARE
    assert not any(use.dead_bytes >= max(use.live_bytes, limits.RECLAIM_DEAD_MIN_BYTES) for use in after.values())


@settings(max_examples=30, deadline=None)
@given(st.randoms(use_true_random=False))
def test_a_byte_is_moved_a_bounded_number_of_times_whatever_dies(rng: random.Random) -> None:
    """Objects come, parts of them die at random, all is reclaimed: writes stay below seven times what was stored."""
    objects: dict[str, ObjectUse] = {}
    stored = written = 0
    for number in range(60):
        length = rng.choice([100, 40 * KIB, MIB, 4 * MIB])
        objects[f"o{number:02}"] = ObjectUse(length, length)
        stored += length
        for key in rng.sample(sorted(objects), min(3, len(objects))):
            objects[key].live_bytes = rng.randint(1, objects[key].live_bytes)
        objects, more, _ = reclaimed(objects)
        written += more
    assert written <= stored / limits.RECLAIM_DEAD_SHARE


def test_one_tiny_survivor_does_not_keep_a_shared_object() -> None:
    assert choose({"shared": ObjectUse(4 * MIB, 150)}) == ["shared"]
    assert choose({"small": ObjectUse(150 * KIB, 70 * KIB)}) == ["small"]


def test_what_is_hardly_dead_is_left_alone() -> None:
    assert not choose({"a": ObjectUse(8 * MIB, 7 * MIB), "b": ObjectUse(8 * MIB, 8 * MIB)})
    assert not choose({"tiny": ObjectUse(60 * KIB, 100)})


def test_the_deadest_goes_first_and_no_more_than_is_needed() -> None:
    objects = {f"o{number}": ObjectUse(8 * MIB, (8 * MIB * number) // 10) for number in range(6, 11)}
    dead = sum(use.dead_bytes for use in objects.values())
    assert dead > limits.RECLAIM_SLACK_BYTES + limits.RECLAIM_DEAD_SHARE * sum(u.live_bytes for u in objects.values())
    assert choose(objects) == ["o6"]


def test_damaged_objects_stay_and_others_go() -> None:
    objects = {"damaged": ObjectUse(8 * MIB, 1), "other": ObjectUse(8 * MIB, 1)}
    assert choose(objects, {"damaged"}) == ["other"]
