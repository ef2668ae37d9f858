"""Keeps epochs in a data folder, for the standalone server (docs/design.md#ownership)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tailrace.cluster.data_folder import take_epoch
from tailrace.common import limits
from tailrace.common.durable_folder import RealFolderFiles
from tailrace.common.errors import OverloadedError, UnavailableError

if TYPE_CHECKING:
    from pathlib import Path

    from tailrace.common.durable_folder import FolderFiles


class FileEpochs:
    """Implements `Epochs`: the process that opens the folder may own all its containers.

    ``take_epoch`` locks a file per container. So even two processes over one folder, which the folder's lock should
    prevent, never get the same epoch.
    """

    def __init__(self, data: Path, files: FolderFiles | None = None) -> None:
        self._data = data
        self._files: FolderFiles = files or RealFolderFiles()

    async def take(self, container_id: int, floor: int = 0) -> int:
        """See Epochs.take."""
        loop = asyncio.get_running_loop()
        ends_at_s = loop.time() + limits.EPOCH_LOCK_TIMEOUT_S
        while True:
            try:
                return await self._files.in_background(lambda: take_epoch(self._data, container_id, floor, self._files))
            except OverloadedError as error:
                if loop.time() >= ends_at_s:
                    raise UnavailableError(str(error)) from error
                await asyncio.sleep(limits.EPOCH_LOCK_POLL_S)
