"""Blocking forms of what several processes share: key-value tables and revisioned streams."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from tailrace.client.blocking.portal import next_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tailrace.client.blocking.portal import Portal
    from tailrace.client.revisioned import Entry, RevisionedStream
    from tailrace.client.tables import KeyValueTable, TableKeyParts, TableValue


class BlockingTable:
    """The blocking form of `KeyValueTable`."""

    def __init__(self, portal: Portal, table: KeyValueTable) -> None:
        self.scope = table.scope
        self.table = table.table
        self._run = portal.run
        self._table = table

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def put(self, key: TableKeyParts, value: bytes, *, version: int | None = None) -> int:
        """Insert or update an entry; return the new version."""
        return self._run(self._table.put(key, value, version=version))

    def put_all(self, entries: Sequence[tuple[TableKeyParts, bytes, int | None]]) -> list[int]:
        """Insert or update entries of one primary key atomically; return the new versions in order."""
        return self._run(self._table.put_all(entries))

    def insert(self, key: TableKeyParts, value: bytes) -> int:
        """Insert an entry if the key is absent; return its version. Raises TableKeyBadVersionError if it is there."""
        return self._run(self._table.insert(key, value))

    def get(self, key: TableKeyParts) -> TableValue | None:
        """Return the entry of a key."""
        return self._run(self._table.get(key))

    def remove(self, key: TableKeyParts, *, version: int | None = None) -> None:
        """Remove an entry."""
        self._run(self._table.remove(key, version=version))

    def entries(self, primary: bytes | None = None) -> Iterator[TableValue]:
        """Yield entries in order of key."""
        source = self._table.entries(primary)
        while (entry := self._run(next_of(source))) is not None:
            yield entry


class BlockingRevisionedStream:
    """The blocking form of `RevisionedStream`."""

    def __init__(self, portal: Portal, stream: RevisionedStream) -> None:
        self.segment = stream.segment
        self._run = portal.run
        self._stream = stream

    def latest(self) -> int:
        """Return the revision after the last record."""
        return self._run(self._stream.latest())

    def oldest(self) -> int:
        """Return the revision before the first record."""
        return self._run(self._stream.oldest())

    def read_from(self, revision: int, max_entries: int | None = None) -> list[Entry]:
        """Return the records after `revision` up to the present end, or the first `max_entries` of them."""
        return self._run(self._stream.read_from(revision, max_entries))

    def write_conditionally(self, revision: int, payload: bytes) -> int | None:
        """Write a record if `revision` is the latest; return the new revision, or None when it is not."""
        return self._run(self._stream.write_conditionally(revision, payload))

    def write_unconditionally(self, payload: bytes) -> None:
        """Append a record unconditionally."""
        self._run(self._stream.write_unconditionally(payload))

    def mark(self) -> int | None:
        """Return the revision where the marked record begins; None without a mark."""
        return self._run(self._stream.mark())

    def compare_and_set_mark(self, expected: int | None, new: int) -> bool:
        """Move the mark if it has the expected value; return whether it had."""
        return self._run(self._stream.compare_and_set_mark(expected, new))

    def truncate(self, revision: int) -> None:
        """Truncate at `revision`. A revision that is truncated already is fine."""
        self._run(self._stream.truncate(revision))
