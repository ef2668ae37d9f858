"""Remember stored values of records that change, as a controller last read or wrote them.

See docs/controller.md#how-a-change-happens.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.controller.metadata.ports import Stored

ENTRY_BYTES: Final = 400
"""What an entry takes beside its key and value."""


class RecentRecords:
    """Stored values by table and key, up to a number of bytes; those that were not used for longest go first."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._found: OrderedDict[tuple[str, bytes], Stored] = OrderedDict()
        self.used_bytes = 0
        """What the entries take, estimated."""

    def get(self, table: str, keys: Sequence[bytes]) -> dict[bytes, Stored] | None:
        """Return the values of the keys; None unless all of them are known."""
        found: dict[bytes, Stored] = {}
        for key in keys:
            stored = self._found.get((table, key))
            if stored is None:
                return None
            found[key] = stored
        for key in keys:
            self._found.move_to_end((table, key))
        return found

    def note(self, table: str, key: bytes, stored: Stored | None) -> None:
        """Remember what was read or written, unless a later version is known. None: the key is missing."""
        place = (table, key)
        known = self._found.get(place)
        if stored is None:
            self.forget(table, key)
            return
        if known is not None:
            if known.version > stored.version:
                return
            self.forget(table, key)
        size = _size(stored)
        if size > self._max_bytes:
            return
        while self.used_bytes + size > self._max_bytes:
            _, oldest = self._found.popitem(last=False)
            self.used_bytes -= _size(oldest)
        self._found[place] = stored
        self.used_bytes += size

    def forget(self, table: str, key: bytes) -> None:
        """Forget a key."""
        known = self._found.pop((table, key), None)
        if known is not None:
            self.used_bytes -= _size(known)


def _size(stored: Stored) -> int:
    return ENTRY_BYTES + len(stored.key) + len(stored.value)
