"""Call the controller with the credentials of a REST request."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

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


class Caller:
    """Call the controller with the credentials of one REST request."""

    def __init__(self, services: ControllerServices, request: Request) -> None:
        peer = f"{request.client.host}:{request.client.port}" if request.client is not None else ""
        self._call = Call(Principal(peer), request.headers.get("authorization", ""))
        self._services = services

    async def __call__(self, rpc: str, message: Message, answer: type[M]) -> M:
        """Make one call. Raises TailraceError."""
        found = await self._services.call(rpc, message, self._call)
        assert isinstance(found, answer)
        return found

    async def scopes(self) -> list[str]:
        """Return every scope, sorted."""
        names: list[str] = []
        token = pb.ContinuationToken()
        while len(names) < limits.REST_PAGE_ENTRIES_MAX:
            page = await self("listScopes", pb.ScopesRequest(continuationToken=token), pb.ScopesResponse)
            if not page.scopes:
                break
            names.extend(page.scopes)
            token = page.continuationToken
        return sorted(names)

    async def streams(self, scope: str, tag: str = "") -> list[str]:
        """Return every stream of a scope, sorted. Raises LookupError when the scope does not exist."""
        names: list[str] = []
        async for page in self._pages(scope, tag):
            names.extend(info.stream for info in page.streams)
            if len(names) >= limits.REST_PAGE_ENTRIES_MAX:
                break
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
