"""REST details of one reader group, decoded from its state (docs/protocol/rest.md#endpoints).

The state is in a segment, not in the controller's records. The client reads it, through calls of the same process that
carry the credentials of the request.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

from fastapi import APIRouter, HTTPException, Request

from tailrace.client.context import ClientContext
from tailrace.client.group.report import find_view, report
from tailrace.common import limits
from tailrace.common.errors import InvalidNameError, NoSuchReaderGroupError
from tailrace.common.names import check_entity_name, check_scope_name
from tailrace.controller.rest import models

if TYPE_CHECKING:
    from collections.abc import Callable

    from google.protobuf.message import Message

    from tailrace.client.group.report import GroupReport
    from tailrace.client.group.view import GroupView
    from tailrace.common.stream_cut import StreamCut
    from tailrace.controller.rest.caller import Caller

M = TypeVar("M", bound="Message")


class _InProcess:
    """Carry a client's calls to the controller of the same process; satisfies ``ControllerTransport``."""

    def __init__(self, call: Caller) -> None:
        self._call = call

    async def call(self, method: str, request: Message, reply: type[M], deadline_s: float) -> M:
        async with asyncio.timeout(deadline_s):
            return await self._call(method, request, reply)

    async def close(self) -> None:
        return


def group_routes(caller_of: Callable[[Request], Caller]) -> APIRouter:
    """Return the route of one reader group."""
    router = APIRouter(prefix="/v1/scopes", tags=["ReaderGroups"])
    reports = asyncio.Semaphore(limits.REST_GROUP_REPORTS_MAX)

    @router.get("/{scope}/readergroups/{group}")
    async def get_reader_group(request: Request, scope: str, group: str) -> models.ReaderGroupProperty:
        try:
            check_scope_name(scope, internal=True)
            check_entity_name("reader group", group)
            async with asyncio.timeout(limits.REST_GROUP_REPORT_DEADLINE_S), reports:
                return await _describe(caller_of(request), scope, group)
        except (NoSuchReaderGroupError, InvalidNameError):
            raise HTTPException(404, f"reader group {scope}/{group} does not exist") from None
        except TimeoutError:
            seconds = limits.REST_GROUP_REPORT_DEADLINE_S
            raise HTTPException(503, f"reader group {scope}/{group} could not be looked at in {seconds:g} s") from None

    return router


async def _describe(call: Caller, scope: str, group: str) -> models.ReaderGroupProperty:
    context = ClientContext(_InProcess(call))
    try:
        view = await find_view(context, scope, group)
        return _property(scope, group, view, await report(context, f"{scope}/{group}", view))
    finally:
        await context.close()


def _property(scope: str, group: str, view: GroupView, found: GroupReport) -> models.ReaderGroupProperty:
    return models.ReaderGroupProperty(
        scopeName=scope,
        readerGroupName=group,
        streamList=[str(stream.stream) for stream in found.streams],
        onlineReaderIds=[reader.reader for reader in found.readers],
        readerGroupId=str(view.group_id) if view.group_id else None,
        generation=view.generation,
        retentionType=view.retention.name,
        lagBytes=found.unread_bytes,
        lagSecondsLeast=found.lag.least_s,
        lagSecondsMost=found.lag.most_s,
        streams=[
            models.GroupStream(
                streamName=str(stream.stream),
                lagBytes=stream.unread_bytes,
                lagSecondsLeast=stream.lag.least_s,
                lagSecondsMost=stream.lag.most_s,
                position=_offsets(stream.position),
                lastCheckpoint=_offsets(stream.checkpoint),
                published=_offsets(stream.published),
            )
            for stream in found.streams
        ],
        readers=[
            models.GroupReader(
                readerId=reader.reader,
                segments=dict(reader.segments),
                lagBytes=reader.unread_bytes,
                deadAfterSeconds=reader.dead_after_s,
            )
            for reader in found.readers
        ],
        unassignedSegments=dict(found.free),
        waitingSegments=found.waiting,
    )


def _offsets(cut: StreamCut | None) -> dict[str, int] | None:
    """Return a cut as offsets by the number of a segment; None for none."""
    return None if cut is None else {str(each): offset for each, offset in sorted(cut.positions.items())}
