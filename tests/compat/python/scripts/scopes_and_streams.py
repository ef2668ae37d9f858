"""Scopes, streams with fixed and rate policies, tags, seal, delete, recreate."""

import asyncio

import pravega_client

import harness

Scaling = pravega_client.StreamScalingPolicy
Retention = pravega_client.StreamRetentionPolicy


def check_scopes() -> None:
    client = harness.manager()
    scope = harness.new_scope(client)
    assert client.create_scope(scope) is False
    assert scope in client.list_scope()
    assert "_system" in client.list_scope()
    assert client.list_stream(scope) == []
    assert client.delete_scope(scope) is True
    assert scope not in client.list_scope()
    assert client.delete_scope(scope) is False
    assert client.create_scope(scope) is True
    assert client.delete_scope(scope) is True


def check_many_scopes_and_streams_are_listed() -> None:
    client = harness.manager()
    scope = harness.new_scope(client)
    names = [f"stream-{i:02d}" for i in range(30)]
    for name in names:
        assert client.create_stream(scope, name, 1) is True
    listed = client.list_stream(scope)
    assert [name for name in sorted(listed) if not name.startswith("_")] == names
    assert len(listed) == len(set(listed))
    assert {f"_MARK{name}" for name in names} <= set(listed)


def check_stream_names() -> None:
    client = harness.manager()
    scope = harness.new_scope(client)
    for name in ("a", "A.b-c.9", "0", "x" * 200):
        assert client.create_stream(scope, name, 1) is True
        assert name in client.list_stream(scope)
        assert client.create_stream(scope, name, 1) is False


def check_policies() -> None:
    """Streams of every policy take and give events."""
    client = harness.manager()
    scope = harness.new_scope(client)
    policies = {
        "fixed": (Scaling.fixed_scaling_policy(3), Retention.none(), 3),
        "events": (Scaling.auto_scaling_policy_by_event_rate(100_000, 2, 2), Retention.by_size(1 << 40), 2),
        "kilobytes": (Scaling.auto_scaling_policy_by_data_rate(100_000, 2, 4), Retention.by_time(86_400_000), 4),
    }
    for name, (scaling, retention, segments) in policies.items():
        policy = {"scaling_policy": scaling, "retention_policy": retention, "tags": [name]}
        assert client.create_stream_with_policy(scope, name, **policy) is True
        assert client.create_stream_with_policy(scope, name, **policy) is False
        assert client.get_stream_tags(scope, name) == [name]
        assert harness.tail_segments(client, scope, name) == set(range(segments))
        writer = client.create_writer(scope, name, harness.IN_FLIGHT)
        harness.write_keyed(writer, harness.keys(10), 0, 3)
        reader = client.create_reader_group(f"group-{name}", scope, name).create_reader("reader")
        found = asyncio.run(harness.read_events(reader, 30))
        harness.check_exactly_once([harness.recognise(data) for data in found], harness.keys(10), 3)


def check_tags_and_updates() -> None:
    client = harness.manager()
    scope = harness.new_scope(client)
    assert client.create_stream(scope, "stream", 1) is True
    assert client.get_stream_tags(scope, "stream") == []
    for tags in (["blue", "red"], ["green"], []):
        assert client.update_stream_with_policy(scope, "stream", harness.fixed(1), harness.no_retention(), tags) is True
        assert sorted(client.get_stream_tags(scope, "stream")) == tags
    rate = Scaling.auto_scaling_policy_by_data_rate(10, 2, 1)
    assert client.update_stream_with_policy(scope, "stream", rate, Retention.by_size(10**9), ["red"]) is True
    assert client.get_stream_tags(scope, "stream") == ["red"]


def check_fixed_update_scales() -> None:
    """From fixed 1 to fixed 3, and a rate policy with a higher minimum: new segments of the next epoch."""
    client = harness.manager()
    scope = harness.new_scope(client)
    client.create_stream(scope, "stream", 1)
    assert client.update_stream_with_policy(scope, "stream", harness.fixed(3), harness.no_retention(), None) is True
    first_epoch = 1 << 32
    assert harness.tail_segments(client, scope, "stream") == {first_epoch + 1, first_epoch + 2, first_epoch + 3}
    rate = Scaling.auto_scaling_policy_by_event_rate(1000, 2, 4)
    assert client.update_stream_with_policy(scope, "stream", rate, harness.no_retention(), None) is True
    segments = harness.tail_segments(client, scope, "stream")
    assert segments == {(2 << 32) + number for number in (4, 5, 6, 7)}
    harness.write_keyed(client.create_writer(scope, "stream", harness.IN_FLIGHT), harness.keys(20), 0, 3)
    reader = client.create_reader_group("group", scope, "stream").create_reader("reader")
    found = asyncio.run(harness.read_events(reader, 60))
    harness.check_exactly_once([harness.recognise(data) for data in found], harness.keys(20), 3)


def check_seal_delete_recreate() -> None:
    client = harness.manager()
    scope = harness.new_scope(client)
    next_number = 0
    for round_number in range(3):
        assert client.create_stream(scope, "stream", 2) is True
        # Numbers go on after those of the deleted stream; the epoch begins again.
        assert harness.tail_segments(client, scope, "stream") == {next_number, next_number + 1}
        next_number += 2
        names = [f"round-{round_number}-{name}" for name in harness.keys(5)]
        writer = client.create_writer(scope, "stream", harness.IN_FLIGHT)
        harness.write_keyed(writer, names, 0, 4)
        assert client.seal_stream(scope, "stream") is True
        assert client.seal_stream(scope, "stream") is True
        # What was sealed can be read to its end, and holds nothing of its predecessors.
        reader = client.create_reader_group(f"group-{round_number}", scope, "stream").create_reader("reader")
        found = asyncio.run(harness.read_events(reader, 20))
        harness.check_exactly_once([harness.recognise(data) for data in found], names, 4)
        asyncio.run(harness.read_nothing(reader))
        harness.error_of(ValueError, lambda: harness.write_keyed(writer, names, 4, 5))  # noqa: B023
        assert client.delete_stream(scope, "stream") is True
        assert client.delete_stream(scope, "stream") is False
        assert "stream" not in client.list_stream(scope)
        assert "_MARKstream" not in client.list_stream(scope)
    assert client.delete_scope(scope) is True


if __name__ == "__main__":
    harness.run(globals())
