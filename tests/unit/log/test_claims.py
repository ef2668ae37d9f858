"""Claims and the names of objects: the codec, the search for the last one, which marks are kept."""

from __future__ import annotations

import asyncio
from collections.abc import Set as AbstractSet

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.common.errors import CorruptionError, FormatVersionError
from tailrace.kernel import crc32c
from tailrace.log.claims import LENGTH_BYTES, Claim, find_last
from tailrace.log.object_keys import LogKeys, ObjectKind, ObjectName, kept_marks

CLAIM = Claim(container=3, number=6, epoch=7, nonce=bytes(range(16)))


def last_of(numbers: AbstractSet[int], guess: int = 0) -> tuple[int, int]:
    """What the search finds, and how often it asked."""
    asked = []

    async def exists(number: int) -> bool:
        asked.append(number)
        return number in numbers

    return asyncio.run(find_last(exists, guess)), len(asked)


@given(st.integers(0, 100_000))
def test_the_last_of_a_complete_row_is_found(last: int) -> None:
    assert last_of(frozenset(range(1, last + 1)))[0] == last


@given(st.integers(0, 1 << 40), st.data())
def test_the_last_mark_is_found_by_the_kept_ones_whatever_else_came_back(last: int, data: st.DataObject) -> None:
    """Deleted marks may reappear: a put that was long under way. One may be stored and not yet counted."""
    kept = kept_marks(last)
    revived = data.draw(st.sets(st.integers(1, max(last, 1)), max_size=20)) if last else set()
    found, asked = last_of(kept | revived)
    assert found == last
    assert len(kept) <= 2 * last.bit_length()
    assert asked <= 2 * last.bit_length() + 1
    assert last_of(kept | {last + 1})[0] == last + 1


@given(st.integers(0, 1 << 40), st.data())
def test_a_guess_saves_questions_and_never_misleads(last: int, data: st.DataObject) -> None:
    """It comes from a list that may be old; one more mark may have been stored since."""
    kept = kept_marks(last)
    revived = data.draw(st.sets(st.integers(1, max(last, 1)), max_size=20)) if last else set()
    found, asked = last_of(kept | revived, last)
    assert found == last
    assert asked <= last_of(kept | revived)[1]
    guess = data.draw(st.one_of(st.sampled_from(sorted(kept | revived | {last + 1})), st.integers(0, 2 * last + 2)))
    assert last_of(kept | revived, guess)[0] == last
    assert last_of(kept | {last + 1}, guess)[0] == last + 1
    assert last_of(kept | {last + 1}, last)[0] == last + 1


@given(st.integers(0, 1 << 40))
def test_nothing_that_the_next_mark_needs_was_deleted_before(last: int) -> None:
    assert kept_marks(last + 1) <= kept_marks(last) | {last + 1}


@given(st.integers(0, LENGTH_BYTES * 8 - 1))
def test_a_flipped_bit_in_a_claim_is_noticed(bit: int) -> None:
    data = bytearray(CLAIM.encode())
    data[bit // 8] ^= 1 << bit % 8
    with pytest.raises(CorruptionError, match="here"):
        Claim.decode(data, "here")


def test_a_claim_comes_back_and_nothing_else_does() -> None:
    assert Claim.decode(CLAIM.encode(), "here") == CLAIM
    for other in (b"", CLAIM.encode()[:-1], CLAIM.encode() + b"x"):
        with pytest.raises(CorruptionError):
            Claim.decode(other, "here")


def test_a_claim_of_a_newer_version_is_reported_as_such() -> None:
    data = CLAIM.encode()
    newer = data[:8] + (2).to_bytes(2, "big") + data[10:-4]
    with pytest.raises(FormatVersionError, match="version 2"):
        Claim.decode(newer + crc32c(newer).to_bytes(4, "big"), "here")


@given(st.integers(0, 1023), st.integers(0, 10**20 - 1), st.sampled_from(ObjectKind), st.integers(0, 10**20 - 1))
def test_keys_are_taken_apart_again(container: int, epoch: int, kind: ObjectKind, number: int) -> None:
    keys = LogKeys(container)
    name = ObjectName(epoch, kind, 0 if kind is ObjectKind.START else number)
    assert keys.parse(keys.of(name)) == name
    assert LogKeys(container + 1).parse(keys.of(name)) is None


def test_other_keys_are_nothing() -> None:
    keys = LogKeys(3)
    for key in (keys.claim(4), "log/3/x/start", f"{keys.start(5)}x", "probe/1", f"log/3/{5:020d}/end"):
        assert keys.parse(key) is None
