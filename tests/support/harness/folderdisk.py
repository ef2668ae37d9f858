"""A disk below objects in a folder: it knows which entries survive a power cut; its syncs fail or wait on request."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import weakref
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from tailrace.storage import folder_files, folder_objects

if TYPE_CHECKING:
    import pytest

WAIT_S = 120.0


class FolderDisk:
    """Stands between `FolderObjects` and the syncs of folders below `root`.

    An entry survives once a sync of its folder has succeeded. A failed sync loses the entries that were not durable, as
    file systems without a journal do: later syncs leave them out, though they report success, until another file gets
    the name. With ``forgives``, later syncs write them.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, root: Path, *, forgives: bool = False) -> None:
        self.root = root
        self.syncs: Counter[Path] = Counter()
        """Syncs that were begun, by folder."""
        self.failures: Counter[Path] = Counter()
        self._forgives = forgives
        self._failing: set[Path] = set()
        self._code = errno.EIO
        self._gate = threading.Event()
        self._gate.set()
        self._waiting = threading.Semaphore(0)
        self._lock = threading.Lock()
        self._durable: dict[Path, dict[str, int]] = {}
        self._lost: set[tuple[Path, str, int]] = set()
        self._kept_open: list[int] = []
        """Files whose entries were lost: no other file gets their inodes."""
        weakref.finalize(self, _close_all, self._kept_open)
        for module in (folder_files, folder_objects):
            monkeypatch.setattr(module, "sync_folder", self._sync)

    def fail(self, *folders: str, code: int = errno.EIO) -> None:
        """Let syncs of exactly these folders fail, and of no others."""
        self._code = code
        self._failing = {self.root / folder for folder in folders}

    def hold(self) -> None:
        """Let syncs wait until `release`."""
        self._gate.clear()

    def release(self) -> None:
        """End the wait of all syncs."""
        self._gate.set()

    def wait_until_held(self) -> None:
        """Wait in a thread until one further sync waits."""
        assert self._waiting.acquire(timeout=WAIT_S)

    def is_held(self) -> bool:
        """Whether one further sync waits by now."""
        return self._waiting.acquire(blocking=False)

    def unsync(self, key: str) -> None:
        """Let an entry be one that its process has not synced yet."""
        path = self.root / key
        with self._lock:
            del self._durable[path.parent][path.name]

    def survives(self, key: str) -> bool:
        """Whether a power cut leaves the file that is under a key now."""
        path = self.root / key
        with self._lock:
            while path != self.root:
                if self._durable.get(path.parent, {}).get(path.name) != path.stat().st_ino:
                    return False
                path = path.parent
        return True

    def brings_back(self, key: str) -> bool:
        """Whether a power cut brings back a file that was deleted."""
        path = self.root / key
        with self._lock:
            while path != self.root:
                if path.name not in self._durable.get(path.parent, {}):
                    return False
                path = path.parent
        return True

    def _sync(self, folder: Path) -> None:
        with self._lock:
            self.syncs[folder] += 1
            entries = {entry.name: entry.inode() for entry in os.scandir(folder)}
        if not self._gate.is_set():
            self._waiting.release()
            assert self._gate.wait(WAIT_S)
        with self._lock:
            durable = self._durable.get(folder, {})
            if folder in self._failing:
                self.failures[folder] += 1
                if not self._forgives:
                    new = entries.items() - durable.items()
                    self._lost |= {(folder, name, inode) for name, inode in new}
                    for name, _ in new:
                        with contextlib.suppress(FileNotFoundError):  # it was deleted since
                            self._kept_open.append(os.open(folder / name, os.O_PATH))
                raise OSError(self._code, os.strerror(self._code), str(folder))
            kept = {name: inode for name, inode in entries.items() if (folder, name, inode) not in self._lost}
            self._durable[folder] = kept


def _close_all(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
