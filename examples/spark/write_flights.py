"""Write every flight that left New York in 2013 to the stream examples/flights, each as JSON, by its plane."""

import os
from itertools import groupby, islice

from tailrace.cli.demo.flights import cache_folder, fetch_archive, read_events
from tailrace.client import BlockingClient, ScalingPolicy, StreamConfig

CONTROLLER = os.environ.get("TAILRACE_CONTROLLER", "tcp://localhost:9090")
STREAM = "examples/flights"

flights = list(islice(read_events(fetch_archive(cache_folder())), int(os.environ.get("EVENTS", "1000000"))))
with BlockingClient(CONTROLLER) as client:
    client.streams.create_scope("examples")
    if not client.streams.create_stream(STREAM, StreamConfig(ScalingPolicy.fixed(4))):
        raise SystemExit(f"the stream {STREAM} exists: tailrace stream delete {STREAM}")
    with client.writer(STREAM) as writer:
        for key, group in groupby(flights, key=lambda flight: flight.key):
            writer.write_events([flight.data for flight in group], routing_key=key)
        writer.flush()
print(f"{len(flights):,} flights written to {STREAM}")
