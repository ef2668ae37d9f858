"""A segment store over a data folder, in the test's own event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from tailrace.cluster.data_folder import LogKind, open_data_folder
from tailrace.common import limits
from tailrace.common.real_ports import SystemClock, SystemEntropy
from tailrace.segmentstore.worker.folder_service import StoreService, StoreSpec
from tailrace.segmentstore.worker.worker import Worker


@contextlib.asynccontextmanager
async def served_folder(
    path: Path, containers: int, *, tier2: str = "", log: LogKind | None = None
) -> AsyncIterator[Worker]:
    """A store that owns all containers of the folder; `tier2` is the URL of another Tier 2 than the one inside.

    When it has ended, nothing writes to the folder any more. Raises what the opening and the start of a store raise.
    """
    entropy = SystemEntropy()
    folder = open_data_folder(path, containers=containers, tier2=tier2, entropy=entropy, log=log)
    manifest = folder.manifest
    spec = StoreSpec(
        str(path),
        manifest.tier2 or f"file://{path}/tier2",
        None,
        manifest.cluster_id,
        containers,
        tuple(range(containers)),
        limits.CACHE_MIN_BYTES,
        manifest.log,
    )
    service = StoreService(spec, SystemClock(), entropy)
    try:
        await service.start()
        yield service.worker
    finally:
        await service.close()
        _end_threads()
        folder.close()


def _end_threads() -> None:
    """Wait for what the running loop has given to threads: a put that was given up goes on, and may add a file."""
    loop: Any = asyncio.get_running_loop()
    threads, loop._default_executor = loop._default_executor, None  # the loop makes new ones when it needs some
    if threads is not None:
        threads.shutdown(wait=True)
