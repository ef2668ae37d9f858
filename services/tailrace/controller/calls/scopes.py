"""Calls about scopes (docs/protocol/controller.md#scopes)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.common import limits
from tailrace.common.errors import InvalidNameError, NoSuchScopeError, NotEmptyError
from tailrace.common.names import check_scope_name
from tailrace.rpc import controller_pb2 as pb

if TYPE_CHECKING:
    from tailrace.controller.calls.call import Call, Core


class ScopeService:
    """Scopes: create, delete, list."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._scopes = core.context.scopes

    async def create_scope(self, request: pb.ScopeInfo, call: Call) -> pb.CreateScopeStatus:
        """Create a scope."""
        try:
            check_scope_name(request.scope, internal=True)
        except InvalidNameError:
            return pb.CreateScopeStatus(status=pb.CreateScopeStatus.INVALID_SCOPE_NAME)
        created = await self._scopes.create(request.scope)
        status = pb.CreateScopeStatus.SUCCESS if created else pb.CreateScopeStatus.SCOPE_EXISTS
        return pb.CreateScopeStatus(status=status)

    async def list_scopes(self, request: pb.ScopesRequest, call: Call) -> pb.ScopesResponse:
        """Return a page of scopes."""
        found, token = await self._scopes.list_scopes(limits.LIST_PAGE_ENTRIES_MAX, request.continuationToken.token)
        return pb.ScopesResponse(scopes=found, continuationToken=pb.ContinuationToken(token=token))

    async def check_scope_exists(self, request: pb.ScopeInfo, call: Call) -> pb.ExistsResponse:
        """Return whether the scope exists."""
        return pb.ExistsResponse(exists=await self._scopes.load(request.scope) is not None)

    async def delete_scope(self, request: pb.ScopeInfo, call: Call) -> pb.DeleteScopeStatus:
        """Delete an empty scope."""
        return await self._delete(request.scope, recursive=False)

    async def delete_scope_recursive(self, request: pb.ScopeInfo, call: Call) -> pb.DeleteScopeStatus:
        """Delete a scope with everything in it."""
        return await self._delete(request.scope, recursive=True)

    async def _delete(self, scope: str, *, recursive: bool) -> pb.DeleteScopeStatus:
        try:
            await self._core.scopes.delete(scope, recursive=recursive)
        except NoSuchScopeError:
            return pb.DeleteScopeStatus(status=pb.DeleteScopeStatus.SCOPE_NOT_FOUND)
        except NotEmptyError:
            return pb.DeleteScopeStatus(status=pb.DeleteScopeStatus.SCOPE_NOT_EMPTY)
        return pb.DeleteScopeStatus(status=pb.DeleteScopeStatus.SUCCESS)
