"""The blocking facade: every object of it works from a plain thread while the loop runs in another."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from harness.localtransport import LocalTransport
from tailrace.client import BlockingClient, StreamName, group_config
from tailrace.rpc import controller_pb2 as pb

STREAM = StreamName("s", "t")
Split = Callable[[bytes | bytearray], list[bytes]]


def use_events(client: BlockingClient) -> dict[str, Any]:
    """Write, read, checkpoint and leave; returns what was seen."""
    seen: dict[str, Any] = {}
    with client.writer("s/t") as writer:
        writer.write_events([b"a", b"b"], "key")
        writer.write_event(b"c", "key")
        writer.flush()
    groups = client.reader_groups("s")
    seen["created"] = groups.create("g", group_config({STREAM: None}, group_refresh_ms=10, automatic_checkpoint_ms=-1))
    group = groups.open("g")
    with client.reader("s", "g", "r") as reader:
        seen["events"] = [item.event for item in reader.events(idle_ms=1000)]
        seen["online"] = group.online_readers()
        seen["position"] = reader.position.positions
        cuts: list[Any] = []
        asking = threading.Thread(target=lambda: cuts.append(group.stream_cuts(deadline_s=10)))
        asking.start()
        while asking.is_alive():
            assert reader.read_event(10) is None
        seen["cuts"] = cuts[0]["s/t"].positions
        seen["none"] = reader.read_events(5, 1)
    seen["offline"] = group.online_readers()
    seen["slices"] = [events for piece in client.slices("s/t") for events in client.read_slice(piece)]
    with client.transactional_writer("s/t") as transactions:
        with transactions.begin() as transaction:
            transaction.write_event(b"t", "key")
        seen["transaction"] = transaction.state().name
    seen["tail"] = client.streams.tail("s/t").positions
    return seen


def use_bytes(client: BlockingClient) -> dict[str, Any]:
    """Write and read bytes."""
    with client.byte_writer("s/t") as writer:
        writer.write(b"hello")
        writer.flush()
        writer.truncate(1)
        writer.seal()
    reader = client.byte_reader("s/t")
    seen: dict[str, Any] = {"edges": (reader.head(), reader.tail()), "data": reader.read_exactly(10)}
    reader.seek(2)
    seen["part"] = reader.read(2, timeout_s=1)
    return seen


async def test_events(controller: Any) -> None:
    controller.begin((0, 0.0, 1.0))
    controller.transaction_state = pb.TxnState.COMMITTED
    client = await asyncio.to_thread(BlockingClient, LocalTransport(controller.handle))
    try:
        seen = await asyncio.to_thread(use_events, client)
    finally:
        await asyncio.to_thread(client.close)
    segment = STREAM.segment(0)
    assert seen == {
        "created": True,
        "events": [b"a", b"b", b"c"],
        "online": ["r"],
        "position": {segment: 27},
        "cuts": {0: 27},
        "none": [],
        "offline": [],
        "slices": [[b"a", b"b", b"c"]],
        "transaction": "COMMITTED",
        "tail": {0: 27},
    }


async def test_bytes(controller: Any) -> None:
    controller.begin((0, 0.0, 1.0))
    client = await asyncio.to_thread(BlockingClient, LocalTransport(controller.handle))
    try:
        seen = await asyncio.to_thread(use_bytes, client)
    finally:
        await asyncio.to_thread(client.close)
    assert seen == {"edges": (1, 5), "data": b"ello", "part": b"ll"}


async def test_management(controller: Any) -> None:
    controller.begin((0, 0.0, 1.0))
    answers = {
        "createScope": pb.CreateScopeStatus(),
        "deleteScope": pb.DeleteScopeStatus(),
        "createStream": pb.CreateStreamStatus(),
        "updateStream": pb.UpdateStreamStatus(),
        "truncateStream": pb.UpdateStreamStatus(),
        "sealStream": pb.UpdateStreamStatus(),
        "deleteStream": pb.DeleteStreamStatus(),
        "scale": pb.ScaleResponse(),
        "checkScale": pb.ScaleStatusResponse(status=pb.ScaleStatusResponse.SUCCESS),
    }
    controller.answers = {method: lambda _, answer=answer: answer for method, answer in answers.items()}
    client = await asyncio.to_thread(BlockingClient, LocalTransport(controller.handle))

    def manage() -> list[object]:
        streams = client.streams
        info = streams.info("s/t")
        streams.update_stream(STREAM, info.config)
        streams.scale_to("s/t", 2)
        streams.split_segment("s/t", 0, 2)
        streams.truncate_stream("s/t", info.tail)
        streams.seal_stream("s/t")
        return [streams.create_scope("s"), streams.create_stream("s/t"), streams.delete_stream("s/t"), info.head]

    try:
        found = await asyncio.to_thread(manage)
    finally:
        await asyncio.to_thread(client.close)
    assert found[:3] == [True, True, True]
    methods = [method for method, _ in controller.calls]
    assert [methods.count(name) for name in ("scale", "truncateStream", "sealStream")] == [2, 1, 1]
