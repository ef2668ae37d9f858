"""Find the streams of a scope by tag: one table with sorted keys beside the table that lists the scope's contents.

See docs/controller.md#lists-by-tag, ADR 0035.

A stream's entry in its scope decides which tags it has; an entry here only finds it. Two rules keep every stream that
has a tag in the index, whatever is cut short, repeated or late:

- A step writes the stream's entry in its scope first, and then one here for each of its tags. It writes those again
  also when they are there.
- What is removed here is removed under the version that was read before the stream's entry was found without the tag.
  A later step that gives the stream the tag has written another version.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from typing import TYPE_CHECKING, Final

import structlog

from tailrace.common import limits
from tailrace.common.errors import (
    BadRequestError,
    NoSuchScopeError,
    NoSuchSegmentError,
    TailraceError,
    WriteConflictError,
)
from tailrace.controller.metadata.metadata_store import tag_table
from tailrace.controller.metadata.ports import UNCONDITIONAL, Put
from tailrace.controller.metadata.reading import readable
from tailrace.controller.metadata.records import TaggedStream, encode
from tailrace.controller.metadata.scope_store import NONCE_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from tailrace.common.ports import Entropy
    from tailrace.controller.metadata.ports import MetadataStore, Stored
    from tailrace.controller.metadata.records import ScopeRecord
    from tailrace.controller.metadata.scope_store import ScopeStore

_LOG = structlog.get_logger(__name__)

HASH_BYTES: Final = 16
KEY_BYTES: Final = 2 * HASH_BYTES
TOKEN_PREFIX: Final = "t."
"""Of continuation tokens of this index. Those of lists that read the scope's table begin with a dot."""
_LAST: Final = b"\xff" * HASH_BYTES


def index_key(tag: str, stream: str) -> bytes:
    """Return the key of a stream under a tag: those of one tag follow each other."""
    return _hash(tag) + _hash(stream)


class TagIndex:
    """The index of tags of every scope. `owner` is the record of the scope that a caller has read."""

    def __init__(self, metadata: MetadataStore, scopes: ScopeStore, entropy: Entropy) -> None:
        self._metadata = metadata
        self._scopes = scopes
        self._entropy = entropy

    async def put(self, scope: str, owner: ScopeRecord, pairs: Iterable[tuple[str, str]]) -> None:
        """Write an entry for each pair of tag and stream, again where there is one. A scope that is gone is fine."""
        table = tag_table(scope, owner.nonce)
        for part in _parts(list(pairs)):
            entries = [
                Put(index_key(tag, stream), encode(TaggedStream(tag, stream, self._nonce())), UNCONDITIONAL)
                for tag, stream in part
            ]
            try:
                await self._metadata.put(table, entries)
            except NoSuchSegmentError:
                if not await self._make_table(scope, owner):
                    return
                await self._metadata.put(table, entries)

    async def drop(self, scope: str, owner: ScopeRecord, pairs: Iterable[tuple[str, str]]) -> None:
        """Remove the entries of pairs of tag and stream, but for streams that have the tag.

        Raises:
            WriteConflictError: other controllers write the same entries again and again.
        """
        table = tag_table(scope, owner.nonce)
        for part in _parts(list(pairs)):
            for _ in range(limits.METADATA_CONFLICTS_MAX):
                try:
                    if await self._drop(table, scope, owner, part):
                        break
                except NoSuchSegmentError:
                    return
            else:
                raise WriteConflictError(f"{table}: {limits.METADATA_CONFLICTS_MAX} changes of its entries in a row")

    async def page(self, scope: str, owner: ScopeRecord, tag: str, limit: int, token: str) -> tuple[list[str], str]:
        """Return a page of the streams that have a tag, and the token of the next page; an empty page is the end.

        Raises BadRequestError (token).
        """
        table, prefix = tag_table(scope, owner.nonce), _hash(tag)
        after = _decode_token(token)
        while True:
            first = bytes(HASH_BYTES) if after is None else _following(after)
            if first is None:
                return [], token
            try:
                found = await self._metadata.span(table, prefix + first, prefix + _LAST, limit)
            except NoSuchSegmentError:
                found = []
            if not found:
                return [], token or _encode_token(bytes(HASH_BYTES))
            after = found[-1].key[HASH_BYTES:]
            streams = await self._having(scope, owner, tag, table, found)
            if streams:
                return streams, _encode_token(after)

    async def missing(self, scope: str, owner: ScopeRecord, pairs: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
        """Return the pairs of tag and stream that the index does not have."""
        table, lacking = tag_table(scope, owner.nonce), []
        for part in _parts(pairs):
            try:
                found = await self._metadata.get(table, [index_key(*pair) for pair in part])
            except NoSuchSegmentError:
                found = [None] * len(part)
            lacking += [pair for pair, stored in zip(part, found, strict=True) if stored is None]
        return lacking

    # -- steps

    def _nonce(self) -> bytes:
        return self._entropy.token(NONCE_BYTES)

    async def _drop(self, table: str, scope: str, owner: ScopeRecord, pairs: Sequence[tuple[str, str]]) -> bool:
        """Remove once; return False when another controller has written one of the entries meanwhile."""
        stored = await self._metadata.get(table, [index_key(*pair) for pair in pairs])
        present = {pair: found for pair, found in zip(pairs, stored, strict=True) if found is not None}
        stale = await self._without_tag(scope, owner, present)
        if not stale:
            return True
        try:
            await self._metadata.remove(table, [(present[pair].key, present[pair].version) for pair in stale])
        except WriteConflictError:
            return False
        # A controller of an earlier version gives a stream its tag without a new entry here.
        kept = set(await self._without_tag(scope, owner, stale))
        await self.put(scope, owner, [pair for pair in stale if pair not in kept])
        return True

    async def _without_tag(
        self, scope: str, owner: ScopeRecord, pairs: Iterable[tuple[str, str]]
    ) -> list[tuple[str, str]]:
        """Return the pairs of tag and stream of which the stream does not have the tag; what cannot be read may."""
        wanted = list(pairs)
        tags = await self._scopes.tags(scope, owner, list(dict.fromkeys(stream for _, stream in wanted)))
        return [(tag, stream) for tag, stream in wanted if (its := tags[stream]) is not None and tag not in its]

    async def _having(self, scope: str, owner: ScopeRecord, tag: str, table: str, found: Sequence[Stored]) -> list[str]:
        """Return the streams of index entries that have the tag; remove the entries of the others."""
        records = [readable(TaggedStream, table, entry) for entry in found]
        streams = [record.stream for record in records if record is not None and record.tag == tag]
        tags = await self._scopes.tags(scope, owner, streams)
        stale = [(tag, stream) for stream in streams if (its := tags[stream]) is not None and tag not in its]
        try:
            await self.drop(scope, owner, stale)
        except TailraceError as error:  # they are not in this answer either; the next one tries again
            _LOG.warning("stale_tags_stay", scope=scope, count=len(stale), reason=f"{type(error).__name__}: {error}")
        return [stream for stream in streams if tag in (tags[stream] or ())]

    async def _make_table(self, scope: str, owner: ScopeRecord) -> bool:
        """Create a scope's index at its first tag; return False when the scope is gone."""
        table = tag_table(scope, owner.nonce)
        await self._metadata.create_table(table, KEY_BYTES)
        try:
            now = await self._scopes.require_existing(scope)
        except NoSuchScopeError:
            now = None
        if now is None or now.nonce != owner.nonce:
            await self._metadata.delete_table(table)
            return False
        return True


def _hash(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=HASH_BYTES).digest()


def _parts(pairs: Sequence[tuple[str, str]]) -> Iterator[Sequence[tuple[str, str]]]:
    for start in range(0, len(pairs), limits.TAG_ENTRIES_PER_BATCH_MAX):
        yield pairs[start : start + limits.TAG_ENTRIES_PER_BATCH_MAX]


def _following(key: bytes) -> bytes | None:
    """Return the key after this one; None when it is the last one."""
    return None if key == _LAST else (int.from_bytes(key, "big") + 1).to_bytes(len(key), "big")


def _encode_token(after: bytes) -> str:
    return TOKEN_PREFIX + base64.urlsafe_b64encode(after).decode()


def _decode_token(token: str) -> bytes | None:
    """Return the hash of the last stream that was returned; None at the beginning."""
    if not token:
        return None
    try:
        after = base64.b64decode(token.removeprefix(TOKEN_PREFIX).encode("ascii"), altchars=b"-_", validate=True)
    except (binascii.Error, UnicodeEncodeError) as error:
        raise BadRequestError("continuationToken is not a token of this controller") from error
    if len(after) != HASH_BYTES:
        raise BadRequestError("continuationToken is not a token of this controller")
    return after
