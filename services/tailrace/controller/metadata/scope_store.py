"""Store scopes: the table of scopes, and one table for the contents of each scope.

See docs/design.md#controller-metadata, docs/design.md#controller.

Two rules keep the tables consistent without a common transaction. An addition writes the entry first and then checks
whether the scope is being deleted. A deletion marks the scope first and then checks its entries. So one of the two
always sees the other.
"""

from __future__ import annotations

import base64
import binascii
from collections import OrderedDict
from typing import TYPE_CHECKING, Final, TypeVar

from tailrace.common import limits
from tailrace.common.errors import (
    BadRequestError,
    NoSuchScopeError,
    NoSuchSegmentError,
    NotEmptyError,
    WriteConflictError,
)
from tailrace.common.task_groups import gather_bounded
from tailrace.controller.metadata.changes import Change, R, Snapshot, change_records
from tailrace.controller.metadata.metadata_store import SCOPES_TABLE, scope_table, tag_table
from tailrace.controller.metadata.ports import NOT_EXISTS, MetadataStore, Put, Stored
from tailrace.controller.metadata.reading import readable
from tailrace.controller.metadata.records import Record, ScopeRecord, ScopeStreamEntry, decode, encode

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from tailrace.common.ports import Clock, Entropy

T = TypeVar("T")

STREAMS: Final = "s/"
READER_GROUPS: Final = "g/"
TABLES: Final = "k/"
NONCE_BYTES: Final = 8


class ScopeStore:
    """Store all scopes and the lists of their contents."""

    def __init__(self, metadata: MetadataStore, clock: Clock, entropy: Entropy) -> None:
        self._metadata = metadata
        self._clock = clock
        self._entropy = entropy
        self._recent: OrderedDict[str, ScopeRecord] = OrderedDict()  # as they were read last
        self._marks = 0
        """How often scopes were marked here as being deleted; a read that began before is not remembered."""

    # -- scopes

    async def load(self, scope: str) -> ScopeRecord | None:
        """Return the scope's record; None when the scope does not exist or is being deleted."""
        record = await self._read(scope)
        return None if record is None or record.deleting else record

    async def require(self, scope: str) -> ScopeRecord:
        """Return the scope's record. Raises NoSuchScopeError."""
        record = await self.load(scope)
        if record is None:
            raise NoSuchScopeError(f"scope {scope} does not exist")
        return record

    async def presume(self, scope: str) -> None:
        """Check that the scope exists, by what this controller read last of it. Raises NoSuchScopeError.

        It may have been deleted since: who relies on this looks for it again. It is read before it is refused.
        """
        if await self.remembered(scope) is None:
            raise NoSuchScopeError(f"scope {scope} does not exist")

    async def remembered(self, scope: str) -> ScopeRecord | None:
        """Return the scope's record as this controller read it last; it is read when none is remembered.

        Other controllers may have changed it since. This one forgets a scope that it marks as being deleted. So the
        only controller of a cluster sees each deletion here before that deletion looks for entries.
        """
        known = self._recent.get(scope)
        return await self.load(scope) if known is None or known.deleting else known

    async def create(self, scope: str) -> bool:
        """Create the scope; return False when it exists or is being deleted."""
        mine = ScopeRecord(self._entropy.token(NONCE_BYTES), self._clock.now_ms())

        def decide(snapshot: Snapshot) -> Change[ScopeRecord]:
            existing = snapshot.get(ScopeRecord, scope.encode())
            return Change(mine, {scope.encode(): mine}) if existing is None else Change(existing)

        stored = await change_records(self._metadata, self._entropy, SCOPES_TABLE, [scope.encode()], decide)
        if stored.nonce == mine.nonce:
            await self._metadata.create_table(scope_table(scope, mine.nonce))
        return stored.nonce == mine.nonce

    async def mark_deleting(self, scope: str, nonce: bytes, *, recursive: bool) -> ScopeRecord:
        """Mark the scope of that nonce as being deleted, so that it takes no new entries. Raises NoSuchScopeError."""

        def decide(snapshot: Snapshot) -> Change[ScopeRecord]:
            record = snapshot.get(ScopeRecord, scope.encode())
            if record is None or record.nonce != nonce:
                raise NoSuchScopeError(f"scope {scope} does not exist")
            marked = ScopeRecord(record.nonce, record.created_ms, True, recursive or record.recursive)
            return Change(marked, {} if marked == record else {scope.encode(): marked})

        try:
            return await change_records(self._metadata, self._entropy, SCOPES_TABLE, [scope.encode()], decide)
        finally:  # what was read before is forgotten
            self._marks += 1
            self._recent.pop(scope, None)

    async def unmark(self, scope: str, nonce: bytes) -> None:
        """Cancel a deletion that found the scope of that nonce in use. A recursive deletion is not cancelled."""

        def decide(snapshot: Snapshot) -> Change[None]:
            record = snapshot.get(ScopeRecord, scope.encode())
            if record is None or record.nonce != nonce or not record.deleting or record.recursive:
                return Change(None)
            return Change(None, {scope.encode(): ScopeRecord(record.nonce, record.created_ms)})

        await change_records(self._metadata, self._entropy, SCOPES_TABLE, [scope.encode()], decide)

    async def deletion(self, scope: str) -> ScopeRecord | None:
        """Return the record of a scope that is being deleted."""
        record = await self._read(scope)
        return record if record is not None and record.deleting else None

    async def delete(self, scope: str, nonce: bytes) -> None:
        """Remove an empty scope that is marked. Succeeds when it was removed before.

        Raises:
            NotEmptyError: the scope has contents, or had some when another controller cancelled the deletion.
            WriteConflictError: another controller changed its record.
        """
        found = (await self._metadata.get(SCOPES_TABLE, [scope.encode()]))[0]
        record = None if found is None else decode(ScopeRecord, found.value, f"{SCOPES_TABLE}[{scope}]")
        if found is not None and record is not None and record.nonce == nonce:
            if not record.deleting or not await self.is_empty(scope, record):
                raise NotEmptyError(f"scope {scope} is not empty")
            # under its version: another controller may have finished, and the scope may exist again
            await self._metadata.remove(SCOPES_TABLE, [(scope.encode(), found.version)])
        await self._metadata.delete_table(tag_table(scope, nonce))
        await self._metadata.delete_table(scope_table(scope, nonce))

    async def is_empty(self, scope: str, record: ScopeRecord) -> bool:
        """Return whether the scope lists nothing."""
        found, _ = await self._entries(scope, record, 1, b"")
        return not found

    async def list_scopes(self, limit: int, token: str) -> tuple[list[str], str]:
        """Return a page of scope names, and the token of the next page; an empty page at the end.

        A scope whose record cannot be read is listed, too.
        """

        async def page(count: int, raw: bytes) -> tuple[list[Stored], bytes]:
            return await self._metadata.entries(SCOPES_TABLE, count, raw)

        return await _list(page, limit, token, _scope_name)

    # -- contents of a scope

    async def add(self, scope: str, name: str, record: Record) -> None:
        """Add an entry to the scope. Adding it again changes nothing.

        Raises:
            NoSuchScopeError: the scope does not exist, or is being deleted and does not list the entry yet.
        """
        owner = await self.require_existing(scope)
        key = name.encode()
        if (await self._get(scope, owner, key)) is not None:
            return
        if owner.deleting:
            raise NoSuchScopeError(f"scope {scope} is being deleted")
        try:
            version = await self.put_entry(scope, owner, name, record, NOT_EXISTS)
        except WriteConflictError:
            return  # added by another run of the same workflow
        now = await self._read(scope)
        if now is None or now.nonce != owner.nonce or now.deleting:
            await self.remove_entry(scope, owner.nonce, name, version)
            raise NoSuchScopeError(f"scope {scope} is being deleted")

    async def entry(self, scope: str, name: str, kind: type[R]) -> tuple[ScopeRecord, R | None, int]:
        """Return the scope, its entry of that name, and the entry's version. Raises NoSuchScopeError."""
        owner = await self.require_existing(scope)
        found = await self._get(scope, owner, name.encode())
        if found is None:
            return owner, None, NOT_EXISTS
        return owner, decode(kind, found.value, f"scope {scope}[{name}]"), found.version

    async def put_entry(self, scope: str, owner: ScopeRecord, name: str, record: Record, version: int) -> int:
        """Write an entry under the version read; return the new version. Raises WriteConflictError."""
        entry = Put(name.encode(), encode(record), version)
        return (await self._metadata.put(scope_table(scope, owner.nonce), [entry]))[0]

    async def put_new(self, scope: str, owner: ScopeRecord, records: Mapping[str, Record]) -> list[int]:
        """Write entries of which none exists yet, all or none; return their versions. Raises WriteConflictError."""
        entries = [Put(name.encode(), encode(record), NOT_EXISTS) for name, record in records.items()]
        return await self._metadata.put(scope_table(scope, owner.nonce), entries)

    async def remove_entry(self, scope: str, nonce: bytes, name: str, version: int) -> bool:
        """Remove an entry under the version read; return False when its version differs. A missing scope is fine."""
        try:
            await self._metadata.remove(scope_table(scope, nonce), [(name.encode(), version)])
        except WriteConflictError:
            return False
        except NoSuchSegmentError:
            return True
        return True

    async def remove_exactly(self, scope: str, name: str, record: Record) -> None:
        """Remove an entry if it equals that record. Another entry of the name stays."""
        try:
            owner, found, version = await self.entry(scope, name, type(record))
        except NoSuchScopeError:
            return
        if found == record:
            await self.remove_entry(scope, owner.nonce, name, version)

    async def require_existing(self, scope: str) -> ScopeRecord:
        """Return the record of a scope, also while it is being deleted. Raises NoSuchScopeError."""
        record = await self._read(scope)
        if record is None:
            raise NoSuchScopeError(f"scope {scope} does not exist")
        return record

    async def latest(self, scope: str) -> ScopeRecord:
        """Return the record of a scope as this controller read it last. Raises NoSuchScopeError.

        After an entry was written by it, the present one must be read: the scope may have been deleted.
        """
        return self._recent.get(scope) or await self.require_existing(scope)

    async def get(self, scope: str, name: str, kind: type[R]) -> R | None:
        """Return the entry of that name; None when the entry or the scope does not exist."""
        owner = await self._read(scope)
        found = None if owner is None else await self._get(scope, owner, name.encode())
        return None if found is None else decode(kind, found.value, f"scope {scope}[{name}]")

    async def change(self, scope: str, name: str, decide: Callable[[Snapshot, bytes], Change[T]]) -> T:
        """Change one entry with `decide(snapshot, key)`. Raises NoSuchScopeError and the errors of `decide`."""
        owner = await self.require_existing(scope)
        key = name.encode()
        await self._get(scope, owner, key)  # creates the table when its creation was interrupted
        return await change_records(
            self._metadata,
            self._entropy,
            scope_table(scope, owner.nonce),
            [key],
            lambda snapshot: decide(snapshot, key),
        )

    async def list_names(self, scope: str, prefix: str, limit: int, token: str, tag: str = "") -> tuple[list[str], str]:
        """Return a page of names of one kind, of streams optionally those with a tag, and the token of the next page.

        An empty page is the end. A stream whose entry cannot be read is left out of those with a tag.

        Raises NoSuchScopeError, BadRequestError (token).
        """
        owner = await self.require_existing(scope)

        async def page(count: int, raw: bytes) -> tuple[list[Stored], bytes]:
            return await self._entries(scope, owner, count, raw)

        def name_of(entry: Stored) -> str | None:
            name = entry.key.decode()
            if not name.startswith(prefix):
                return None
            if tag:
                record = readable(ScopeStreamEntry, f"scope {scope}", entry)
                if record is None or tag not in record.tags:
                    return None
            return name.removeprefix(prefix)

        return await _list(page, limit, token, name_of)

    async def tags(self, scope: str, owner: ScopeRecord, streams: Sequence[str]) -> dict[str, tuple[str, ...] | None]:
        """Return the tags of streams by their entries in the scope; those that it does not list have none.

        None are the tags of a stream whose entry cannot be read: it may have any.
        """
        table = scope_table(scope, owner.nonce)
        keys = [(STREAMS + stream).encode() for stream in streams]

        async def read(part: Sequence[bytes]) -> list[Stored | None]:
            return await self._metadata.get(table, part)

        size = limits.TAG_ENTRIES_PER_BATCH_MAX
        try:
            parts = await gather_bounded([keys[start : start + size] for start in range(0, len(keys), size)], read)
        except NoSuchSegmentError:
            return dict.fromkeys(streams, ())  # the scope is gone, or has never listed anything
        found = [entry for part in parts for entry in part]
        tags: dict[str, tuple[str, ...] | None] = {}
        for stream, entry in zip(streams, found, strict=True):
            record = None if entry is None else readable(ScopeStreamEntry, f"scope {scope}", entry)
            tags[stream] = () if entry is None else None if record is None else record.tags
        return tags

    async def tagged(self, scope: str, owner: ScopeRecord, token: bytes) -> tuple[list[tuple[str, str]], bytes | None]:
        """Return the pairs of tag and stream in some entries of the scope, and where to go on; None: all were read.

        Entries that cannot be read are left out, as they are of lists by tag.
        """
        found, following = await self._entries(scope, owner, limits.METADATA_TABLE_PAGE_ENTRIES, token)
        pairs: list[tuple[str, str]] = []
        for entry in found:
            name = entry.key.decode()
            if name.startswith(STREAMS):
                record = readable(ScopeStreamEntry, f"scope {scope}", entry)
                pairs += [(tag, name.removeprefix(STREAMS)) for tag in (record.tags if record is not None else ())]
        return pairs, following if found else None

    async def list_all(self, scope: str, prefix: str, limit: int = limits.REST_PAGE_ENTRIES_MAX) -> list[str]:
        """Return every name of one kind, sorted, at most `limit`."""
        names: list[str] = []
        token = ""
        while len(names) < limit:
            page, token = await self.list_names(scope, prefix, limits.LIST_PAGE_ENTRIES_MAX, token)
            if not page:
                break
            names.extend(page)
        return sorted(names)[:limit]

    # -- tables and tokens

    async def _read(self, scope: str) -> ScopeRecord | None:
        marks = self._marks
        found = (await self._metadata.get(SCOPES_TABLE, [scope.encode()]))[0]
        self._recent.pop(scope, None)
        if found is None:
            return None
        record = decode(ScopeRecord, found.value, f"{SCOPES_TABLE}[{scope}]")
        if marks != self._marks:
            return record
        self._recent[scope] = record
        if len(self._recent) > limits.SCOPES_REMEMBERED_MAX:
            self._recent.popitem(last=False)
        return record

    async def _get(self, scope: str, owner: ScopeRecord, key: bytes) -> Stored | None:
        table = scope_table(scope, owner.nonce)
        try:
            return (await self._metadata.get(table, [key]))[0]
        except NoSuchSegmentError:
            await self._make_table(scope, owner)
            return None

    async def _entries(self, scope: str, owner: ScopeRecord, limit: int, token: bytes) -> tuple[list[Stored], bytes]:
        try:
            return await self._metadata.entries(scope_table(scope, owner.nonce), limit, token)
        except NoSuchSegmentError:
            await self._make_table(scope, owner)
            return [], token

    async def _make_table(self, scope: str, owner: ScopeRecord) -> None:
        """Create the table of a scope whose creation was interrupted after its record."""
        current = await self._read(scope)
        if current is None or current.nonce != owner.nonce:
            raise NoSuchScopeError(f"scope {scope} does not exist")
        await self._metadata.create_table(scope_table(scope, owner.nonce))


def _scope_name(entry: Stored) -> str | None:
    record = readable(ScopeRecord, SCOPES_TABLE, entry)
    return None if record is not None and record.deleting and record.recursive else entry.key.decode()


async def _list(
    page: Callable[[int, bytes], Awaitable[tuple[list[Stored], bytes]]],
    limit: int,
    token: str,
    name_of: Callable[[Stored], str | None],
) -> tuple[list[str], str]:
    raw = decode_token(token)
    while True:
        entries, raw = await page(limit, raw)
        names = [name for name in map(name_of, entries) if name is not None]
        if names or not entries:
            return names, encode_token(raw)


def encode_token(raw: bytes) -> str:
    """Return a table's continuation token as text for clients, never empty (``listStreamsInScope``).

    See docs/protocol/controller.md#calls.
    """
    return "." + base64.urlsafe_b64encode(raw).decode()


def decode_token(token: str) -> bytes:
    """Return the table's token of a client's token; "" is the beginning. Raises BadRequestError."""
    if not token:
        return b""
    try:
        return base64.b64decode(token.removeprefix(".").encode("ascii"), altchars=b"-_", validate=True)
    except (binascii.Error, UnicodeEncodeError) as error:
        raise BadRequestError("continuationToken is not a token of this controller") from error
