"""The live controllers and the buckets that each owns (docs/controller.md#several-controllers).

Each controller writes a heartbeat into a table that all share, and looks at those of the others. One that is silent for
`ControllerConfig.lapse_s` of the observer's own clock counts as dead. The first live controller by name assigns the
buckets, under a condition on the assignment that it read. A controller that is taken for dead by mistake loses nothing:
others repeat steps that may be repeated.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

import structlog

from tailrace.cluster.failure import FailureDetector, Renewal
from tailrace.common import limits
from tailrace.common.errors import TailraceError, WriteConflictError
from tailrace.controller.instances.buckets import assign
from tailrace.controller.metadata.metadata_store import CONTROLLERS_TABLE, bucket_of
from tailrace.controller.metadata.ports import NOT_EXISTS, UNCONDITIONAL, Put
from tailrace.controller.metadata.reading import readable
from tailrace.controller.metadata.records import BucketsRecord, InstanceRecord, PendingRecord, encode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tailrace.controller.metadata.ports import MetadataStore, Stored

_LOG = structlog.get_logger(__name__)
_BUCKETS_KEY = b"buckets"
_INSTANCE_PREFIX = b"instance/"
INDEXES: Final = 1
"""The indexes that this program keeps (`InstanceRecord`)."""


class Membership:
    """This controller among the live ones.

    ``endpoints`` are the addresses that its listeners serve; they may be added later. Times are in seconds.
    """

    def __init__(
        self,
        metadata: MetadataStore,
        instance: str,
        endpoints: Sequence[tuple[str, int]],
        *,
        lapse_s: float = limits.CONTROLLER_LAPSE_S,
    ) -> None:
        self.instance = instance
        self._metadata = metadata
        self._endpoints = endpoints
        self._lapse_s = lapse_s
        self._detector = FailureDetector(lapse_s, lapse_s / 2, lapse_s / 2)
        self._beat = 0
        self._looks_with_earlier = 0
        self._has_looked = False
        self._others: Mapping[str, InstanceRecord] = {}
        self._buckets = BucketsRecord(0, ())

    @property
    def others(self) -> list[InstanceRecord]:
        """The other controllers that may be alive, as of the last look, sorted by name."""
        return [record for _, record in sorted(self._others.items())]

    @property
    def owners(self) -> tuple[str, ...]:
        """The instance that owns each bucket, as of the last look; empty before the first assignment."""
        return self._buckets.owners

    @property
    def own_buckets(self) -> frozenset[int]:
        """The buckets that this controller owns, as of the last look."""
        return frozenset(self._mine(self.owners))

    @property
    def since_earlier(self) -> int | None:
        """A number that stays the same while all controllers keep the indexes; None while one may live that does not.

        None also before the first look.
        """
        if not self._has_looked or not all(record.indexes for record in self._others.values()):
            return None
        return self._looks_with_earlier

    def may_live(self, instance: str) -> bool:
        """Whether that controller may be alive."""
        return instance == self.instance or instance in self._others

    def is_to_adopt(self, record: PendingRecord) -> bool:
        """Whether pending work is of this controller, or of a dead one in a bucket that this controller owns."""
        if record.instance == self.instance:
            return True
        bucket = bucket_of(record.scope, record.name)
        owner = self.owners[bucket] if bucket < len(self.owners) else ""
        return owner == self.instance and not self.may_live(record.instance)

    def take_all(self) -> None:
        """Own every bucket, without a look at others: no other controller can run."""
        self._buckets = BucketsRecord(0, (self.instance,) * limits.METADATA_BUCKETS)
        self._has_looked = True

    async def beat(self) -> None:
        """Write a heartbeat. Raises UnavailableError when it cannot be written in time."""
        self._beat += 1
        endpoints = tuple(f"{host}:{port}" for host, port in self._endpoints)
        record = InstanceRecord(self.instance, self._beat, endpoints, INDEXES)
        await self._metadata.put(CONTROLLERS_TABLE, [Put(self._key, encode(record), UNCONDITIONAL)])

    async def look(self) -> bool:
        """Look at all heartbeats, and assign buckets where it is this controller's turn.

        Returns whether this controller may have work to adopt: another one died, or it owns other buckets than before.

        Raises:
            UnavailableError: the table cannot be read in time: what is known of the others stays.
        """
        loop = asyncio.get_running_loop()
        try:
            stored = await self._read()
        except TailraceError:
            self._detector.lost_contact()
            raise
        buckets = stored.pop(_BUCKETS_KEY, None)
        found = [(entry, readable(InstanceRecord, CONTROLLERS_TABLE, entry)) for entry in stored.values()]
        records = {
            record.instance: (entry, record) for entry, record in found if record and record.instance != self.instance
        }
        before = (self.owners, frozenset(self._others))
        self._looks_with_earlier += not all(record.indexes for _, record in records.values())
        alive = self._judge({name: record for name, (_, record) in records.items()}, loop.time())
        self._has_looked = True
        await self._forget([entry for name, (entry, _) in records.items() if name not in self._others])
        await self._assign(buckets, alive)
        return bool(before[1] - frozenset(self._others)) or self._mine(before[0]) != self._mine(self.owners)

    async def leave(self) -> None:
        """Remove this controller, so that others adopt its work at once; they do so later when that fails."""
        with contextlib.suppress(TailraceError, TimeoutError):
            async with asyncio.timeout(self._lapse_s):
                await self._metadata.remove(CONTROLLERS_TABLE, [(self._key, UNCONDITIONAL)])

    # -- steps of a look

    @property
    def _key(self) -> bytes:
        return _INSTANCE_PREFIX + self.instance.encode()

    async def _read(self) -> dict[bytes, Stored]:
        entries, _ = await self._metadata.entries(CONTROLLERS_TABLE, limits.CONTROLLERS_MAX, b"")
        return {entry.key: entry for entry in entries}

    def _judge(self, records: Mapping[str, InstanceRecord], now_s: float) -> set[str]:
        """Update which others may be alive; return those that are."""
        renewals = {name: Renewal(name, record.beat) for name, record in records.items()}
        renewals[self.instance] = Renewal(self.instance, self._beat)  # counts among those that may lapse together
        self._detector.look(now_s, renewals)
        verdict = self._detector.verdict(now_s)
        for name in verdict.ask:  # no proof is needed: a living one that is taken for dead only shares its work
            self._detector.answered(name, now_s, alive=False)
        verdict = self._detector.verdict(now_s)
        living = {name: record for name, record in records.items() if name not in verdict.dead}
        for name in sorted(self._others.keys() - living.keys()):
            _LOG.info("controller_gone", instance=name)
        self._others = living
        return {name for name in verdict.alive if name in self._others}

    async def _forget(self, dead: Sequence[Stored]) -> None:
        """Remove what dead controllers left, unless they renew it meanwhile."""
        for entry in dead:
            with contextlib.suppress(WriteConflictError):
                await self._metadata.remove(CONTROLLERS_TABLE, [(entry.key, entry.version)])

    async def _assign(self, stored: Stored | None, alive: set[str]) -> None:
        if stored is not None:
            self._buckets = readable(BucketsRecord, CONTROLLERS_TABLE, stored) or self._buckets
        if self.instance != min({self.instance, *alive}):
            return
        unheard = self._others.keys() - alive
        owners = assign(self._buckets.owners, {self.instance, *alive}, unheard)
        if owners == self._buckets.owners:
            return
        assigned = BucketsRecord(self._buckets.epoch + 1, owners)
        version = NOT_EXISTS if stored is None else stored.version
        with contextlib.suppress(WriteConflictError):  # another one assigned: the next look shows how
            await self._metadata.put(CONTROLLERS_TABLE, [Put(_BUCKETS_KEY, encode(assigned), version)])
            self._buckets = assigned
            _LOG.info("buckets_assigned", epoch=assigned.epoch, controllers=len(set(owners)))

    def _mine(self, owners: Sequence[str]) -> list[int]:
        return [bucket for bucket, owner in enumerate(owners) if owner == self.instance]
