"""List the streams of a scope that have a tag: by the index where it can be trusted, else by a look at all streams.

See docs/controller.md#lists-by-tag, ADR 0035.

Controllers of earlier versions do not keep the index. So a controller trusts the index of a scope only after it has
looked through the scope once since such a controller may have lived, and has added what was missing.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import TYPE_CHECKING

import structlog

from tailrace.common import limits
from tailrace.common.call_deadline import without_deadline
from tailrace.common.errors import TailraceError
from tailrace.controller.metadata.scope_store import STREAMS
from tailrace.controller.metadata.tag_index import TOKEN_PREFIX

if TYPE_CHECKING:
    from tailrace.controller.instances.membership import Membership
    from tailrace.controller.metadata.records import ScopeRecord
    from tailrace.controller.workflows.context import WorkflowContext

_LOG = structlog.get_logger(__name__)


class TagLists:
    """Lists by tag, and the tasks that check the indexes of scopes."""

    def __init__(self, context: WorkflowContext, membership: Membership) -> None:
        self._scopes = context.scopes
        self._tags = context.tags
        self._membership = membership
        self._trusted: OrderedDict[tuple[str, bytes], int] = OrderedDict()
        """By scope and nonce: what `Membership.since_earlier` was before the index was checked."""
        self._checks: dict[tuple[str, bytes], asyncio.Task[None]] = {}
        self._closed = False

    async def page(self, scope: str, tag: str, limit: int, token: str) -> tuple[list[str], str]:
        """Return a page of the streams with a tag, and the token of the next page; an empty page is the end.

        An iteration stays with the index, or with the scope's table, where it began: the token says which.

        Raises:
            NoSuchScopeError. BadRequestError: the token is none of a controller.
        """
        owner = await self._scopes.require_existing(scope)
        if token.startswith(TOKEN_PREFIX) or (not token and self._is_trusted(scope, owner)):
            return await self._tags.page(scope, owner, tag, limit, token)
        return await self._scopes.list_names(scope, STREAMS, limit, token, tag)

    async def close(self) -> None:
        """Stop the checks; a list by tag begins them again."""
        self._closed = True
        tasks = list(self._checks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _is_trusted(self, scope: str, owner: ScopeRecord) -> bool:
        """Return whether the index of the scope has all streams; begin a check when that is unknown."""
        place, since = (scope, owner.nonce), self._membership.since_earlier
        if since is None:
            return False
        if self._trusted.get(place) == since:
            self._trusted.move_to_end(place)
            return True
        has_room = len(self._checks) < limits.TAG_INDEX_CHECKS_CONCURRENT_MAX
        if place not in self._checks and has_room and not self._closed:
            work = self._check(scope, owner, since)
            self._checks[place] = asyncio.get_running_loop().create_task(work, name=f"tags of {scope}")
        return False

    async def _check(self, scope: str, owner: ScopeRecord, since: int) -> None:
        """Add to a scope's index what it lacks, then trust it. A failure is logged: the next list begins again."""
        without_deadline()  # of the call that brought the work
        place = (scope, owner.nonce)
        try:
            added = await self._complete(scope, owner)
        except Exception as error:  # any error: lists look at all streams meanwhile
            known = isinstance(error, TailraceError | TimeoutError)
            reason = f"{type(error).__name__}: {error}"
            _LOG.warning("tags_not_checked", scope=scope, reason=reason, exc_info=not known)
        else:
            if added:
                _LOG.info("tags_indexed", scope=scope, added=added)
            self._trusted[place] = since
            self._trusted.move_to_end(place)
            if len(self._trusted) > limits.TAG_INDEXES_TRUSTED_MAX:
                self._trusted.popitem(last=False)
        finally:
            del self._checks[place]

    async def _complete(self, scope: str, owner: ScopeRecord) -> int:
        """Index all tags of a scope's streams; return how many entries were missing."""
        added, token = 0, b""
        while True:
            async with asyncio.timeout(limits.WORKFLOW_STEP_DEADLINE_S):
                pairs, following = await self._scopes.tagged(scope, owner, token)
                lacking = await self._tags.missing(scope, owner, pairs)
                await self._tags.put(scope, owner, lacking)
            added += len(lacking)
            if following is None:
                return added
            token = following
