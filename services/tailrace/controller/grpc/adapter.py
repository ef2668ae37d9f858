"""Pass gRPC requests to the controller's calls and return errors as gRPC statuses.

See docs/protocol/controller.md#errors.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import grpc
import structlog
from google.protobuf import message_factory
from google.protobuf.message import DecodeError

from tailrace.client.control.transport import ERROR_NAME_KEY
from tailrace.common import limits
from tailrace.common.auth import Principal
from tailrace.common.errors import (
    GRPC_INTERNAL,
    AnswerTooLargeError,
    BadRequestError,
    TailraceError,
    UnavailableError,
)
from tailrace.controller.calls.call import Call
from tailrace.controller.calls.services import SERVICES, ControllerServices
from tailrace.controller.grpc.large_requests import LargeRequests

if TYPE_CHECKING:
    from google.protobuf.descriptor import ServiceDescriptor
    from google.protobuf.message import Message

    from tailrace.cluster.endpoints import ListenerKind

_LOG = structlog.get_logger(__name__)
_CODES: Final = {code.value[0]: code for code in grpc.StatusCode}
_Handler = Callable[[bytes, "grpc.aio.ServicerContext[Any, Any]"], Awaitable[bytes]]


class _Running:
    """The calls of one listener that have begun and not ended, at most ``most``."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._count = 0

    def __enter__(self) -> None:
        if self._count >= self._most:
            raise UnavailableError(f"{self._most} calls are running, which is the limit; try again")
        self._count += 1

    def __exit__(self, *error: object) -> None:
        self._count -= 1


class _Bounds(NamedTuple):
    running: _Running
    large: LargeRequests


def generic_handlers(
    services: ControllerServices, listener: ListenerKind, calls_max: int
) -> tuple[grpc.GenericRpcHandler[Any, Any], ...]:
    """Return the handlers that a grpc.aio server registers for one kind of listener."""
    bounds = _Bounds(_Running(calls_max), LargeRequests())
    return tuple(_generic_handler(services, service, listener, bounds) for service in SERVICES)


def _generic_handler(
    services: ControllerServices, service: ServiceDescriptor, listener: ListenerKind, bounds: _Bounds
) -> grpc.GenericRpcHandler[Any, Any]:
    handlers = {}
    for method in service.methods:
        request_class = message_factory.GetMessageClass(method.input_type)
        handlers[method.name] = grpc.unary_unary_rpc_method_handler(
            _handler(services, method.name, request_class, listener, bounds)
        )
    return grpc.method_handlers_generic_handler(service.full_name, handlers)


def _handler(
    services: ControllerServices, rpc: str, request_class: type[Message], listener: ListenerKind, bounds: _Bounds
) -> _Handler:
    async def handle(encoded: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> bytes:
        try:
            with bounds.running:
                async with bounds.large.room(len(encoded)):
                    answer = await services.call(rpc, _decoded(request_class, encoded), _call_of(context, listener))
                    return _encoded(answer)
        except TailraceError as error:
            code, text = _CODES[error.grpc_code], str(error)
            # Our client needs the error's name behind the status UNKNOWN; other clients ignore it
            # (docs/protocol/controller.md#endpoint).
            context.set_trailing_metadata(((ERROR_NAME_KEY, type(error).__name__),))
        except asyncio.CancelledError:
            raise
        except Exception as error:  # a bug: the log has the traceback
            _LOG.exception("call failed", rpc=rpc)
            code, text = _CODES[GRPC_INTERNAL], f"internal error in the controller: {type(error).__name__}; see its log"
        await context.abort(code, text)
        raise AssertionError("abort always raises")

    return handle


def _decoded(request_class: type[Message], encoded: bytes) -> Message:
    try:
        return request_class.FromString(encoded)
    except DecodeError as error:
        raise BadRequestError(f"the request is no {request_class.DESCRIPTOR.name}") from error


def _encoded(answer: Message) -> bytes:
    """Return the bytes of an answer. Without the check gRPC breaks the call off, and the client asks again."""
    encoded = answer.SerializeToString()
    if len(encoded) > limits.RPC_MESSAGE_MAX_BYTES:
        raise AnswerTooLargeError(
            f"the answer ({answer.DESCRIPTOR.name}) has {len(encoded)} bytes,"
            f" at most {limits.RPC_MESSAGE_MAX_BYTES} are allowed"
        )
    return encoded


def _call_of(context: grpc.aio.ServicerContext[Any, Any], listener: ListenerKind) -> Call:
    token = ""
    for key, value in context.invocation_metadata() or ():
        if key == "authorization":
            token = value if isinstance(value, str) else value.decode("latin-1")
    return Call(Principal(context.peer()), token, listener)
