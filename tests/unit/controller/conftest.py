"""A controller over models: metadata in memory, segments as lists of bytes, a clock that the test moves."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from harness.endpoints import single_endpoint_map
from harness.interception import Call, Intercepted, create_each, info_of_each
from harness.modelloop import ModelLoop
from tailrace.cluster.endpoints import Endpoint, EndpointMap
from tailrace.common.auth import Account, Authorize, account_nothing, allow_all
from tailrace.common.errors import (
    ConnectionLostError,
    NoSuchSegmentError,
    SegmentExistsError,
    SegmentSealedError,
    SegmentTruncatedError,
)
from tailrace.controller.app import Controller
from tailrace.controller.metadata.metadata_store import CONTROLLERS_TABLE, MemoryMetadataStore
from tailrace.controller.metadata.scope_store import ScopeStore
from tailrace.controller.metadata.tag_index import TagIndex
from tailrace.controller.workflows.context import ControllerConfig
from tailrace.rpc import controller_pb2 as pb

CONTAINERS = 4


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Return the loop of a test: leases lapse and steps repeat without waits where no connection is made."""
    if item.path.parent.name == "grpc":
        return {"real": asyncio.new_event_loop}
    return {"model": ModelLoop}


class ModelClock:
    """Wall-clock time that only the test moves."""

    def __init__(self) -> None:
        self.ms = 1_700_000_000_000

    def now_ms(self) -> int:
        """Now."""
        return self.ms


class SeededEntropy:
    """Repeatable randomness."""

    def __init__(self, seed: int = 1) -> None:
        self._random = random.Random(seed)

    def token(self, length_bytes: int) -> bytes:
        """Bytes."""
        return self._random.randbytes(length_bytes)

    def uniform(self) -> float:
        """A float in [0, 1)."""
        return self._random.random()


@dataclass
class ModelSegment:
    """A segment's content: pieces as they were appended."""

    pieces: list[bytes] = field(default_factory=list)
    start_offset: int = 0
    sealed: bool = False
    scale_type: int = 0
    target_rate: int = 0
    rollover_bytes: int = 0
    key_length: int = 0
    is_table: bool = False

    @property
    def length(self) -> int:
        """Bytes ever appended."""
        return sum(map(len, self.pieces))


class ModelSegments:
    """The segments of all containers, as the segment store port promises them."""

    def __init__(self) -> None:
        self.segments: dict[str, ModelSegment] = {}

    def _get(self, name: str) -> ModelSegment:
        if name not in self.segments:
            raise NoSuchSegmentError(name)
        return self.segments[name]

    def _create(self, name: str, segment: ModelSegment) -> None:
        if name in self.segments:
            raise SegmentExistsError(name)
        self.segments[name] = segment

    def append(self, name: str, data: bytes) -> None:
        """What a writer does."""
        segment = self._get(name)
        if segment.sealed:
            raise SegmentSealedError(name)
        segment.pieces.append(data)

    async def create_segment(
        self, name: str, *, scale_type: int = 0, target_rate: int = 0, rollover_bytes: int = 0
    ) -> None:
        """Create."""
        self._create(name, ModelSegment(scale_type=scale_type, target_rate=target_rate, rollover_bytes=rollover_bytes))

    async def create_segments(self, names: Sequence[str], **fields: int) -> list[str]:
        """Create each by itself."""
        return await create_each(self, names, **fields)

    async def create_table(self, name: str, key_length: int = 0) -> None:
        """Create a table segment."""
        self._create(name, ModelSegment(key_length=key_length, is_table=True))

    async def delete_table(self, name: str) -> None:
        """Delete a table segment."""
        await self.delete_segment(name)

    async def update_policy(self, name: str, scale_type: int, target_rate: int) -> None:
        """Change what is counted: attributes, which a sealed segment does not take."""
        segment = self._get(name)
        if segment.sealed:
            raise SegmentSealedError(name)
        segment.scale_type, segment.target_rate = scale_type, target_rate

    async def seal_segment(self, name: str) -> None:
        """Seal."""
        segment = self._get(name)
        if segment.sealed:
            raise SegmentSealedError(name)
        segment.sealed = True

    async def truncate_segment(self, name: str, offset: int) -> None:
        """Set the start offset."""
        segment = self._get(name)
        if not segment.start_offset <= offset <= segment.length:
            raise SegmentTruncatedError(name, segment.start_offset)
        segment.start_offset = offset

    async def delete_segment(self, name: str) -> None:
        """Delete."""
        self._get(name)
        del self.segments[name]

    async def merge_batch(self, target: str, sources: Sequence[str]) -> list[int]:
        """Merge in order; missing sources count as merged. A failure leaves merged what came before it."""
        into = self._get(target)
        lengths = []
        for source in sources:
            found = self.segments.get(source)
            if found is not None:
                if into.sealed:
                    raise SegmentSealedError(target)
                if found.start_offset:
                    raise SegmentTruncatedError(source, found.start_offset)
                into.pieces.extend(self.segments.pop(source).pieces)
            lengths.append(into.length)
        return lengths

    async def segment_info(self, name: str) -> ModelSegment:
        """Properties."""
        return self._get(name)

    async def segment_infos(self, names: Sequence[str]) -> list[ModelSegment | None]:
        """Properties of several."""
        return await info_of_each(self, names)

    def names(self, prefix: str) -> list[str]:
        """Names of the segments below a prefix, sorted."""
        return sorted(name for name in self.segments if name.startswith(prefix))


class Crash:
    """Ends a controller at the n-th call to a store: before or after the call took effect; nothing works after it."""

    def __init__(self, at_call: int | None = None, *, after_effect: bool = False) -> None:
        self.at_call = at_call
        self.after_effect = after_effect
        self.calls = 0
        self.crashed = False

    def wrap(self, target: Any) -> Any:
        """The store with the crash in front of it."""
        return Intercepted(target, self._around)

    async def _around(self, name: str, arguments: tuple[Any, ...], call: Call) -> Any:
        if self.crashed:
            raise ConnectionLostError("crashed")
        # Heartbeats come by time: they would make the n-th call another one in each run.
        counts = CONTROLLERS_TABLE not in arguments[:1]
        self.calls += counts
        due = counts and self.calls == self.at_call
        if due and not self.after_effect:
            self.crashed = True
            raise ConnectionLostError("crashed before the call")
        result = await call()
        if due:
            self.crashed = True
            raise ConnectionLostError("crashed after the call")
        return result


class Counting:
    """Counts calls to the stores by name, without those of heartbeats."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()

    def wrap(self, target: Any) -> Any:
        """The store with the counter in front of it."""
        return Intercepted(target, self._around)

    async def _around(self, name: str, arguments: tuple[Any, ...], call: Call) -> Any:
        self.calls[name] += CONTROLLERS_TABLE not in arguments[:1]
        return await call()


class World:
    """What outlives a controller, and a way to start one."""

    def __init__(self) -> None:
        self.metadata = MemoryMetadataStore()
        self.segments = ModelSegments()
        self.clock = ModelClock()
        self.controllers: list[Controller] = []

    async def start(self, crash: Crash | Counting | None = None, **settings: Any) -> Controller:
        """A running controller; with a crash, what it does may fail."""
        controller = self.make(crash, **settings)
        await controller.start()
        return controller

    def make(
        self,
        crash: Crash | Counting | None = None,
        *,
        seed: int = 1,
        containers: EndpointMap | None = None,
        rates: Any = None,
        listing: Any = None,
        mark_segments: Any = None,
        authorize: Authorize = allow_all,
        account: Account = account_nothing,
        **settings: Any,
    ) -> Controller:
        """A controller that has not started."""
        wrap = crash.wrap if crash is not None else lambda target: target
        controller = Controller(
            wrap(self.metadata),
            wrap(self.segments),
            containers or single_endpoint_map(CONTAINERS, Endpoint("store", 1)),
            self.clock,
            SeededEntropy(seed),
            ControllerConfig(
                **{"idle_s": 0.01, "blocking_deadline_s": 5.0, "transaction_numbers_skipped": 0, **settings}
            ),
            rates=rates,
            listing=listing,
            mark_segments=mark_segments,
            authorize=authorize,
            account=account,
        )
        self.controllers.append(controller)
        return controller

    def tags(self) -> tuple[ScopeStore, TagIndex]:
        """The scopes and their indexes of tags, without a controller."""
        entropy = SeededEntropy(0)
        scopes = ScopeStore(self.metadata, self.clock, entropy)
        return scopes, TagIndex(self.metadata, scopes, entropy)

    async def tagged(self, tag: str) -> list[str]:
        """Streams of the scope "scope" that its index has under a tag, as a list by tag returns them."""
        scopes, tags = self.tags()
        owner = await scopes.require_existing("scope")
        return (await tags.page("scope", owner, tag, 1000, ""))[0]

    async def close(self) -> None:
        """Stop every controller."""
        for controller in self.controllers:
            await controller.close()


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """Stores without anything in them."""
    made = World()
    yield made
    await made.close()


@pytest.fixture
def counting() -> Counting:
    """Counts the calls of a controller that is started with it."""
    return Counting()


@pytest.fixture
def make_world() -> type[World]:
    """Stores without anything in them, as often as needed; the test closes them."""
    return World


@pytest.fixture
async def controller(world: World) -> Controller:
    """A running controller over the world."""
    return await world.start()


class Api:
    """Short forms of the calls that tests make most."""

    def __init__(self, controller: Controller, scope: str = "scope", stream: str = "stream") -> None:
        self.controller = controller
        self.scope = scope
        self.stream = stream

    async def call(self, rpc: str, request: Any) -> Any:
        """Any call."""
        return await self.controller.services.call(rpc, request)

    @property
    def info(self) -> pb.StreamInfo:
        """The stream."""
        return pb.StreamInfo(scope=self.scope, stream=self.stream)

    def config(self, segments: int = 1, **fields: Any) -> pb.StreamConfig:
        """A fixed number of segments."""
        return pb.StreamConfig(streamInfo=self.info, scalingPolicy=pb.ScalingPolicy(minNumSegments=segments), **fields)

    async def setup(self, segments: int = 1, **fields: Any) -> None:
        """Scope and stream."""
        await self.call("createScope", pb.ScopeInfo(scope=self.scope))
        created = await self.call("createStream", self.config(segments, **fields))
        assert created.status == pb.CreateStreamStatus.SUCCESS

    async def current(self) -> list[int]:
        """Ids of the active segments in key order."""
        found = await self.call("getCurrentSegments", self.info)
        return [item.segmentId.segmentId for item in found.segmentRanges]

    async def scale(self, sealed: Sequence[int], ranges: Sequence[tuple[float, float]]) -> pb.ScaleResponse:
        """Ask for a scale."""
        entries = [pb.ScaleRequest.KeyRangeEntry(start=low, end=high) for low, high in ranges]
        request = pb.ScaleRequest(streamInfo=self.info, sealedSegments=sealed, newKeyRanges=entries)
        answer: pb.ScaleResponse = await self.call("scale", request)
        return answer

    async def scaled(self, sealed: Sequence[int], ranges: Sequence[tuple[float, float]]) -> list[int]:
        """Scale and wait; ids of the active segments."""
        started = await self.scale(sealed, ranges)
        assert started.status == pb.ScaleResponse.STARTED
        await self.until_scaled(started.epoch)
        return await self.current()

    async def until_scaled(self, epoch: int) -> None:
        """Poll as clients do."""

        async def done() -> bool:
            status = await self.call("checkScale", pb.ScaleStatusRequest(streamInfo=self.info, epoch=epoch))
            return bool(status.status == pb.ScaleStatusResponse.SUCCESS)

        await until(done)

    async def begin(self, lease_ms: int = 20_000) -> pb.CreateTxnResponse:
        """Open a transaction."""
        answer: pb.CreateTxnResponse = await self.call(
            "createTransaction", pb.CreateTxnRequest(streamInfo=self.info, lease=lease_ms)
        )
        return answer

    async def commit(self, txn: pb.TxnId, **fields: Any) -> int:
        """Commit; the status."""
        request = pb.TxnRequest(streamInfo=self.info, txnId=txn, **fields)
        return int((await self.call("commitTransaction", request)).status)

    async def abort(self, txn: pb.TxnId) -> int:
        """Abort; the status."""
        return int((await self.call("abortTransaction", pb.TxnRequest(streamInfo=self.info, txnId=txn))).status)

    async def state(self, txn: pb.TxnId) -> int:
        """State of a transaction."""
        request = pb.TxnRequest(streamInfo=self.info, txnId=txn)
        return int((await self.call("checkTransactionState", request)).state)

    async def until_state(self, txn: pb.TxnId, state: int) -> None:
        """Wait for a transaction's state."""

        async def reached() -> bool:
            return await self.state(txn) == state

        await until(reached)


async def until(condition: Callable[[], Any], turns: int = 20_000) -> None:
    """Let the tasks run until the condition holds."""
    for turn in range(turns):
        if await condition():
            return
        await asyncio.sleep(0 if turn < 100 else 0.001)
    raise AssertionError("the condition never held")


@pytest.fixture
def api(controller: Controller) -> Api:
    """Calls to the running controller."""
    return Api(controller)


@pytest.fixture
def make_api() -> type[Api]:
    """Calls to any controller."""
    return Api


@pytest.fixture
def make_crash() -> type[Crash]:
    """A crash to give to `World.start`."""
    return Crash


@pytest.fixture
def wait_until() -> Callable[..., Any]:
    """Let the tasks run until a condition holds."""
    return until
