"""The data folder of the simulated server: the product's logs and epochs in it, and what must hold for them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from sim.process import SimProcess
from sim.violations import require
from sim.world import SimWorld
from tailrace.cluster.data_folder import LogKind
from tailrace.common.errors import ContainerStoppedError
from tailrace.log.object_keys import LogKeys
from tailrace.segmentstore.worker.folder_logs import FolderLogs, folder_logs
from tailrace.segmentstore.worker.worker import Worker, WorkerPorts

DATA = "/data"
EPOCHS = "/data/epochs"
LOGS = "/data/log"
EPOCHS_LOST = "epochs lost"


class ServerFolder:
    """Outlives the server processes: records which epochs were given out and opened."""

    def __init__(self, world: SimWorld, containers: Sequence[int]) -> None:
        rng = random.Random(f"{world.seed}-server-folder")
        self.random = rng
        self.world = world
        self.containers = containers
        self.kind: LogKind = "object" if rng.random() < 0.3 else "file"
        self.loses_epochs = self.kind == "object" and rng.random() < 0.6
        self._given: Counter[int] = Counter()
        self._opened: Counter[int] = Counter()
        self._broken: list[str] = []
        if self.loses_epochs:
            world.enabled_episodes.add(EPOCHS_LOST)

    async def ports(self, process: SimProcess) -> WorkerPorts:
        """Return the ports of a server that starts over the folder. Raises StartError."""
        world = self.world
        store, entropy = world.store.attach(process), world.entropy(process.name)
        disk = world.disk.attach(process)
        disk.make_directory(DATA)
        logs = folder_logs(self.kind, Path(DATA), self.containers, disk)
        await logs.prepare(store, "Tier 2", entropy.token(8).hex())

        async def next_epoch(container: int, floor: int) -> int:
            return await self._next_epoch(logs, container, floor)

        def log_opened(container: int, epoch: int) -> None:
            last = self._opened[container]
            self._promise(epoch > last, f"container {container} was opened for epoch {epoch} after epoch {last}")
            self._opened[container] = epoch
            logs.log_opened(container, epoch)

        clock = world.clock("server")
        return WorkerPorts(store, logs.open_log, next_epoch, clock, entropy, b"simulated-clustr", log_opened)

    async def _next_epoch(self, logs: FolderLogs, container: int, floor: int) -> int:
        epoch = await logs.next_epoch(container, floor)
        last = self._given[container]
        self._promise(epoch > last, f"container {container} was given epoch {epoch} after epoch {last}")
        self._given[container] = epoch
        return epoch

    def _promise(self, kept: bool, promise: str) -> None:
        """Remember a broken promise: the worker that asks takes an exception for a failure of its container."""
        if not kept:
            self._broken.append(promise)

    def check(self) -> None:
        """Raise Violation when a promise was broken."""
        require(not self._broken, "; ".join(self._broken[:5]))

    def opened(self, worker: Worker) -> None:
        """Promise that a worker refuses no container because parts of its log are missing: none was lost."""
        for status in worker.status():
            missing = any(words in status.reason for words in ("has lost epoch", ", but had one of epoch"))
            self._promise(not missing, f"a log is taken for lost and is not: {status.reason}")

    def lose_epochs(self) -> None:
        """Perhaps lose the epochs while no server runs: the claims of object logs replace them."""
        if self.loses_epochs and self.random.random() < 0.7:
            self.world.disk.lose(EPOCHS, EPOCHS_LOST)
            self._given.clear()

    def lose_logs(self) -> None:
        """Lose the logs while no server runs; with object logs perhaps the epochs, too."""
        if self.kind == "file":
            self.world.disk.lose(LOGS, "log lost")
            return
        objects = self.world.store.objects
        for container in self.containers:
            for key in [key for key in objects if key.startswith(LogKeys(container).folder)]:
                del objects[key]
        self.world.disk.count("log lost")
        self.lose_epochs()

    def check_refused(self, worker: Worker) -> None:
        """Containers whose logs are lost must stay stopped, with the reason."""
        for container in self.containers:
            try:
                worker.container_by_id(container)
            except ContainerStoppedError as error:
                require("log" in str(error), f"a lost log is refused without naming it: {error}")
            else:
                require(False, f"container {container} was opened although its log is lost")
