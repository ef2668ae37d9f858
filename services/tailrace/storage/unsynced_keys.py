"""Keys of a folder that may be visible before they are durable (docs/design.md#objects-in-a-folder)."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tailrace.common import limits
from tailrace.common.errors import UnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(slots=True)
class UnsyncedKey:
    """A key while it is changed. One thread at a time holds it, to change it or to make it durable."""

    uncertain: bool = False
    """A file was put under the key, and no sync of its folders has succeeded since."""
    _users: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)


class UnsyncedKeys:
    """The keys that are being put, and those whose put ended without a successful sync. For any number of threads.

    A key is in it before its object becomes visible, and until that is durable. So who has read an object looks here
    afterwards: when its key is not here, the object is durable, or another process put it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._keys: dict[str, UnsyncedKey] = {}

    def __contains__(self, key: str) -> bool:
        return key in self._keys

    def __len__(self) -> int:
        return len(self._keys)

    @contextmanager
    def held(self, key: str, wait_s: float | None = None) -> Iterator[UnsyncedKey]:
        """Hold a key; wait for it at most `wait_s`, or ``limits.STORAGE_CALL_DEADLINE_S``.

        It stays when it is uncertain at the end.

        Raises:
            UnavailableError: another thread has held it for so long.
        """
        with self._lock:
            state = self._keys.setdefault(key, UnsyncedKey())
            state._users += 1
        try:
            if not state._lock.acquire(timeout=limits.STORAGE_CALL_DEADLINE_S if wait_s is None else wait_s):
                raise UnavailableError(f"object {key}: an earlier put has not ended")
            try:
                yield state
            finally:
                state._lock.release()
        finally:
            with self._lock:
                state._users -= 1
                if not state._users and not state.uncertain:
                    del self._keys[key]

    def surplus(self) -> str | None:
        """Return the key that has been uncertain for longest when ``limits.STORAGE_UNSYNCED_MAX`` are; else None."""
        if len(self._keys) < limits.STORAGE_UNSYNCED_MAX:
            return None
        with self._lock:
            idle = [key for key, state in self._keys.items() if not state._users]
        return idle[0] if len(idle) >= limits.STORAGE_UNSYNCED_MAX else None
