"""Call the controller with the credentials of a REST request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

from tailrace.common import limits
from tailrace.common.auth import Principal
from tailrace.controller.calls.call import Call

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from fastapi import Request
    from google.protobuf.message import Message

    from tailrace.controller.calls.services import ControllerServices

from tailrace.rpc import controller_pb2 as pb

M = TypeVar("M", bound="Message")

_CUT_HEADER: Final = "Tailrace-List-Cut"
"""How many names were listed, where there are more (docs/protocol/rest.md#endpoints)."""


class Caller:
    """Call the controller with the credentials of one REST request."""

    def __init__(self, services: ControllerServices, request: Request) -> None:
        peer = f"{request.client.host}:{request.client.port}" if request.client is not None else ""
        self._call = Call(Principal(peer), request.headers.get("authorization", ""))
        self._services = services
        self._list_is_cut = False

    @property
    def list_headers(self) -> dict[str, str]:
        """Return the headers of an answer that has the list last returned, which say whether it was cut."""
        return {_CUT_HEADER: str(limits.REST_PAGE_ENTRIES_MAX)} if self._list_is_cut else {}

    async def __call__(self, rpc: str, message: Message, answer: type[M]) -> M:
        """Make one call. Raises TailraceError."""
        found = await self._services.call(rpc, message, self._call)
        assert isinstance(found, answer)
        return found

    async def scopes(self) -> list[str]:
        """Return every scope, sorted; of too many the first ones (`list_headers`)."""
        names: list[str] = []
        token = pb.ContinuationToken()
        while True:
            page = await self("listScopes", pb.ScopesRequest(continuationToken=token), pb.ScopesResponse)
            if not page.scopes:
                break
            self._list_is_cut = len(names) >= limits.REST_PAGE_ENTRIES_MAX
            if self._list_is_cut:
                break
            names.extend(page.scopes)
            token = page.continuationToken
        return sorted(names)

    async def streams(self, scope: str, tag: str = "") -> list[str]:
        """Return every stream of a scope, sorted; of too many the first ones (`list_headers`).

        Raises LookupError when the scope does not exist.
        """
        names: list[str] = []
        async for page in self._pages(scope, tag):
            self._list_is_cut = len(names) >= limits.REST_PAGE_ENTRIES_MAX
            if self._list_is_cut:
                break
            names.extend(info.stream for info in page.streams)
        return sorted(names)

    async def _pages(self, scope: str, tag: str) -> AsyncIterator[pb.StreamsInScopeResponse]:
        info, token = pb.ScopeInfo(scope=scope), pb.ContinuationToken()
        while True:
            if tag:
                page = await self(
                    "listStreamsInScopeForTag",
                    pb.StreamsInScopeWithTagRequest(scope=info, tag=tag, continuationToken=token),
                    pb.StreamsInScopeResponse,
                )
            else:
                request = pb.StreamsInScopeRequest(scope=info, continuationToken=token)
                page = await self("listStreamsInScope", request, pb.StreamsInScopeResponse)
            if page.status != pb.StreamsInScopeResponse.SUCCESS:
                raise LookupError(scope)
            if not page.streams:
                return
            yield page
            token = page.continuationToken
