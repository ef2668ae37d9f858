"""Reader groups: several readers, readers that leave or die, starting at cuts, several streams."""

import asyncio
from typing import Any

import pravega_client

import harness


def _stream(segments: int) -> tuple[Any, str]:
    client = harness.manager()
    scope = harness.new_scope(client)
    client.create_stream(scope, "stream", segments)
    return client, scope


class _Sharing:
    """Readers of one group beside a writer that goes on; all have read before the check begins."""

    def __init__(self, readers: int, segments: int = 6) -> None:
        self.client, self.scope = _stream(segments)
        self.names = harness.keys(30)
        self.client.create_reader_group("group", self.scope, "stream")
        self.readers = harness.Readers(self.scope, "stream", "group", readers)
        self.writer = harness.Worker("write", self.scope, "stream", str(len(self.names)), "100")
        self.writer.wait_for("connected")
        self.writer.tell("go")
        what = "every reader having read something"
        harness.wait_until(lambda: min(self.readers.counts().values()) > 0, what, 90, 0.2)

    def write_more(self, rounds: int) -> None:
        goal = self.writer.rounds() + rounds
        harness.wait_until(lambda: self.writer.rounds() >= goal, "the writer going on")

    def finish_writing(self) -> int:
        """Ends the writer, waits until everything was read, and returns the number of events per key."""
        self.writer.stop()
        rounds: int = self.writer.result()["rounds"]
        self.readers.wait_for(rounds * len(self.names))
        return rounds


def check_two_readers_share() -> None:
    sharing = _Sharing(2)
    sharing.write_more(50)
    rounds = sharing.finish_writing()
    sharing.readers.check_nothing_more()
    harness.check_exactly_once(sharing.readers.read(), sharing.names, rounds)


def check_three_readers_share() -> None:
    sharing = _Sharing(3)
    sharing.write_more(50)
    rounds = sharing.finish_writing()
    sharing.readers.check_nothing_more()
    harness.check_exactly_once(sharing.readers.read(), sharing.names, rounds)


def check_reader_goes_offline() -> None:
    """A reader leaves in good order; the other takes its segments over where it left them."""
    sharing = _Sharing(2)
    sharing.readers.workers["reader-0"].stop()
    sharing.write_more(50)
    rounds = sharing.finish_writing()
    sharing.readers.workers["reader-1"].kill()
    harness.check_exactly_once(sharing.readers.read(), sharing.names, rounds)


def check_killed_reader_is_taken_over() -> None:
    """A reader dies; once it is marked offline the other reads its segments from the last position it had noted."""
    sharing = _Sharing(2)
    sharing.readers.workers["reader-0"].kill()
    sharing.write_more(50)
    # A handle marks offline only readers it knows of, and knows those that were there when it was made.
    group = sharing.client.create_reader_group("group", sharing.scope, "stream")
    group.reader_offline("reader-0")
    rounds = sharing.finish_writing()
    sharing.readers.workers["reader-1"].kill()
    harness.check_at_least_once(sharing.readers.read(), sharing.names, rounds)


def check_reader_returns() -> None:
    """A group goes on where its last reader left off.

    Each reader has a name of its own: the client marks a reader offline once more, by name, when its object ends. And
    going offline may wait for a read at the tail, for 30 s.
    """
    client, scope = _stream(3)
    names = harness.keys(15)
    writer = client.create_writer(scope, "stream", harness.IN_FLIGHT)
    group = client.create_reader_group("group", scope, "stream")
    found: harness.Events = []
    for part in range(2):
        harness.write_keyed(writer, names, part * 10, part * 10 + 10)
        reader = group.create_reader(f"reader-{part}")
        data = asyncio.run(harness.read_events(reader, 150))
        found += [harness.recognise(one) for one in data]
        if part == 0:
            reader.reader_offline()
    harness.check_exactly_once(found, names, 20)


def check_from_a_cut() -> None:
    """A group begins at the cut at which another one stands."""
    client, scope = _stream(2)
    names = harness.keys(10)
    writer = client.create_writer(scope, "stream", harness.IN_FLIGHT)
    harness.write_keyed(writer, names, 0, 10)
    at_tail = client.create_reader_group("tail", scope, "stream", True)
    cut = at_tail.get_streamcut()
    assert sum(cut.get_segment_offset_map().values()) == 100 * (100 + 8)
    harness.write_keyed(writer, names, 10, 15)
    reader = client.create_reader_group("group", scope, "stream", False, cut).create_reader("reader")
    found = asyncio.run(harness.read_events(reader, 50))
    asyncio.run(harness.read_nothing(reader))
    assert sorted(harness.recognise(one) for one in found) == [(name, i) for name in names for i in range(10, 15)]


def check_two_streams() -> None:
    client, scope = _stream(2)
    client.create_stream(scope, "other", 3)
    for stream, name in (("stream", "one"), ("other", "two")):
        harness.write_keyed(client.create_writer(scope, stream, harness.IN_FLIGHT), [name], 0, 30)
    config = pravega_client.StreamReaderGroupConfig(False, scope, "stream", "other")
    reader = client.create_reader_group_with_config("group", scope, config).create_reader("reader")
    found = asyncio.run(harness.read_events(reader, 60))
    harness.check_exactly_once([harness.recognise(one) for one in found], ["one", "two"], 30)


def check_delete_and_create_again() -> None:
    client, scope = _stream(1)
    harness.write_keyed(client.create_writer(scope, "stream", harness.IN_FLIGHT), ["key"], 0, 20)
    for name in ("first", "second"):
        reader = client.create_reader_group(name, scope, "stream").create_reader("reader")
        found = asyncio.run(harness.read_events(reader, 20))
        harness.check_exactly_once([harness.recognise(one) for one in found], ["key"], 20)
        client.delete_reader_group(name, scope)
    client.delete_reader_group("no-such-group", scope)


if __name__ == "__main__":
    harness.run(globals())
