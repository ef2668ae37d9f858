"""Events: a hundred thousand small ones, order per routing key, sizes, reading from the tail and from a cut."""

import asyncio

import harness

SMALL_EVENTS = 100_000


def _write_and_read(segments: int, key_count: int, rounds: int) -> None:
    client = harness.manager()
    scope = harness.new_scope(client)
    assert client.create_stream(scope, "stream", segments) is True
    names = harness.keys(key_count)
    harness.write_keyed(client.create_writer(scope, "stream", harness.IN_FLIGHT), names, 0, rounds)
    reader = client.create_reader_group("group", scope, "stream").create_reader("reader")

    async def read() -> harness.Events:
        found = await harness.read_events(reader, key_count * rounds, 90)
        await harness.read_nothing(reader)
        return [harness.recognise(data) for data in found]

    harness.check_exactly_once(asyncio.run(read()), names, rounds)


def check_hundred_thousand_events() -> None:
    _write_and_read(segments=4, key_count=100, rounds=SMALL_EVENTS // 100)


def check_order_per_key_over_1_segment() -> None:
    _write_and_read(segments=1, key_count=50, rounds=400 if harness.FULL else 100)


def check_order_per_key_over_4_segments() -> None:
    _write_and_read(segments=4, key_count=50, rounds=400 if harness.FULL else 100)


def check_order_per_key_over_16_segments() -> None:
    _write_and_read(segments=16, key_count=100, rounds=400 if harness.FULL else 100)


def check_sizes() -> None:
    """1 B, 1 MiB and 8 MiB; one byte more than that travels through a transient segment."""
    client = harness.manager()
    scope = harness.new_scope(client)
    client.create_stream(scope, "stream", 1)
    writer = client.create_writer(scope, "stream", harness.IN_FLIGHT)
    reader = client.create_reader_group("group", scope, "stream").create_reader("reader")
    sizes = [1, 1 << 20, 8 << 20, 1, (8 << 20) - 8, (8 << 20) + 1, 1]
    events = [(b"%d" % i).ljust(size, b"abcdefg"[i : i + 1])[:size] for i, size in enumerate(sizes)]
    for data in events:
        writer.write_event_bytes(data, routing_key="key")
        writer.flush()
    found = asyncio.run(harness.read_events(reader, len(events)))
    assert [len(data) for data in found] == sizes
    assert found == events


def check_text_events_and_no_routing_key() -> None:
    client = harness.manager()
    scope = harness.new_scope(client)
    client.create_stream(scope, "stream", 3)
    writer = client.create_writer(scope, "stream", harness.IN_FLIGHT)
    texts = [f"número {i} ✓" for i in range(300)]
    for text in texts:
        writer.write_event(text)
    writer.flush()
    reader = client.create_reader_group("group", scope, "stream").create_reader("reader")
    found = asyncio.run(harness.read_events(reader, len(texts)))
    assert sorted(data.decode() for data in found) == sorted(texts)


def check_one_event_at_a_time() -> None:
    """The writer's default: no event is taken before the one before it is on its way."""
    client = harness.manager()
    scope = harness.new_scope(client)
    client.create_stream(scope, "stream", 1)
    writer = client.create_writer(scope, "stream")
    for sequence in range(200):
        writer.write_event_bytes(harness.event("key", sequence, 100), routing_key="key")
        writer.flush()
    reader = client.create_reader_group("group", scope, "stream").create_reader("reader")
    found = asyncio.run(harness.read_events(reader, 200))
    harness.check_exactly_once([harness.recognise(data) for data in found], ["key"], 200)


def check_read_from_the_tail() -> None:
    client = harness.manager()
    scope = harness.new_scope(client)
    client.create_stream(scope, "stream", 2)
    writer = client.create_writer(scope, "stream", harness.IN_FLIGHT)
    names = harness.keys(10)
    harness.write_keyed(writer, names, 0, 5)
    reader = client.create_reader_group("group", scope, "stream", True).create_reader("reader")
    asyncio.run(harness.read_nothing(reader))
    harness.write_keyed(writer, names, 5, 8)
    found = asyncio.run(harness.read_events(reader, 30))
    assert sorted(harness.recognise(data) for data in found) == [(name, i) for name in names for i in (5, 6, 7)]


def check_no_data_is_an_empty_slice() -> None:
    client = harness.manager()
    scope = harness.new_scope(client)
    client.create_stream(scope, "stream", 1)
    reader = client.create_reader_group("group", scope, "stream").create_reader("reader")
    asyncio.run(harness.read_nothing(reader, pieces=1))


if __name__ == "__main__":
    harness.run(globals())
