"""Scopes: the table of scopes, and one table for what is in each (design §7, §10).

Cross-table rules keep lists honest without a common transaction. Whoever adds to a scope adds its entry first and
then looks whether the scope is being deleted; whoever deletes a scope marks it first and then looks what is in it. So
one of the two always sees the other.
"""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, Final, TypeVar

from tailrace.common import limits
from tailrace.common.errors import (
    BadRequestError,
    NoSuchScopeError,
    NoSuchSegmentError,
    NotEmptyError,
    WriteConflictError,
)
from tailrace.controller.metadata.metadata_store import SCOPES_TABLE, scope_table
from tailrace.controller.metadata.ports import NOT_EXISTS, UNCONDITIONAL, MetadataStore, Put, Stored
from tailrace.controller.metadata.records import Record, ScopeRecord, ScopeStreamEntry, decode, encode
from tailrace.controller.metadata.stream_store import Change, R, Snapshot, change_records

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tailrace.common.ports import Clock, Entropy

T = TypeVar("T")

STREAMS: Final = "s/"
READER_GROUPS: Final = "g/"
TABLES: Final = "k/"
NONCE_BYTES: Final = 8


class ScopeStore:
    """All scopes, and the lists of what they hold."""

    def __init__(self, metadata: MetadataStore, clock: Clock, entropy: Entropy) -> None:
        self._metadata = metadata
        self._clock = clock
        self._entropy = entropy

    # -- scopes themselves

    async def load(self, scope: str) -> ScopeRecord | None:
        """The scope's record; None when there is no such scope, or none that takes anything new."""
        record = await self._read(scope)
        return None if record is None or record.deleting else record

    async def require(self, scope: str) -> ScopeRecord:
        """The scope's record. Raises NoSuchScopeError."""
        record = await self.load(scope)
        if record is None:
            raise NoSuchScopeError(f"scope {scope} does not exist")
        return record

    async def create(self, scope: str) -> bool:
        """Create the scope; False when it exists (or is still being deleted)."""
        mine = ScopeRecord(self._entropy.token(NONCE_BYTES), self._clock.now_ms())

        def decide(snapshot: Snapshot) -> Change[ScopeRecord]:
            existing = snapshot.get(ScopeRecord, scope.encode())
            return Change(mine, {scope.encode(): mine}) if existing is None else Change(existing)

        stored = await change_records(self._metadata, self._entropy, SCOPES_TABLE, [scope.encode()], decide)
        if stored.nonce == mine.nonce:
            await self._metadata.create_table(scope_table(scope, mine.nonce))
        return stored.nonce == mine.nonce

    async def mark_deleting(self, scope: str, nonce: bytes, *, recursive: bool) -> ScopeRecord:
        """Take nothing new into the scope of that nonce from now on. Raises NoSuchScopeError."""

        def decide(snapshot: Snapshot) -> Change[ScopeRecord]:
            record = snapshot.get(ScopeRecord, scope.encode())
            if record is None or record.nonce != nonce:
                raise NoSuchScopeError(f"scope {scope} does not exist")
            marked = ScopeRecord(record.nonce, record.created_ms, True, recursive or record.recursive)
            return Change(marked, {} if marked == record else {scope.encode(): marked})

        return await change_records(self._metadata, self._entropy, SCOPES_TABLE, [scope.encode()], decide)

    async def unmark(self, scope: str) -> None:
        """Let the scope live on after a deletion that found it in use; a recursive one is not taken back."""

        def decide(snapshot: Snapshot) -> Change[None]:
            record = snapshot.get(ScopeRecord, scope.encode())
            if record is None or not record.deleting or record.recursive:
                return Change(None)
            return Change(None, {scope.encode(): ScopeRecord(record.nonce, record.created_ms)})

        await change_records(self._metadata, self._entropy, SCOPES_TABLE, [scope.encode()], decide)

    async def deletion(self, scope: str) -> ScopeRecord | None:
        """The record of a scope that is being deleted."""
        record = await self._read(scope)
        return record if record is not None and record.deleting else None

    async def delete(self, scope: str, nonce: bytes) -> None:
        """Remove an empty scope that is marked; done already is fine.

        Raises:
            NotEmptyError: something is in it. WriteConflictError: another controller changed its record.
        """
        found = (await self._metadata.get(SCOPES_TABLE, [scope.encode()]))[0]
        record = None if found is None else decode(ScopeRecord, found.value, f"{SCOPES_TABLE}[{scope}]")
        if found is not None and record is not None and record.nonce == nonce:
            if not await self.is_empty(scope, record):
                raise NotEmptyError(f"scope {scope} is not empty")
            # under its version: another controller may be done with it, and the scope may have been created again
            await self._metadata.remove(SCOPES_TABLE, [(scope.encode(), found.version)])
        await self._metadata.delete_table(scope_table(scope, nonce))

    async def is_empty(self, scope: str, record: ScopeRecord) -> bool:
        """Whether nothing is listed in the scope."""
        found, _ = await self._entries(scope, record, 1, b"")
        return not found

    async def list_scopes(self, limit: int, token: str) -> tuple[list[str], str]:
        """A page of scope names, and the token to go on with; an empty page is the end."""

        async def page(count: int, raw: bytes) -> tuple[list[Stored], bytes]:
            return await self._metadata.entries(SCOPES_TABLE, count, raw)

        return await _list(page, limit, token, _scope_name)

    # -- what is in a scope

    async def add(self, scope: str, name: str, record: Record) -> None:
        """List something in the scope; adding it again changes nothing.

        Raises:
            NoSuchScopeError: there is no such scope, or it is being deleted and this is not listed yet.
        """
        owner = await self.require_existing(scope)
        key = name.encode()
        if (await self._get(scope, owner, key)) is not None:
            return
        if owner.deleting:
            raise NoSuchScopeError(f"scope {scope} is being deleted")
        try:
            await self._put(scope, owner, Put(key, encode(record), NOT_EXISTS))
        except WriteConflictError:
            return  # added by another run of the same workflow
        now = await self._read(scope)
        if now is None or now.nonce != owner.nonce or now.deleting:
            await self.remove(scope, name)
            raise NoSuchScopeError(f"scope {scope} is being deleted")

    async def entry(self, scope: str, name: str, kind: type[R]) -> tuple[ScopeRecord, R | None, int]:
        """The scope, the entry of that name, and the version to write it under. Raises NoSuchScopeError."""
        owner = await self.require_existing(scope)
        found = await self._get(scope, owner, name.encode())
        if found is None:
            return owner, None, NOT_EXISTS
        return owner, decode(kind, found.value, f"scope {scope}[{name}]"), found.version

    async def put_entry(self, scope: str, owner: ScopeRecord, name: str, record: Record, version: int) -> int:
        """Write an entry under the version read; returns the new one. Raises WriteConflictError."""
        entry = Put(name.encode(), encode(record), version)
        return (await self._metadata.put(scope_table(scope, owner.nonce), [entry]))[0]

    async def remove_entry(self, scope: str, nonce: bytes, name: str, version: int) -> bool:
        """Remove an entry under the version read; False when it has another one. A scope that is gone is fine."""
        try:
            await self._metadata.remove(scope_table(scope, nonce), [(name.encode(), version)])
        except WriteConflictError:
            return False
        except NoSuchSegmentError:
            return True
        return True

    async def remove_exactly(self, scope: str, name: str, record: Record) -> None:
        """Take something off the list if its entry is that record; anything else of the name stays."""
        try:
            owner, found, version = await self.entry(scope, name, type(record))
        except NoSuchScopeError:
            return
        if found == record:
            await self.remove_entry(scope, owner.nonce, name, version)

    async def require_existing(self, scope: str) -> ScopeRecord:
        """The record of a scope, also while it is being deleted. Raises NoSuchScopeError."""
        record = await self._read(scope)
        if record is None:
            raise NoSuchScopeError(f"scope {scope} does not exist")
        return record

    async def remove(self, scope: str, name: str) -> None:
        """Take something off the list; missing is fine."""
        owner = await self._read(scope)
        if owner is None:
            return
        try:
            await self._metadata.remove(scope_table(scope, owner.nonce), [(name.encode(), UNCONDITIONAL)])
        except NoSuchSegmentError:
            return

    async def get(self, scope: str, name: str, kind: type[R]) -> R | None:
        """The entry of that name; None when it, or the scope, is missing."""
        owner = await self._read(scope)
        found = None if owner is None else await self._get(scope, owner, name.encode())
        return None if found is None else decode(kind, found.value, f"scope {scope}[{name}]")

    async def change(self, scope: str, name: str, decide: Callable[[Snapshot, bytes], Change[T]]) -> T:
        """Change one entry as `decide(snapshot, key)` says. Raises NoSuchScopeError, and whatever `decide` raises."""
        owner = await self.require_existing(scope)
        key = name.encode()
        await self._get(scope, owner, key)  # makes the table where its creation was cut short
        return await change_records(
            self._metadata,
            self._entropy,
            scope_table(scope, owner.nonce),
            [key],
            lambda snapshot: decide(snapshot, key),
        )

    async def list_names(self, scope: str, prefix: str, limit: int, token: str, tag: str = "") -> tuple[list[str], str]:
        """A page of names of one kind, with the tag if one is given (streams only), and the token to go on with.

        An empty page is the end. Raises NoSuchScopeError, BadRequestError (token).
        """
        owner = await self.require_existing(scope)

        async def page(count: int, raw: bytes) -> tuple[list[Stored], bytes]:
            return await self._entries(scope, owner, count, raw)

        def name_of(entry: Stored) -> str | None:
            name = entry.key.decode()
            if not name.startswith(prefix):
                return None
            if tag and tag not in decode(ScopeStreamEntry, entry.value, f"scope {scope}[{name}]").tags:
                return None
            return name.removeprefix(prefix)

        return await _list(page, limit, token, name_of)

    async def list_all(self, scope: str, prefix: str, limit: int = limits.REST_PAGE_ENTRIES_MAX) -> list[str]:
        """Every name of one kind, sorted, at most `limit`."""
        names: list[str] = []
        token = ""
        while len(names) < limit:
            page, token = await self.list_names(scope, prefix, limits.LIST_PAGE_ENTRIES_MAX, token)
            if not page:
                break
            names.extend(page)
        return sorted(names)[:limit]

    # -- plumbing

    async def _read(self, scope: str) -> ScopeRecord | None:
        found = (await self._metadata.get(SCOPES_TABLE, [scope.encode()]))[0]
        return None if found is None else decode(ScopeRecord, found.value, f"{SCOPES_TABLE}[{scope}]")

    async def _get(self, scope: str, owner: ScopeRecord, key: bytes) -> Stored | None:
        table = scope_table(scope, owner.nonce)
        try:
            return (await self._metadata.get(table, [key]))[0]
        except NoSuchSegmentError:
            await self._make_table(scope, owner)
            return None

    async def _put(self, scope: str, owner: ScopeRecord, entry: Put) -> None:
        await self._metadata.put(scope_table(scope, owner.nonce), [entry])

    async def _entries(self, scope: str, owner: ScopeRecord, limit: int, token: bytes) -> tuple[list[Stored], bytes]:
        try:
            return await self._metadata.entries(scope_table(scope, owner.nonce), limit, token)
        except NoSuchSegmentError:
            await self._make_table(scope, owner)
            return [], token

    async def _make_table(self, scope: str, owner: ScopeRecord) -> None:
        """Make the table of a scope whose creation ended between its record and its table."""
        current = await self._read(scope)
        if current is None or current.nonce != owner.nonce:
            raise NoSuchScopeError(f"scope {scope} does not exist")
        await self._metadata.create_table(scope_table(scope, owner.nonce))


def _scope_name(entry: Stored) -> str | None:
    record = decode(ScopeRecord, entry.value, f"{SCOPES_TABLE}[{entry.key!r}]")
    return None if record.deleting and record.recursive else entry.key.decode()


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
    """A table's continuation token as text for clients, never empty (controller §4, ``listStreamsInScope``)."""
    return "." + base64.urlsafe_b64encode(raw).decode()


def decode_token(token: str) -> bytes:
    """The table's token of a client's; "" is the beginning. Raises BadRequestError."""
    if not token:
        return b""
    try:
        return base64.b64decode(token.removeprefix(".").encode("ascii"), altchars=b"-_", validate=True)
    except (binascii.Error, UnicodeEncodeError) as error:
        raise BadRequestError("continuationToken is not one that was given out") from error
