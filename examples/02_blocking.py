"""Write and read without asyncio."""

import os
import uuid

from tailrace.client import BlockingClient, StreamName, group_config

CONTROLLER = os.environ.get("TAILRACE_CONTROLLER", "tcp://localhost:9090")

with BlockingClient(CONTROLLER) as client:
    client.streams.create_scope("examples")
    stream = StreamName("examples", f"lines-{uuid.uuid4().hex[:8]}")
    client.streams.create_stream(stream)

    with client.writer(stream) as writer:
        writer.write_events([b"one", b"two", b"three"], routing_key="numbers")

    groups = client.reader_groups("examples")
    group = f"lines-{uuid.uuid4().hex[:8]}"
    groups.create(group, group_config({stream: None}))
    with client.reader("examples", group, "reader-1") as reader:
        events = [item.event for item in reader.events(idle_ms=500)]
    groups.delete(group)

    print(b", ".join(events).decode())
    assert events == [b"one", b"two", b"three"]
