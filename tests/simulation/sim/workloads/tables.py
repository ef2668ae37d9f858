"""Write / crash / recover / verify against table segments: updates, iterators, deltas and compaction at once."""

from __future__ import annotations

import asyncio
import random

from sim.checks.memory import check_entries
from sim.process import SimProcess
from sim.violations import require
from sim.workloads.container import CALM_DEADLINE_S, ContainerWorkload
from sim.workloads.table_model import BATCH_MAX, TableAuditor, TableSpec, TableWriter, iterate, weak_hash
from tailrace.common import limits
from tailrace.common.errors import NoSuchSegmentError, UnavailableError
from tailrace.segmentstore.container.container import Container
from tailrace.segmentstore.tables.cache import EntryCache
from tailrace.segmentstore.tables.layout import sha256_bucket
from tailrace.segmentstore.tables.service import TableService

KEY_LENGTHS = [0, 0, 0, 4, 16, 40]


class TablesWorkload(ContainerWorkload):
    """One seed: the world of the container workload, with the clients of some tables in it."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        rng = self.random = random.Random(f"{seed}-tables-workload")
        self.sole, self.streams = [], []
        self.work = rng.randint(5, 60)
        self.hash_function = rng.choice([sha256_bucket, weak_hash])
        self.entry_cache_bytes = rng.choice([1000, 5000, limits.TABLE_ENTRY_CACHE_BYTES])
        self.compaction_pause_s = rng.choice([0.01, 0.2, 5.0])
        self.writers: dict[TableSpec, list[TableWriter]] = {}
        self.auditors: list[TableAuditor] = []
        for number in range(rng.randint(1, 3)):
            table = TableSpec(f"scope/table{number}/0", rng.choice(KEY_LENGTHS))
            count = rng.randint(1, 3)
            alone = count == 1 and rng.random() < 0.7
            writers = self.writers[table] = [
                TableWriter(table, index, rng, lives_alone=alone) for index in range(count)
            ]
            if not alone:
                self.auditors.append(TableAuditor(table, [key for writer in writers for key in writer.keys], rng))
        self.knobs |= {
            (limits, "TABLE_COMPACTION_PASS_BYTES"): rng.choice([400, 3_000, limits.TABLE_COMPACTION_PASS_BYTES]),
            (limits, "TABLE_COMPACTION_MIN_BYTES"): rng.choice([0, 2_000]),
            (limits, "TABLE_COMPACTION_UTILISATION"): rng.choice([0.75, 0.95]),
            (limits, "TABLE_COMPACTION_PASSES_MAX"): rng.choice([1, 4]),
            (limits, "TABLE_BATCH_KEYS_MAX"): rng.choice([BATCH_MAX, 100]),
            (limits, "TABLE_ENTRY_READS_MAX"): rng.choice([1, 16]),
            (limits, "TABLE_ENTRY_READ_BYTES"): rng.choice([64, 4096]),
            (limits, "TABLE_SCAN_READ_BYTES"): rng.choice([100, 1_000_000]),
            (limits, "TABLE_REPLY_MAX_BYTES"): rng.choice([500, 2_000_000]),
            (limits, "TABLE_DELTA_SCAN_MAX_BYTES"): rng.choice([1_000, 32_000_000]),
            (limits, "TABLE_ITERATOR_RUN"): rng.choice([1, 4, 256]),
        }

    @property
    def steps(self) -> int:
        """Operations that clients did."""
        return sum(writer.steps for writer in self._all_writers())

    def _all_writers(self) -> list[TableWriter]:
        return [writer for writers in self.writers.values() for writer in writers]

    async def _serve(self, process: SimProcess) -> None:
        entries = EntryCache(self.entry_cache_bytes)  # outlives a container that is opened again
        for _ in range(self.random.randint(1, 3)):
            try:
                container = await self._open(process)
            except UnavailableError as error:
                require(self._may_stay_closed(), f"the container did not open without a fault: {error}")
                return
            await self._use(container, TableService(container, entries, hash_function=self.hash_function))
            check_entries(entries, self.entry_cache_bytes)
            try:
                await container.close(flush=self.random.random() < 0.3)
            except UnavailableError as error:
                self._judge(error)
                await container.close()

    async def _use(self, container: Container, service: TableService) -> None:
        compacting = asyncio.create_task(self._compact(service))
        clients = [writer.live(service, self.work) for writer in self._all_writers()]
        clients += [auditor.live(service, self.work) for auditor in self.auditors]
        for result in await asyncio.gather(*clients, return_exceptions=True):
            self._judge(result)
        compacting.cancel()
        (result,) = await asyncio.gather(compacting, return_exceptions=True)
        self._judge(None if isinstance(result, asyncio.CancelledError) else result)

    async def _compact(self, service: TableService) -> None:
        """What the owner of a container does with its tables, much more often."""
        while True:
            await asyncio.sleep(self.compaction_pause_s * (0.5 + self.random.random()))
            try:
                await service.compact_due()
                if self.random.random() < 0.1:
                    await service.compact(self.random.choice(list(self.writers)).name)
            except NoSuchSegmentError:
                continue  # it was deleted
            except UnavailableError as error:
                self._judge(error)

    async def _calm(self, process: SimProcess) -> None:
        async with asyncio.timeout(CALM_DEADLINE_S):
            container = await self._open(process)
            service = TableService(container, hash_function=self.hash_function)
            await self._use(container, service)
            await container.flush_to_storage()
            require(container.status().untiered_bytes == 0, "bytes are left after a flush of everything")
            for table, writers in self.writers.items():
                await self._check(service, table, writers)
            self._check_objects(container)
            await self._check_places(container, flushed=True)
            await container.close()
            self.watch.closed()

    @staticmethod
    async def _check(service: TableService, table: TableSpec, writers: list[TableWriter]) -> None:
        """Without changes a table holds what its writers hold, and nothing else."""
        for writer in writers:
            await writer.reconcile(service)
            await writer.check_iterator(service)
            await writer.check_delta(service)
        states = [writer.candidates[0] for writer in writers]
        if None in states:
            return
        wanted = {key: held for state in states if state is not None for key, held in state.items()}
        found = await iterate(service, table, 1000)
        require(
            {key: (entry.value, entry.version) for key, entry in found.items()} == wanted,
            f"{table.name}: the iterator found {sorted(found)}, not {sorted(wanted)}",
        )
        count = (await service.info(table.name)).entry_count
        require(count == len(wanted), f"{table.name}: {count} entries are counted, there are {len(wanted)}")
