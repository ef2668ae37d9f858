"""The workload of a segment container, with its log in the object store: errors of the store never stop it."""

from __future__ import annotations

import asyncio
import random

from sim.process import SimProcess
from sim.swarm import Swarm
from sim.workloads.container import CONTAINER, ContainerWorkload
from tailrace.common import limits
from tailrace.log.object import ObjectLog
from tailrace.log.port import DurableLog


class ObjectContainerWorkload(ContainerWorkload):
    """See ContainerWorkload. There is no disk; processes die at requests to the store."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.sync_error_chance = 0.0
        self.power_cuts = False
        self.swarm = Swarm(self.world, store=True, processes=["store"], clocks=[""])
        self.world.store.late_max_s = 5.0
        self.world.store.duplicate_chance = self.random.choice([0.0, 0.0, 0.03])
        self.world.store.stale_list_chance = self.random.choice([0.0, 0.0, 0.5])
        frames = random.Random(f"{seed}-object-log-frames")
        self.knobs |= {
            (limits, "LOG_OBJECT_CHECKPOINT_FRAMES_MIN"): frames.choice([1, 10, 40, 256]),
            (limits, "CHECKPOINT_BYTES_PER_FRAME"): frames.choice([50, 4096]),
            (limits, "CHECKPOINT_FRAMES_PER_SEGMENT"): frames.choice([0, 4]),
            (limits, "LOG_OBJECT_CACHE_BYTES"): frames.choice([0, 5_000, limits.LOG_OBJECT_CACHE_BYTES]),
            (limits, "LOG_OBJECT_CACHE_FRAME_MAX_BYTES"): frames.choice(
                [1024, limits.LOG_OBJECT_CACHE_FRAME_MAX_BYTES]
            ),
        }

    def _crash_point(self, process: SimProcess, operations: int, power: bool) -> asyncio.Future[None]:
        return self.world.crash_at_store_request(process, operations)

    def _log(self, process: SimProcess) -> DurableLog:
        return ObjectLog(self.world.store.attach(process), CONTAINER, max_frame_bytes=self.max_frame_bytes)

    def _may_stay_closed(self) -> bool:
        failing = self.store_failure_chance + self.store_loss_chance > 0
        return failing or self.swarm.hurts_store or self.swarm.has("pause")
