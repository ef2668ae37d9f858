"""REST routes of streams (docs/protocol/rest.md#endpoints)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import structlog
from fastapi import APIRouter, HTTPException, Query, Request, Response

from tailrace.common import names
from tailrace.common.errors import CorruptionError, FormatVersionError, NoSuchStreamError
from tailrace.common.logs import LimitedLog
from tailrace.controller.calls.services import ControllerServices
from tailrace.controller.rest import models
from tailrace.controller.rest.caller import Caller
from tailrace.controller.rest.convert import config_message, stream_property
from tailrace.controller.rest.scaling import scaling_events
from tailrace.rpc import controller_pb2 as pb

_LOG = structlog.get_logger(__name__)
_PREFIX = "/v1/scopes/{scope}/streams"


def stream_routes(caller_of: Callable[[Request], Caller], services: ControllerServices) -> APIRouter:
    """Routes below /v1/scopes/{scope}/streams."""
    router = APIRouter(prefix=_PREFIX, tags=["Streams"])
    _add_collection(router, caller_of)
    _add_item(router, caller_of)
    _add_changes(router, caller_of, services)
    return router


async def _properties(call: Caller, scope: str, stream: str) -> models.StreamProperty:
    info = pb.StreamInfo(scope=scope, stream=stream)
    return stream_property(await call("getStreamConfiguration", info, pb.StreamConfig))


def _add_collection(router: APIRouter, caller_of: Callable[[Request], Caller]) -> None:
    log = LimitedLog(_LOG)

    @router.get("")
    async def list_streams(
        request: Request, response: Response, scope: str, filter_type: str = "", filter_value: str = ""
    ) -> models.StreamsList:
        call = caller_of(request)
        by_tag = filter_type == "tag"
        if by_tag and not filter_value:
            raise HTTPException(400, "filter_value is missing: give the tag to search for")
        try:
            found = await call.streams(scope, filter_value if by_tag else "")
        except LookupError:
            raise HTTPException(404, f"scope {scope} does not exist") from None
        response.headers.update(call.list_headers)
        internal = filter_type == "showInternalStreams"
        listed = []
        for name in found:
            if name.startswith("_") == internal:
                try:
                    listed.append(await _properties(call, scope, name))
                except NoSuchStreamError:
                    continue  # deleted since it was listed, or not created yet
                except (CorruptionError, FormatVersionError) as error:  # the stream's own calls say so
                    log.warning("stream_left_out_of_list", stream=f"{scope}/{name}", reason=str(error))
        return models.StreamsList(streams=listed)

    @router.post("", status_code=201)
    async def create_stream(request: Request, scope: str, body: models.CreateStreamRequest) -> models.StreamProperty:
        names.check_stream_name(body.streamName)
        call = caller_of(request)
        config = config_message(scope, body.streamName, body, with_maximum=True)
        answer = await call("createStream", config, pb.CreateStreamStatus)
        if answer.status == pb.CreateStreamStatus.STREAM_EXISTS:
            raise HTTPException(409, f"stream {scope}/{body.streamName} exists already")
        if answer.status == pb.CreateStreamStatus.SCOPE_NOT_FOUND:
            raise HTTPException(404, f"scope {scope} does not exist")
        if answer.status != pb.CreateStreamStatus.SUCCESS:
            raise HTTPException(400, f"stream name {body.streamName[:80]!r} is not valid")
        return await _properties(call, scope, body.streamName)


def _add_item(router: APIRouter, caller_of: Callable[[Request], Caller]) -> None:
    @router.get("/{stream}")
    async def get_stream(request: Request, scope: str, stream: str) -> models.StreamProperty:
        return await _properties(caller_of(request), scope, stream)

    @router.put("/{stream}")
    async def update_stream(
        request: Request, scope: str, stream: str, body: models.UpdateStreamRequest
    ) -> models.StreamProperty:
        names.check_stream_name(stream)
        call = caller_of(request)
        config = config_message(scope, stream, body, with_maximum=False)
        _check_update(await call("updateStream", config, pb.UpdateStreamStatus), scope, stream)
        return await _properties(call, scope, stream)

    @router.delete("/{stream}", status_code=204)
    async def delete_stream(request: Request, scope: str, stream: str) -> Response:
        names.check_stream_name(stream)
        info = pb.StreamInfo(scope=scope, stream=stream)
        answer = await caller_of(request)("deleteStream", info, pb.DeleteStreamStatus)
        if answer.status == pb.DeleteStreamStatus.STREAM_NOT_FOUND:
            raise HTTPException(404, f"stream {scope}/{stream} does not exist")
        if answer.status == pb.DeleteStreamStatus.STREAM_NOT_SEALED:
            raise HTTPException(412, f"stream {scope}/{stream} is not sealed")
        return Response(status_code=204)


def _add_changes(router: APIRouter, caller_of: Callable[[Request], Caller], services: ControllerServices) -> None:
    @router.put("/{stream}/state")
    async def set_state(
        request: Request, scope: str, stream: str, body: models.StreamStateModel
    ) -> models.StreamStateModel:
        names.check_stream_name(stream)
        if body.streamState != "SEALED":
            raise HTTPException(400, f"streamState is {body.streamState[:80]!r}, only SEALED is allowed")
        info = pb.StreamInfo(scope=scope, stream=stream)
        answer = await caller_of(request)("sealStream", info, pb.UpdateStreamStatus)
        _check_update(answer, scope, stream)
        return body

    @router.get("/{stream}/scaling-events", response_model=list[models.ScaleMetadata])
    async def get_scaling_events(
        request: Request,
        scope: str,
        stream: str,
        since_ms: Annotated[int | None, Query(alias="from")] = None,
        until_ms: Annotated[int | None, Query(alias="to")] = None,
    ) -> Response:
        if since_ms is None or until_ms is None:
            raise HTTPException(400, "from and to are required, in milliseconds since 1970")
        if since_ms < 0 or until_ms < since_ms:
            raise HTTPException(400, "from and to must satisfy 0 <= from <= to")
        await caller_of(request)("getStreamConfiguration", pb.StreamInfo(scope=scope, stream=stream), pb.StreamConfig)
        events = await scaling_events(services.core, scope, stream, since_ms, until_ms)
        return Response(events, media_type="application/json")


def _check_update(answer: pb.UpdateStreamStatus, scope: str, stream: str) -> None:
    status = pb.UpdateStreamStatus
    if answer.status in (status.STREAM_NOT_FOUND, status.SCOPE_NOT_FOUND):
        raise HTTPException(404, f"stream {scope}/{stream} does not exist")
    if answer.status == status.STREAM_SEALED:
        raise HTTPException(500, f"stream {scope}/{stream} is sealed")
    if answer.status != status.SUCCESS:
        raise HTTPException(500, f"stream {scope}/{stream} is busy with another change; retry")
