"""Errors the client documents: what returns False, what raises ValueError or OSError, and what panics."""

import harness

PANIC = "PanicException"
NAMES_OF_NO_SCOPE = ("under_score", "sla/sh", "sp ace", "x" * 300)


def check_existing_and_missing_scopes() -> None:
    client = harness.manager()
    scope = harness.new_scope(client)
    assert client.create_scope(scope) is False
    assert client.delete_scope("no-such-scope") is False
    assert client.list_stream("no-such-scope") == []
    client.create_stream(scope, "stream", 1)
    assert "not empty" in harness.error_of(ValueError, lambda: client.delete_scope(scope))


def check_names_of_scopes() -> None:
    client = harness.manager()
    for name in NAMES_OF_NO_SCOPE:
        assert "Invalid scope" in harness.error_of(ValueError, lambda: client.create_scope(name))  # noqa: B023


def check_names_of_streams() -> None:
    client = harness.manager()
    scope = harness.new_scope(client)
    for name in ("sla/sh", "sp ace", "under_score", "x" * 300):
        text = harness.error_of(ValueError, lambda: client.create_stream(scope, name, 1))  # noqa: B023
        assert "Invalid Stream" in text
    assert client.list_stream(scope) == []


def check_missing_streams() -> None:
    client = harness.manager()
    scope = harness.new_scope(client)
    assert client.delete_stream(scope, "none") is False
    assert "Not Found" in harness.error_of(ValueError, lambda: client.create_stream("no-such-scope", "stream", 1))
    assert "Not Found" in harness.error_of(ValueError, lambda: client.seal_stream(scope, "none"))
    assert "NotFound" in harness.error_of(ValueError, lambda: client.get_stream_tags(scope, "none"))
    text = harness.error_of(
        ValueError,
        lambda: client.update_stream_with_policy(scope, "none", harness.fixed(1), harness.no_retention(), ["tag"]),
    )
    assert "Not Found" in text


def check_streams_in_the_wrong_state() -> None:
    client = harness.manager()
    scope = harness.new_scope(client)
    client.create_stream(scope, "stream", 1)
    assert client.create_stream(scope, "stream", 5) is False
    assert harness.tail_segments(client, scope, "stream") == {0}
    assert "Not Sealed" in harness.error_of(ValueError, lambda: client.delete_stream(scope, "stream"))
    client.seal_stream(scope, "stream")
    assert client.create_stream(scope, "stream", 1) is False


def check_writes_to_a_sealed_stream() -> None:
    client = harness.manager()
    scope = harness.new_scope(client)
    client.create_stream(scope, "stream", 1)
    writer = client.create_writer(scope, "stream", harness.IN_FLIGHT)
    harness.write_keyed(writer, ["key"], 0, 1)
    client.seal_stream(scope, "stream")
    harness.error_of(ValueError, lambda: harness.write_keyed(writer, ["key"], 1, 2))


def check_readers_of_missing_streams_panic() -> None:
    client = harness.manager()
    scope = harness.new_scope(client)
    harness.error_of(PANIC, lambda: client.create_reader_group("group", scope, "none"))
    harness.error_of(PANIC, lambda: client.create_byte_stream(scope, "none"))
    client.create_stream(scope, "stream", 1)
    group = client.create_reader_group("group", scope, "stream")
    reader = group.create_reader("reader")
    assert "already online" in harness.error_of(PANIC, lambda: group.create_reader("reader"))
    group.reader_offline("no-such-reader")
    reader.reader_offline()
    client.delete_reader_group("group", scope)


def check_the_server_is_well_after_all_that() -> None:
    client = harness.manager()
    scope = harness.new_scope(client)
    client.create_stream(scope, "stream", 1)
    harness.write_keyed(client.create_writer(scope, "stream", harness.IN_FLIGHT), ["key"], 0, 10)


if __name__ == "__main__":
    harness.run(globals())
