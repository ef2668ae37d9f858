"""Segment operations on the worker that serves the segment (docs/protocol/wire.md#read-commands).

Every operation locates the segment, sends its request and returns the reply. It retries within a deadline when the
segment moved, the connection ended or the worker is not ready. Where an attempt ended without a reply and the next one
finds its effect, the operation succeeds.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, TypeVar, cast

from tailrace.client.connections.pool import CONTROL_LANE
from tailrace.client.connections.replies import error_of
from tailrace.client.connections.together import first_replies
from tailrace.client.retry import Attempts, with_retries
from tailrace.client.types import (
    NO_VERSION,
    NOT_EXISTS,
    Endpoint,
    SegmentInfo,
    SegmentReadResult,
    TableDelta,
    TableEntry,
    TableKey,
)
from tailrace.common import limits
from tailrace.common.errors import (
    ConditionFailedError,
    ConnectionLostError,
    ContainerStoppedError,
    DeadlineError,
    NoSuchSegmentError,
    SegmentExistsError,
    SegmentSealedError,
    TableKeyBadVersionError,
    TableKeyNotExistsError,
    TailraceError,
    TokenExpiredError,
    UnavailableError,
    WrongHostError,
)
from tailrace.common.real_ports import SystemEntropy
from tailrace.common.task_groups import gather_bounded
from tailrace.wire import commands as c

if TYPE_CHECKING:
    import uuid

    from tailrace.client.connections.left_reads import ReadPlace
    from tailrace.client.connections.pool import RequestPool
    from tailrace.client.connections.tokens import TokenSource
    from tailrace.common.ports import Entropy

R = TypeVar("R", bound=c.Command)
Locate = Callable[[str], Awaitable[Endpoint]]

_SETTLED_S = 1.0
"""A read that waited for longer than this after it was sent had reached its server: its retry deadline starts again."""


class SegmentClient:
    """Operations on segments by full name.

    ``locate`` returns a segment's endpoint; ``forget`` drops a wrong one. All methods raise NoSuchSegmentError,
    DeadlineError, ConnectionLostError, WrongHostError, UnauthenticatedError and PermissionDeniedError beside the errors
    that they name.
    """

    def __init__(
        self,
        pool: RequestPool,
        locate: Locate,
        *,
        forget: Callable[[str], None] | None = None,
        tokens: TokenSource | None = None,
        entropy: Entropy | None = None,
        deadline_s: float = limits.CLIENT_REQUEST_DEADLINE_S,
    ) -> None:
        self.pool = pool
        self._tokens = tokens
        self._locate = locate
        self._forget = forget
        self._entropy: Entropy = entropy or SystemEntropy()
        self._deadline_s = deadline_s

    # -- requests -----------------------------------------------------------------------------------------------

    async def locate(self, segment: str) -> Endpoint:
        """Return the endpoint that serves the segment, from the cache if possible."""
        return await self._locate(segment)

    def forget(self, segment: str) -> None:
        """Drop the segment's endpoint: it does not serve the segment."""
        if self._forget is not None:
            self._forget(segment)

    async def token(self, segment: str) -> str:
        """Return the delegation token of a segment; empty for a client without credentials."""
        return "" if self._tokens is None else await self._tokens.token(segment)

    def refusal(self, segment: str, reply: c.Command) -> TailraceError:
        """Return the error of a reply. Drop the endpoint or token that it shows to be wrong."""
        error = error_of(reply)
        if isinstance(error, WrongHostError):
            self.forget(segment)
        if isinstance(error, TokenExpiredError) and self._tokens is not None:
            self._tokens.forget(segment)
        return error

    async def _once(
        self,
        segment: str,
        command: c.Command,
        reply: type[R],
        *,
        lane: str,
        deadline_s: float | None,
        sending: Callable[[], None] | None = None,
        place: ReadPlace | None = None,
    ) -> R:
        endpoint = await self._locate(segment)
        try:
            connection = await self.pool.get(endpoint, lane, place)
            if sending is not None:
                sending()
            answer = await connection.request(command, deadline_s)
        except (ConnectionLostError, DeadlineError):
            self.forget(segment)
            raise
        if isinstance(answer, reply):
            return answer
        raise self.refusal(segment, answer)

    async def _call(
        self,
        segment: str,
        make: Callable[[str], c.Command],
        reply: type[R],
        recover: Callable[[Exception], Awaitable[R | None]] | None = None,
        deadline_s: float | None = None,
    ) -> R:
        """Send a request with retries. `recover` converts an error after an uncertain attempt to a success."""

        async def attempt(attempts: Attempts) -> R:
            try:
                return await self._once(
                    segment,
                    make(await self.token(segment)),
                    reply,
                    lane=CONTROL_LANE,
                    deadline_s=limits.CLIENT_REPLY_DEADLINE_S,
                )
            except WrongHostError:
                raise
            except UnavailableError:
                attempts.uncertain = True
                raise
            except (ConditionFailedError, NoSuchSegmentError, SegmentExistsError, SegmentSealedError) as error:
                answer = await recover(error) if recover is not None and attempts.uncertain else None
                if answer is None:
                    raise
                return answer

        return await with_retries(attempt, self._entropy, self._deadline_s if deadline_s is None else deadline_s)

    # -- lifecycle ---------------------------------------------------------------------------------------------

    async def create_segment(
        self, name: str, *, scale_type: int = 0, target_rate: int = 0, rollover_bytes: int = 0
    ) -> None:
        """Create a segment; ``scale_type`` 0 none, 1 KB/s, 2 events/s. Raises SegmentExistsError."""
        await self._call(
            name,
            lambda token: c.CreateSegment(0, name, target_rate, scale_type, token, rollover_bytes),
            c.SegmentCreated,
            _when(SegmentExistsError, c.SegmentCreated(0, name)),
        )

    async def create_segments(
        self, names: Sequence[str], *, scale_type: int = 0, target_rate: int = 0, rollover_bytes: int = 0
    ) -> list[str]:
        """Create segments together; return those that existed, also by an attempt of this call without a reply."""

        def make(name: str, token: str) -> c.Command:
            return c.CreateSegment(0, name, target_rate, scale_type, token, rollover_bytes)

        attempts = Attempts(self._entropy, self._deadline_s)
        replies = await first_replies(self, names, make, attempts.ends_s)

        async def ask_again(name: str) -> None:
            try:
                replies[name] = await self._call(
                    name, lambda token: make(name, token), c.SegmentCreated, deadline_s=attempts.left_s
                )
            except SegmentExistsError:
                replies[name] = c.SegmentAlreadyExists(0, name, "")

        answered = (c.SegmentCreated, c.SegmentAlreadyExists)
        await gather_bounded([name for name in names if not isinstance(replies.get(name), answered)], ask_again)
        return [name for name in names if isinstance(replies[name], c.SegmentAlreadyExists)]

    async def update_policy(self, name: str, scale_type: int, target_rate: int) -> None:
        """Set scale type and target rate. Raises SegmentSealedError."""
        await self._call(
            name, lambda token: c.UpdateSegmentPolicy(0, name, target_rate, scale_type, token), c.SegmentPolicyUpdated
        )

    async def seal_segment(self, name: str) -> None:
        """Seal a segment. Raises SegmentSealedError when it is sealed."""
        await self._call(
            name,
            lambda token: c.SealSegment(0, name, token),
            c.SegmentSealed,
            _when(SegmentSealedError, c.SegmentSealed(0, name)),
        )

    async def truncate_segment(self, name: str, offset: int) -> None:
        """Truncate a segment. Raises SegmentTruncatedError when `offset` lies before the start or past the end."""
        await self._call(name, lambda token: c.TruncateSegment(0, name, offset, token), c.SegmentTruncated)

    async def delete_segment(self, name: str) -> None:
        """Delete a segment."""
        await self._call(
            name,
            lambda token: c.DeleteSegment(0, name, token),
            c.SegmentDeleted,
            _when(NoSuchSegmentError, c.SegmentDeleted(0, name)),
        )

    async def merge_segments(self, target: str, source: str) -> int:
        """Append the source to the target atomically and delete it; return the target's length.

        Raises:
            NoSuchSegmentError: names the missing one. SegmentSealedError: the target.
        """
        reply = await self._call(target, lambda token: c.MergeSegments(0, target, source, token), c.SegmentsMerged)
        return reply.new_target_write_offset

    async def merge_batch(self, target: str, sources: Sequence[str]) -> list[int]:
        """Merge several sources in order; missing ones count as merged. Return the target's length after each."""
        reply = await self._call(
            target, lambda token: c.MergeSegmentsBatch(0, target, list(sources), token), c.SegmentsBatchMerged
        )
        return [merged.new_target_write_offset for merged in reply.merged]

    async def segment_info(self, name: str) -> SegmentInfo:
        """Return committed properties."""
        reply = await self._call(name, lambda token: c.GetStreamSegmentInfo(0, name, token), c.StreamSegmentInfo)
        info = _info(reply)
        if info is None:
            raise NoSuchSegmentError(name)
        return info

    async def segment_infos(self, names: Sequence[str]) -> list[SegmentInfo | None]:
        """Return the committed properties of segments, which are asked for together; None for a missing one."""

        def make(name: str, token: str) -> c.Command:
            return c.GetStreamSegmentInfo(0, name, token)

        attempts = Attempts(self._entropy, self._deadline_s)
        replies = await first_replies(self, names, make, attempts.ends_s)

        async def ask_again(name: str) -> None:
            try:
                replies[name] = await self._call(
                    name, lambda token: make(name, token), c.StreamSegmentInfo, deadline_s=attempts.left_s
                )
            except NoSuchSegmentError:
                replies[name] = c.NoSuchSegment(0, name, "", -1)

        answered = (c.StreamSegmentInfo, c.NoSuchSegment)
        await gather_bounded([name for name in names if not isinstance(replies.get(name), answered)], ask_again)
        return [_info(replies[name]) for name in names]

    async def get_attribute(self, name: str, attribute_id: uuid.UUID) -> int:
        """Return the value of an attribute; NO_ATTRIBUTE when it is not set."""
        reply = await self._call(
            name, lambda token: c.GetSegmentAttribute(0, name, attribute_id.bytes, token), c.SegmentAttribute
        )
        return reply.value

    async def update_attribute(self, name: str, attribute_id: uuid.UUID, new: int, expected: int) -> bool:
        """Set an attribute if it has the expected value (NO_ATTRIBUTE: unset); return whether it had.

        After an attempt without a reply, the new value counts as success.
        """
        raw = attribute_id.bytes
        uncertain = False

        async def attempt(attempts: Attempts) -> bool:
            nonlocal uncertain
            uncertain = uncertain or attempts.uncertain
            try:
                command = c.UpdateSegmentAttribute(0, name, raw, new, expected, await self.token(name))
                reply = await self._once(
                    name,
                    command,
                    c.SegmentAttributeUpdated,
                    lane=CONTROL_LANE,
                    deadline_s=limits.CLIENT_REPLY_DEADLINE_S,
                )
            except WrongHostError:
                raise
            except UnavailableError:
                attempts.uncertain = True
                raise
            return reply.success

        success = await with_retries(attempt, self._entropy, self._deadline_s)
        return success or (uncertain and await self.get_attribute(name, attribute_id) == new)

    async def read(
        self, name: str, offset: int, max_length: int, *, timeout_s: float | None = None
    ) -> SegmentReadResult:
        """Return bytes from `offset`. At the tail of an unsealed segment, wait up to `timeout_s` for data.

        See docs/protocol/wire.md#reads. The server may return more than `max_length`: its least length, or what an
        earlier read of this place that was cancelled had asked for.

        Raises:
            SegmentTruncatedError: `offset` lies before the start. BadRequestError: beyond the end of a sealed one.
            DeadlineError: `timeout_s` passed without data.
        """
        try:
            async with asyncio.timeout(timeout_s):
                return await self._read(name, offset, max_length)
        except TimeoutError as error:
            raise DeadlineError(f"no data arrived at offset {offset} of {name} within {timeout_s:g} s") from error

    async def _read(self, name: str, offset: int, max_length: int) -> SegmentReadResult:
        loop = asyncio.get_running_loop()
        attempts = Attempts(self._entropy, self._deadline_s)
        sent_at_s = math.inf

        def sending() -> None:
            nonlocal sent_at_s
            sent_at_s = loop.time()

        while True:
            sent_at_s = math.inf  # the time of looking for its server and connecting to it does not count
            try:
                command = c.ReadSegment(name, offset, max_length, await self.token(name))
                reply = await self._once(
                    name,
                    command,
                    c.SegmentRead,
                    lane="read",
                    deadline_s=None,
                    sending=sending,
                    place=(name, offset),
                )
                if not reply.data and not reply.end_of_segment:
                    raise ContainerStoppedError(
                        f"the container of {name} is stopping"
                    )  # a stopping container ends waiting reads with this reply (docs/protocol/wire.md#failure-replies)
                return SegmentReadResult(cast("bytes", reply.data), reply.at_tail, reply.end_of_segment)
            except UnavailableError as error:
                if loop.time() - sent_at_s > _SETTLED_S:
                    attempts = Attempts(self._entropy, self._deadline_s)
                await attempts.pause(error)

    # -- tables -------------------------------------------------------------------------------------------------

    async def create_table(self, name: str, key_length: int = 0) -> None:
        """Create a table segment; `key_length` 0 is the hash layout. Raises SegmentExistsError, BadRequestError."""
        await self._call(
            name,
            lambda token: c.CreateTableSegment(0, name, token, False, key_length),
            c.SegmentCreated,
            _when(SegmentExistsError, c.SegmentCreated(0, name)),
        )

    async def delete_table(self, name: str, must_be_empty: bool = False) -> None:
        """Delete a table segment. Raises TableNotEmptyError, UnsupportedError (fixed-key layout and must be empty)."""
        await self._call(
            name,
            lambda token: c.DeleteTableSegment(0, name, must_be_empty, token),
            c.SegmentDeleted,
            _when(NoSuchSegmentError, c.SegmentDeleted(0, name)),
        )

    async def table_update(self, name: str, entries: Sequence[TableEntry]) -> list[int]:
        """Insert or update atomically, each entry under its version; return the new versions in the same order.

        After an attempt without a reply, finding the written value under every key counts as success. So values of
        conditional updates should identify their writer.

        Raises:
            TableKeyBadVersionError, TableKeyNotExistsError: a condition failed, nothing was changed. BadRequestError.
            UnavailableError: also when an attempt without a reply may have been applied and overwritten since.
        """
        outcome_unknown = False

        async def recover(_: Exception) -> c.TableEntriesUpdated | None:
            nonlocal outcome_unknown
            found = await self.table_get(name, [entry.key for entry in entries])
            if any(mine is None or mine.value != entry.value for mine, entry in zip(found, entries, strict=True)):
                outcome_unknown = True
                return None
            return c.TableEntriesUpdated(0, [entry.version for entry in found if entry is not None])

        try:
            reply = await self._call(
                name, lambda token: c.UpdateTableEntries(0, name, token, list(entries)), c.TableEntriesUpdated, recover
            )
        except (TableKeyBadVersionError, TableKeyNotExistsError) as error:
            if outcome_unknown:
                raise UnavailableError(
                    f"it is unknown whether an update without a reply was applied: {error}"
                ) from error
            raise
        return reply.versions

    async def table_remove(self, name: str, keys: Sequence[tuple[bytes, int]]) -> None:
        """Remove keys atomically, each under its version. Raises the errors of `table_update`."""
        wanted = [TableKey(key, version) for key, version in keys]
        outcome_unknown = False

        async def recover(error: Exception) -> c.TableKeysRemoved | None:
            nonlocal outcome_unknown
            outcome_unknown = not isinstance(error, TableKeyNotExistsError)
            if not outcome_unknown and len(keys) > 1:  # another client may have removed one of them
                found = await self.table_get(name, [key for key, _ in keys])
                outcome_unknown = any(entry is not None for entry in found)
            return None if outcome_unknown else c.TableKeysRemoved(0, name)

        try:
            await self._call(name, lambda token: c.RemoveTableKeys(0, name, token, wanted), c.TableKeysRemoved, recover)
        except (TableKeyBadVersionError, TableKeyNotExistsError) as error:
            if outcome_unknown:
                raise UnavailableError(
                    f"it is unknown whether a removal without a reply was applied: {error}"
                ) from error
            raise

    async def table_get(self, name: str, keys: Sequence[bytes]) -> list[TableEntry | None]:
        """Return entries in the order of the keys; None for a missing one."""
        wanted = [TableKey(key, NO_VERSION) for key in keys]
        reply = await self._call(name, lambda token: c.ReadTable(0, name, token, wanted), c.TableRead)
        return [None if entry.version == NOT_EXISTS else entry for entry in reply.entries]

    async def table_keys(
        self, name: str, limit: int, token: bytes = b"", from_key: bytes = b"", to_key: bytes = b""
    ) -> tuple[list[tuple[bytes, int]], bytes]:
        """Return about `limit` keys with versions, and the token of the next page; no keys at the end.

        The hash layout continues by token and has no ranges; the fixed-key layout continues by `from_key`
        (docs/protocol/wire.md#tables).
        """
        reply = await self._call(
            name,
            lambda delegation: c.ReadTableKeys(0, name, delegation, limit, token, b"", from_key, to_key),
            c.TableKeysRead,
        )
        return [(key.key, key.version) for key in reply.keys], reply.continuation_token

    async def table_entries(
        self, name: str, limit: int, token: bytes = b"", from_key: bytes = b"", to_key: bytes = b""
    ) -> tuple[list[TableEntry], bytes]:
        """Return a page like `table_keys`, with values."""
        reply = await self._call(
            name,
            lambda delegation: c.ReadTableEntries(0, name, delegation, limit, token, b"", from_key, to_key),
            c.TableEntriesRead,
        )
        return reply.entries, reply.continuation_token

    async def table_delta(self, name: str, position: int, limit: int) -> TableDelta:
        """Return the changes since `position` (hash layout). Raises UnsupportedError, BadRequestError."""
        reply = await self._call(
            name,
            lambda token: c.ReadTableEntriesDelta(0, name, token, position, limit),
            c.TableEntriesDeltaRead,
        )
        return TableDelta(reply.entries, reply.should_clear, reply.reached_end, reply.last_position)


def _info(reply: c.Command) -> SegmentInfo | None:
    if not isinstance(reply, c.StreamSegmentInfo) or not reply.exists or reply.is_deleted:
        return None
    return SegmentInfo(reply.segment, reply.write_offset, reply.start_offset, reply.is_sealed, reply.last_modified)


def _when(kind: type[Exception], reply: R) -> Callable[[Exception], Awaitable[R | None]]:
    """Return a recovery that takes one kind of error as success."""

    async def recover(error: Exception) -> R | None:
        return reply if isinstance(error, kind) else None

    return recover
