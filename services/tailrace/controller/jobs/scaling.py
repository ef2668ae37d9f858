"""Scale the streams in the buckets of this controller by the rates of their segments.

See docs/controller.md#automatic-scaling, ADR 0027.

Each round asks every container for the rates of its segments, and decides by what it gets. No round decides by what
another one got: a round that fails, or that misses a container, is made up for by the next one. What is kept is for
descriptions of streams.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

import structlog

from tailrace.common import limits
from tailrace.common.call_deadline import call_deadline
from tailrace.common.errors import InvalidNameError, TailraceError
from tailrace.common.names import parse_segment_name
from tailrace.common.task_groups import run_all
from tailrace.controller.managers.segment_rates import RatesFound
from tailrace.controller.managers.streams import ScalePreconditionError
from tailrace.controller.metadata.metadata_store import bucket_of
from tailrace.controller.metadata.model import StreamState
from tailrace.controller.metadata.stream_store import StreamKey
from tailrace.controller.scaling.decision import Measured, decide, is_cold, is_hot
from tailrace.controller.scaling.times import ScalingTimes
from tailrace.controller.workflows.slots import StepSlots

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from tailrace.common.stream_policies import ScalingPolicy
    from tailrace.controller.instances.membership import Membership
    from tailrace.controller.managers.segment_rates import SegmentRates
    from tailrace.controller.managers.streams import StreamManager
    from tailrace.controller.scaling.decision import Plan
    from tailrace.controller.workflows.context import WorkflowContext
    from tailrace.wire.commands import MeasuredRate

    Rates = Mapping[int, "MeasuredRate"]

_THOUSANDTHS = 1000
_LOG = structlog.get_logger(__name__)


class RateSource(Protocol):
    """The rates that segment stores measure; ``tailrace.client.connections.rates.RateClient`` satisfies it."""

    @property
    def container_count(self) -> int:
        """Return the number of containers."""
        ...

    async def rates(self, container_id: int, windows_ms: Sequence[int]) -> Sequence[MeasuredRate]:
        """Return the rates of a container's segments that have a rate policy. Raises UnavailableError."""
        ...


class ScalingJob:
    """A task that scales streams until it is closed."""

    def __init__(
        self,
        context: WorkflowContext,
        membership: Membership,
        streams: StreamManager,
        source: RateSource | None,
        shown: SegmentRates,
    ) -> None:
        self._context = context
        self._membership = membership
        self._streams = streams
        self._source = source
        self._shown = shown
        self._times = ScalingTimes(context.config.scaling_time_factor)
        self._slots = StepSlots(limits.SCALING_STREAMS_CONCURRENT_MAX)
        self._asking = asyncio.Semaphore(limits.SCALING_CONTAINERS_CONCURRENT_MAX)
        self._silent: set[int] = set()
        self._task: asyncio.Task[None] | None = None
        self.rounds = 0
        self.splits = 0
        """Segments that were split, since the start."""
        self.merges = 0
        """Segments that were made of several."""
        self.failures = 0
        """Streams that could not be scaled, counted in each round."""

    def start(self) -> None:
        """Begin, if there is a source of rates."""
        if self._source is not None:
            if self._times.factor != 1.0:
                _LOG.warning("scaling_times_changed", factor=self._times.factor)
            self._task = asyncio.get_running_loop().create_task(self._run(self._source), name="scaling")

    async def close(self) -> None:
        """Stop. A scale that has begun is continued by the stream's workflow."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self, source: RateSource) -> None:
        while True:
            await asyncio.sleep(self._times.period_s)
            try:
                await self.round(source)
            except Exception as error:  # any error is repeated: without this task no stream scales
                known = isinstance(error, TailraceError | TimeoutError)
                reason = f"{type(error).__name__}: {error}"
                _LOG.warning("scaling_round_failed", reason=reason, exc_info=not known)

    async def round(self, source: RateSource) -> None:
        """Ask for all rates once, and begin the scales that they call for."""
        mine = self._membership.own_buckets
        if not mine:
            return
        streams: dict[StreamKey, dict[int, MeasuredRate]] = {}
        loop = asyncio.get_running_loop()
        shown = RatesFound(self._times, loop.time())
        await run_all(*(self._ask(source, number, mine, streams, shown) for number in range(source.container_count)))
        self._shown.replace(shown, loop.time(), self._context.clock.now_ms())
        await run_all(*(self._scale(key, rates) for key, rates in streams.items() if self._may_scale(rates)))
        self.rounds += 1

    async def _ask(
        self,
        source: RateSource,
        container_id: int,
        buckets: Collection[int],
        streams: dict[StreamKey, dict[int, MeasuredRate]],
        shown: RatesFound,
    ) -> None:
        """Add the rates of a container's segments; a container that does not answer has none in this round."""
        try:
            async with self._asking:
                found = await source.rates(container_id, self._times.windows_ms)
        except TailraceError as error:
            if container_id not in self._silent:
                _LOG.warning("rates_not_reported", container=container_id, reason=f"{type(error).__name__}: {error}")
            self._silent.add(container_id)
            shown.silent.add(container_id)
            return
        self._silent.discard(container_id)
        for each in found:
            try:
                name = parse_segment_name(each.name)
            except InvalidNameError:
                continue  # made by a client that uses segments directly
            if name.suffix:
                continue
            key = StreamKey(name.scope, name.stream)
            shown.add(key, name.identifier, container_id, each)
            if bucket_of(name.scope, name.stream) in buckets:
                streams.setdefault(key, {})[name.identifier] = each
        shown.trim()

    def _may_scale(self, rates: Rates) -> bool:
        """Return whether the stream is worth a look at its records; by the segments' own copies of the policy."""
        cold = 0
        for each in rates.values():
            measured = _measured(each)
            if is_hot(measured, each.target_rate, self._times):
                return True
            cold += is_cold(measured, each.target_rate, self._times)
        return cold > 1

    async def _scale(self, key: StreamKey, rates: Rates) -> None:
        """Scale a stream if its policy wants it. A failure is logged: other streams go on."""
        try:
            async with self._slots.slot(), asyncio.timeout(self._context.config.blocking_deadline_s):
                with call_deadline(self._context.config.requests_deadline_s):
                    found = await self._plan(key, rates)
                    if found is None:
                        return
                    policy, plan = found
                    intent = await self._streams.scale(key, plan.sealed, plan.ranges, policy)
        except ScalePreconditionError:
            return  # scaled or updated by a call since its records were read; the next round decides again
        except Exception as error:  # any error concerns this stream only
            self.failures += 1
            known = isinstance(error, TailraceError | TimeoutError)
            reason = f"{type(error).__name__}: {error}"
            _LOG.warning("scaling_failed", stream=str(key), reason=reason, exc_info=not known)
            return
        self.splits += plan.splits
        self.merges += plan.merges
        _LOG.info(
            "stream_scales",
            stream=str(key),
            epoch=intent.old_epoch + 1,
            splits=plan.splits,
            merges=plan.merges,
            rates_per_s={each: max(_measured(rates[each]).rates[:3]) for each in plan.sealed},
        )

    async def _plan(self, key: StreamKey, rates: Rates) -> tuple[ScalingPolicy, Plan] | None:
        """Return the stream's own policy and the scale that it wants; None for no scale, or while a workflow runs."""
        store = self._context.store
        root = await store.load(key)
        if root is None or root.state is not StreamState.ACTIVE or root.intent is not None or root.rolling is not None:
            return None
        policy = root.config.scaling
        epoch = await store.active_epoch(key, root)
        # A copy of another kind was measured in another unit: the segment does not have the policy yet.
        measured = {number: _measured(each) for number, each in rates.items() if each.scale_type == policy.kind}
        plan = decide(policy, epoch.segments, measured, self._times) if measured else None
        return None if plan is None else (policy, plan)


def _measured(each: MeasuredRate) -> Measured:
    return Measured(each.age_ms / _THOUSANDTHS, [rate / _THOUSANDTHS for rate in each.rates])
