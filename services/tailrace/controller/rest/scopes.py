"""REST routes of scopes and reader groups (docs/protocol/rest.md#endpoints)."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import APIRouter, HTTPException, Request, Response

from tailrace.common import names
from tailrace.controller.rest import models
from tailrace.controller.rest.caller import Caller
from tailrace.rpc import controller_pb2 as pb


def scope_routes(caller_of: Callable[[Request], Caller]) -> APIRouter:
    """Routes below /v1/scopes."""
    router = APIRouter(prefix="/v1/scopes", tags=["Scopes"])

    @router.get("")
    async def list_scopes(request: Request, response: Response) -> models.ScopesList:
        call = caller_of(request)
        found = await call.scopes()
        response.headers.update(call.list_headers)
        return models.ScopesList(scopes=[models.ScopeProperty(scopeName=name) for name in found])

    @router.post("", status_code=201)
    async def create_scope(request: Request, body: models.CreateScopeRequest) -> models.ScopeProperty:
        names.check_scope_name(body.scopeName)
        answer = await caller_of(request)("createScope", pb.ScopeInfo(scope=body.scopeName), pb.CreateScopeStatus)
        if answer.status == pb.CreateScopeStatus.SCOPE_EXISTS:
            raise HTTPException(409, f"scope {body.scopeName} exists already")
        if answer.status != pb.CreateScopeStatus.SUCCESS:
            raise HTTPException(400, f"scope name {body.scopeName[:80]!r} is not valid")
        return models.ScopeProperty(scopeName=body.scopeName)

    @router.get("/{scope}")
    async def get_scope(request: Request, scope: str) -> models.ScopeProperty:
        found = await caller_of(request)("checkScopeExists", pb.ScopeInfo(scope=scope), pb.ExistsResponse)
        if not found.exists:
            raise HTTPException(404, f"scope {scope} does not exist")
        return models.ScopeProperty(scopeName=scope)

    @router.delete("/{scope}", status_code=204)
    async def delete_scope(request: Request, scope: str) -> Response:
        answer = await caller_of(request)("deleteScope", pb.ScopeInfo(scope=scope), pb.DeleteScopeStatus)
        if answer.status == pb.DeleteScopeStatus.SCOPE_NOT_FOUND:
            raise HTTPException(404, f"scope {scope} does not exist")
        if answer.status == pb.DeleteScopeStatus.SCOPE_NOT_EMPTY:
            raise HTTPException(412, f"scope {scope} is not empty")
        return Response(status_code=204)

    @router.get("/{scope}/readergroups", tags=["ReaderGroups"])
    async def list_reader_groups(request: Request, response: Response, scope: str) -> models.ReaderGroupsList:
        call = caller_of(request)
        try:
            streams = await call.streams(scope)
        except LookupError:
            raise HTTPException(404, f"scope {scope} does not exist") from None
        response.headers.update(call.list_headers)
        groups = [
            models.ReaderGroupName(readerGroupName=name.removeprefix(names.READER_GROUP_PREFIX))
            for name in streams
            if name.startswith(names.READER_GROUP_PREFIX)
        ]
        return models.ReaderGroupsList(readerGroups=groups)

    @router.delete("/{scope}/readergroups/{group}", status_code=204, tags=["ReaderGroups"])
    async def delete_reader_group(request: Request, scope: str, group: str) -> Response:
        call = caller_of(request)
        info = pb.ReaderGroupInfo(scope=scope, readerGroup=group)
        found = await call("getReaderGroupConfig", info, pb.ReaderGroupConfigResponse)
        if found.status == pb.ReaderGroupConfigResponse.SUCCESS:
            info.readerGroupId = found.config.readerGroupId
            info.generation = found.config.generation
            answer = await call("deleteReaderGroup", info, pb.DeleteReaderGroupStatus)
            if answer.status == pb.DeleteReaderGroupStatus.SUCCESS:
                return Response(status_code=204)
        raise HTTPException(404, f"reader group {scope}/{group} does not exist")

    return router
