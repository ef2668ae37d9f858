"""Dispatch calls of the controller by name, for gRPC, REST, tests and the simulator."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from google.protobuf.message import Message

from tailrace.common.auth import Account, Authorize, account_nothing, allow_all
from tailrace.common.call_deadline import call_deadline
from tailrace.common.errors import GRPC_INTERNAL, TailraceError
from tailrace.controller.calls.access import access_of
from tailrace.controller.calls.call import LOCAL_CALL, Call, Core
from tailrace.controller.calls.groups import ReaderGroupService
from tailrace.controller.calls.history import HistoryService
from tailrace.controller.calls.owners import OwnerService
from tailrace.controller.calls.scopes import ScopeService
from tailrace.controller.calls.segments import SegmentService
from tailrace.controller.calls.statistics import CANCELLED, OK, CallStatistics
from tailrace.controller.calls.streams import StreamService
from tailrace.controller.calls.tables import KeyValueTableService
from tailrace.controller.calls.transactions import TransactionService, WriterService
from tailrace.rpc import controller_pb2, operator_pb2

if TYPE_CHECKING:
    from google.protobuf.descriptor import MethodDescriptor

SERVICE: Final = controller_pb2.DESCRIPTOR.services_by_name["ControllerService"]
SERVICES: Final = (SERVICE, operator_pb2.DESCRIPTOR.services_by_name["OperatorService"])
"""The service of Pravega clients and that of the operator. Their calls have different names."""

Method = Callable[[Any, Call], Awaitable[Message]]


class ControllerServices:
    """Answer calls by name: ``await services.call("createScope", request)`` raises kinds of TailraceError."""

    def __init__(self, core: Core, authorize: Authorize = allow_all, account: Account = account_nothing) -> None:
        self.core = core
        self.statistics = CallStatistics()
        self.scopes = ScopeService(core)
        self.streams = StreamService(core)
        self.segments = SegmentService(core)
        self.transactions = TransactionService(core)
        self.writers = WriterService(core)
        self.groups = ReaderGroupService(core)
        self.tables = KeyValueTableService(core)
        self.owners = OwnerService(core)
        self.history = HistoryService(core)
        self._authorize = authorize
        self._account = account
        areas = (
            self.scopes,
            self.streams,
            self.segments,
            self.transactions,
            self.writers,
            self.groups,
            self.tables,
            self.owners,
            self.history,
        )
        self._methods = {method.name: _find(areas, method) for service in SERVICES for method in service.methods}

    async def call(self, rpc: str, request: Message, call: Call = LOCAL_CALL) -> Message:
        """Answer one call. Raises TailraceError."""
        loop = asyncio.get_running_loop()
        began_s, code = loop.time(), GRPC_INTERNAL
        try:
            answer = await self._call(rpc, request, call)
            code = OK
        except TailraceError as error:
            code = error.grpc_code
            raise
        except asyncio.CancelledError:
            code = CANCELLED
            raise
        finally:
            self.statistics.note(rpc, code, loop.time() - began_s)
        return answer

    async def _call(self, rpc: str, request: Message, call: Call) -> Message:
        access = access_of(rpc, request)
        if access is not None:
            self._authorize(call.principal, call.token, access.resource, access.level)
            self._account(access.scope, 0, 1)
        with call_deadline(self.core.context.config.requests_deadline_s):
            return await self._methods[rpc](request, call)


def _find(areas: tuple[object, ...], descriptor: MethodDescriptor) -> Method:
    """Return the method of a call: its name in snake case, in the one area that has it."""
    name = re.sub(r"(?<=[a-z])([A-Z]+)", lambda match: "_" + match[1].lower(), descriptor.name)
    found: list[Method] = [getattr(area, name) for area in areas if hasattr(area, name)]
    if len(found) != 1:
        raise LookupError(f"{len(found)} methods for the call {descriptor.name}")
    return found[0]
