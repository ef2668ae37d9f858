"""Page search and merge of the B+Tree against a dictionary, in both implementations and between them."""

import bisect
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.kernel import _btree, _btree_py

MODULES = pytest.mark.parametrize("btree", [_btree, _btree_py], ids=["native", "pure"])
KEY, VALUE = 2, 3
# Few distinct bytes, both sides of the sign bit, so that keys meet and comparison must be unsigned.
KEYS = st.lists(st.sampled_from(b"\x00\x01\x7f\x80\xff"), min_size=KEY, max_size=KEY).map(bytes)
VALUES = st.binary(min_size=VALUE, max_size=VALUE)
PAGES = st.dictionaries(KEYS, VALUES, max_size=25)
UPDATES = st.dictionaries(KEYS, st.none() | VALUES, max_size=25)


def area(page: dict[bytes, bytes]) -> bytes:
    return b"".join(key + page[key] for key in sorted(page))


@MODULES
@given(page=PAGES, key=KEYS, rest=st.binary(max_size=4))
def test_search(btree: ModuleType, page: dict[bytes, bytes], key: bytes, rest: bytes) -> None:
    keys, entries = sorted(page), memoryview(area(page) + rest)
    assert btree.search(entries, KEY, VALUE, len(page), key) == bisect.bisect_right(keys, key) - 1
    assert btree.find_exact(entries, KEY, VALUE, len(page), key) == (keys.index(key) if key in page else -1)


@MODULES
@given(page=PAGES, keys=st.lists(KEYS, max_size=30))
def test_lookup_many(btree: ModuleType, page: dict[bytes, bytes], keys: list[bytes]) -> None:
    keys.sort()
    assert btree.lookup_many(area(page), KEY, VALUE, len(page), keys) == [page.get(key) for key in keys]


@MODULES
@given(page=PAGES, updates=UPDATES, rest=st.binary(max_size=4))
def test_merge(btree: ModuleType, page: dict[bytes, bytes], updates: dict[bytes, bytes | None], rest: bytes) -> None:
    expected = {key: value for key, value in {**page, **updates}.items() if value is not None}
    merged = btree.merge(area(page) + rest, KEY, VALUE, len(page), sorted(updates.items()))
    assert merged == area(expected)
    assert type(merged) is bytes


@MODULES
@pytest.mark.parametrize(("key_length", "value_length"), [(1, 0), (16, 8), (16, 18), (256, 8), (256, 65536)])
def test_page_sizes(btree: ModuleType, key_length: int, value_length: int) -> None:
    def key(number: int) -> bytes:
        return number.to_bytes(key_length, "big")

    def value(number: int) -> bytes:
        return bytes([number % 256]) * value_length

    count = 64 if value_length > 100 else 127
    page = btree.merge(b"", key_length, value_length, 0, [(key(2 * n), value(n)) for n in range(count)])
    assert len(page) == count * (key_length + value_length)
    for number in range(2 * count):
        assert btree.search(page, key_length, value_length, count, key(number)) == number // 2
        found = btree.find_exact(page, key_length, value_length, count, key(number))
        assert found == (-1 if number % 2 else number // 2)
    looked_up = btree.lookup_many(page, key_length, value_length, count, [key(n) for n in range(2 * count)])
    assert looked_up == [None if n % 2 else value(n // 2) for n in range(2 * count)]
    removed = btree.merge(page, key_length, value_length, count, [(key(2 * n), None) for n in range(0, count, 2)])
    assert removed == b"".join(key(2 * n) + value(n) for n in range(1, count, 2))


@MODULES
def test_a_full_page_of_attributes_grows_at_its_right_end(btree: ModuleType) -> None:
    page = b""
    for start in range(0, 1300, 100):
        updates = [(number.to_bytes(16, "big"), number.to_bytes(8, "big")) for number in range(start, start + 100)]
        page = btree.merge(page, 16, 8, start, updates)
    assert page == b"".join(n.to_bytes(16, "big") + n.to_bytes(8, "big") for n in range(1300))


@MODULES
def test_areas_that_cannot_be(btree: ModuleType) -> None:
    calls = [
        lambda *shape: btree.search(*shape, bytes(2)),
        lambda *shape: btree.find_exact(*shape, bytes(2)),
        lambda *shape: btree.lookup_many(*shape, []),
        lambda *shape: btree.merge(*shape, []),
    ]
    huge = 2**62
    for call in calls:
        for key_length, value_length, count in [(2, 3, 3), (2, 3, -1), (2, 3, huge), (2, 4, 3)]:
            with pytest.raises(ValueError, match="entries of"):
                call(bytes(14), key_length, value_length, count)
        for key_length in (0, -1, 257, huge):
            with pytest.raises(ValueError, match="a key has"):
                call(bytes(14), key_length, 3, 1)
        for value_length in (-1, 65537, huge):
            with pytest.raises(ValueError, match="a value has"):
                call(bytes(14), 2, value_length, 1)
        with pytest.raises(BufferError):
            call(memoryview(bytes(28))[::2], 2, 3, 1)
        with pytest.raises(TypeError):
            call("text", 2, 3, 0)


@MODULES
def test_keys_and_values_that_cannot_be(btree: ModuleType) -> None:
    page = area({b"aa": b"111", b"cc": b"333"})
    for key in (b"a", b"aaa", b""):
        for call in (btree.search, btree.find_exact):
            with pytest.raises(ValueError, match="a key has 2 bytes"):
                call(page, KEY, VALUE, 2, key)
        with pytest.raises(ValueError, match="a key has 2 bytes"):
            btree.lookup_many(page, KEY, VALUE, 2, [key])
        with pytest.raises(ValueError, match="a key has 2 bytes"):
            btree.merge(page, KEY, VALUE, 2, [(key, None)])
    for wrong in (bytearray(b"aa"), "aa", 7, None):
        with pytest.raises(TypeError):
            btree.search(page, KEY, VALUE, 2, wrong)
        with pytest.raises(TypeError):
            btree.lookup_many(page, KEY, VALUE, 2, [wrong])
        with pytest.raises(TypeError):
            btree.merge(page, KEY, VALUE, 2, [(wrong, None)])
    for value in (b"", b"12", b"1234"):
        with pytest.raises(ValueError, match="a value has 3 bytes"):
            btree.merge(page, KEY, VALUE, 2, [(b"bb", value)])
    with pytest.raises(TypeError):
        btree.merge(page, KEY, VALUE, 2, [(b"bb", "123")])
    with pytest.raises(ValueError, match="ascending"):
        btree.lookup_many(page, KEY, VALUE, 2, [b"bb", b"aa"])
    for second in (b"bb", b"aa"):
        with pytest.raises(ValueError, match="strictly ascending"):
            btree.merge(page, KEY, VALUE, 2, [(b"bb", None), (second, None)])
    with pytest.raises(ValueError, match="unpack"):
        btree.merge(page, KEY, VALUE, 2, [(b"bb",)])


@given(data=st.binary(max_size=60), keys=st.lists(KEYS, max_size=12, unique=True), value=VALUES)
def test_both_agree_even_on_areas_that_are_not_sorted(data: bytes, keys: list[bytes], value: bytes) -> None:
    """Search is the same algorithm; the rest must stay in bounds (the sanitizers watch) and keep whole entries."""
    count = len(data) // (KEY + VALUE)
    for key in keys:
        assert _btree.search(data, KEY, VALUE, count, key) == _btree_py.search(data, KEY, VALUE, count, key)
    updates = [(key, value if index % 3 else None) for index, key in enumerate(sorted(keys))]
    for module in (_btree, _btree_py):
        assert len(module.lookup_many(data, KEY, VALUE, count, sorted(keys))) == len(keys)
        assert len(module.merge(data, KEY, VALUE, count, updates)) % (KEY + VALUE) == 0
