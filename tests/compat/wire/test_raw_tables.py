"""Table segments: versions, conditions, atomic batches, iterators, deltas, fixed keys."""

from __future__ import annotations

from typing import Any

import pytest

ABSENT = -1


def test_update_and_read(connection: Any, wire: Any) -> None:
    table = connection.new_table()
    one, two = connection.update_table(table, (b"one", wire.no_value, b"1"), (b"two", ABSENT, b"22"))
    assert 0 <= one < two
    found = connection.read_table(table, b"two", b"none", b"one")
    assert [entry for entry in found if entry[0] != b"none"] == [(b"two", two, b"22"), (b"one", one, b"1")]
    assert found[1][1:] == (ABSENT, b"")
    (newer,) = connection.update_table(table, (b"one", one, b"111"))
    assert newer > two
    assert connection.read_table(table, b"one") == [(b"one", newer, b"111")]
    (newest,) = connection.update_table(table, (b"one", wire.no_value, b""))
    assert newest > newer
    assert connection.read_table(table, b"one") == [(b"one", newest, b"")]


def test_conditions(connection: Any, wire: Any) -> None:
    table = connection.new_table()
    (version,) = connection.update_table(table, (b"key", ABSENT, b"value"))
    refused = [
        ((b"key", ABSENT, b"x"), "bad_version"),
        ((b"key", version + 1, b"x"), "bad_version"),
        ((b"none", version, b"x"), "key_does_not_exist"),
    ]
    for entry, answer in refused:
        reply = connection.call("update_table", table, "", wire.pack_entries(entry), -1, answer=answer)
        assert reply.text() == table
    for key, answer in (((b"key", version + 1), "bad_version"), ((b"none", version), "key_does_not_exist")):
        connection.call("remove_keys", table, "", wire.pack_keys(key), -1, answer=answer)
    assert connection.read_table(table, b"key") == [(b"key", version, b"value")]


def test_batches_are_atomic(connection: Any, wire: Any) -> None:
    table = connection.new_table()
    (version,) = connection.update_table(table, (b"a", ABSENT, b"old"))
    batch = wire.pack_entries((b"a", version, b"new"), (b"b", ABSENT, b"new"), (b"c", 5, b"never"))
    connection.call("update_table", table, "", batch, -1, answer="key_does_not_exist")
    assert [value for _, _, value in connection.read_table(table, b"a", b"b", b"c")] == [b"old", b"", b""]


def test_remove(connection: Any, wire: Any) -> None:
    table = connection.new_table()
    version, _ = connection.update_table(table, (b"a", ABSENT, b"1"), (b"b", ABSENT, b"2"))
    removed = connection.call("remove_keys", table, "", wire.pack_keys((b"a", version)), -1, answer="keys_removed")
    assert removed.text() == table
    unconditional = wire.pack_keys((b"a", wire.no_value), (b"never", wire.no_value))
    connection.call("remove_keys", table, "", unconditional, -1, answer="keys_removed")
    assert [version for _, version, _ in connection.read_table(table, b"a")] == [ABSENT]
    (again,) = connection.update_table(table, (b"a", ABSENT, b"3"))
    assert again > version


def test_missing_and_existing_tables(connection: Any, wire: Any) -> None:
    missing = "wire/missing_kvtable/0.#epoch.0"
    keys = wire.pack_keys((b"key", wire.no_value))
    assert connection.call("read_table", missing, "", keys, answer="no_such_segment").text() == missing
    connection.call("update_table", missing, "", wire.pack_entries((b"k", -1, b"v")), -1, answer="no_such_segment")
    table = connection.new_table()
    connection.call("create_table", table, "", False, ("i32", 0), 0, answer="already_exists")


def test_delete(connection: Any, wire: Any) -> None:
    table = connection.new_table()
    connection.update_table(table, (b"key", ABSENT, b"value"))
    assert connection.call("delete_table", table, True, "", answer="not_empty").text() == table
    keys = wire.pack_keys((b"key", wire.no_value))
    connection.call("remove_keys", table, "", keys, -1, answer="keys_removed")
    assert connection.call("delete_table", table, True, "", answer="segment_deleted").text() == table
    connection.call("delete_table", table, False, "", answer="no_such_segment")
    full = connection.new_table()
    connection.update_table(full, (b"key", ABSENT, b"value"))
    connection.call("delete_table", full, False, "", answer="segment_deleted")


def test_limits_of_keys_and_values(connection: Any, wire: Any) -> None:
    table = connection.new_table()
    largest = (b"k" * 8192, ABSENT, b"v" * ((1 << 20) - 8192))
    connection.update_table(table, largest)
    assert connection.read_table(table, largest[0])[0][2] == largest[2]


def _iterate(connection: Any, table: str, what: str, count: int) -> list[Any]:
    """All keys or entries of a hash table, page after page."""
    token = b""
    found: list[Any] = []
    for _ in range(1000):
        request = (table, "", ("i32", count), ("buf", token), ("buf", b""), ("buf", b""), ("buf", b""))
        reply = connection.call(f"read_{what}", *request, answer=f"{what}_read")
        assert reply.text() == table
        page = [reply.key() for _ in range(reply.i32())] if what == "keys" else reply.entries()
        token = reply.buf()
        reply.end()
        if not page:
            return found
        found += page
    raise AssertionError("an iterator without end")


@pytest.mark.parametrize("page", [1, 7, 1000])
def test_iterators(connection: Any, page: int) -> None:
    table = connection.new_table()
    expected = {b"key %d" % i: b"value %d" % i for i in range(100)}
    versions = connection.update_table(table, *((key, ABSENT, value) for key, value in expected.items()))
    known = dict(zip(expected, versions, strict=True))
    keys = _iterate(connection, table, "keys", page)
    assert len(keys) == 100
    assert dict(keys) == known
    entries = _iterate(connection, table, "entries", page)
    assert sorted(entries) == sorted((key, known[key], value) for key, value in expected.items())


def test_iterator_with_the_first_argument_only(connection: Any) -> None:
    """The Rust client sends the token alone."""
    table = connection.new_table()
    connection.update_table(table, (b"key", ABSENT, b"value"))
    reply = connection.call("read_entries", table, "", ("i32", 10), ("buf", b""), answer="entries_read")
    assert reply.text() == table
    assert [key for key, _, _ in reply.entries()] == [b"key"]


def _delta(connection: Any, table: str, position: int, count: int = 1000) -> tuple[Any, bool, bool, int]:
    reply = connection.call("read_delta", table, "", position, ("i32", count), answer="delta_read")
    assert reply.text() == table
    found = (reply.entries(), reply.flag(), reply.flag(), reply.i64())
    reply.end()
    return found


def test_deltas(connection: Any, wire: Any) -> None:
    table = connection.new_table()
    connection.update_table(table, (b"a", ABSENT, b"1"), (b"b", ABSENT, b"1"))
    entries, clear, at_end, position = _delta(connection, table, 0)
    assert {key: value for key, _, value in entries} == {b"a": b"1", b"b": b"1"}
    assert (clear, at_end) == (False, True)
    assert position > 0
    connection.update_table(table, (b"b", wire.no_value, b"2"), (b"c", wire.no_value, b"2"))
    connection.update_table(table, (b"c", wire.no_value, b"3"))
    entries, clear, at_end, newer = _delta(connection, table, position)
    assert {key: value for key, _, value in entries} == {b"b": b"2", b"c": b"3"}
    assert (clear, at_end) == (False, True)
    assert newer > position
    entries, _, at_end, _ = _delta(connection, table, newer)
    assert (entries, at_end) == ([], True)
    connection.call("read_delta", table, "", newer + 1000, ("i32", 10), answer="error")


def test_deltas_in_pages(connection: Any) -> None:
    table = connection.new_table()
    expected = {b"key %d" % i: b"%d" % i for i in range(50)}
    connection.update_table(table, *((key, ABSENT, value) for key, value in expected.items()))
    position, at_end, found = 0, False, {}
    while not at_end:
        entries, _, at_end, position = _delta(connection, table, position, 7)
        found.update({key: value for key, _, value in entries})
    assert found == expected


def test_updates_at_an_expected_length(connection: Any, wire: Any) -> None:
    table = connection.new_table()
    info = connection.call("get_table_info", table, "", answer="table_info")
    assert (info.text(), info.i64()) == (table, 0)
    length = info.i64()
    connection.update_table(table, (b"key", ABSENT, b"value"), offset=length)
    late = wire.pack_entries((b"other", ABSENT, b"value"))
    reply = connection.call("update_table", table, "", late, length, answer="is_truncated")
    assert reply.text() == table
    assert reply.i64() > length


def test_info_counts_entries(connection: Any, wire: Any) -> None:
    for key_length in (0, 4):
        table = connection.new_table(key_length)
        connection.update_table(table, *((b"%04d" % i, ABSENT, b"value") for i in range(10)))
        keys = wire.pack_keys((b"0003", wire.no_value))
        connection.call("remove_keys", table, "", keys, -1, answer="keys_removed")
        info = connection.call("get_table_info", table, "", answer="table_info")
        assert info.text() == table
        info.i64(), info.i64()
        assert (info.i64(), info.i32()) == (9, key_length)


def test_fixed_keys_are_sorted(connection: Any, wire: Any) -> None:
    table = connection.new_table(2)
    names = [bytes([high, low]) for high in (0, 1, 127, 128, 255) for low in (0, 200)]
    connection.update_table(table, *((name, ABSENT, name * 3) for name in reversed(names)))

    def between(first: bytes, last: bytes, count: int = 100) -> list[bytes]:
        request = (table, "", ("i32", count), ("buf", b""), ("buf", b""), ("buf", first), ("buf", last))
        reply = connection.call("read_entries", *request, answer="entries_read")
        reply.text()
        entries = reply.entries()
        assert all(value == key * 3 for key, _, value in entries)
        return [key for key, _, _ in entries]

    assert between(b"", b"") == names
    assert between(names[2], names[5]) == names[2:6]
    assert between(b"\x00\x01", b"\x80\x00") == names[1:7]
    assert between(names[4], b"", 3)[:3] == names[4:7]


def test_fixed_keys_have_one_length(connection: Any, wire: Any) -> None:
    table = connection.new_table(4)
    connection.call("update_table", table, "", wire.pack_entries((b"long key", -1, b"v")), -1, answer="error")
    request = (table, "", 0, ("i32", 10))
    connection.call("read_delta", *request, answer="unsupported")


def test_fixed_key_conditions(connection: Any, wire: Any) -> None:
    table = connection.new_table(3)
    (version,) = connection.update_table(table, (b"key", ABSENT, b"value"))
    taken = wire.pack_entries((b"key", ABSENT, b"x"))
    connection.call("update_table", table, "", taken, -1, answer="bad_version")
    (newer,) = connection.update_table(table, (b"key", version, b"newer"))
    assert newer > version
    assert connection.read_table(table, b"key", b"abc")[0] == (b"key", newer, b"newer")
    assert connection.read_table(table, b"abc")[0][1] == ABSENT
