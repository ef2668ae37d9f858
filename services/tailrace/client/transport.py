"""How calls reach the controller: gRPC, or any function that answers them (design §10, the simulator)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar
from urllib.parse import urlsplit

import grpc
import grpc.aio

from tailrace.common import errors, limits
from tailrace.common.errors import BadRequestError, TailraceError, UnavailableError
from tailrace.rpc import controller_pb2 as pb

if TYPE_CHECKING:
    from google.protobuf.message import Message

M = TypeVar("M", bound="Message")
SERVICE: Final = pb.DESCRIPTOR.services_by_name["ControllerService"].full_name

_PLAIN_SCHEMES: Final = ("tcp", "pravega")
_TLS_SCHEMES: Final = ("tls", "ssl", "tcps", "pravegas")
_ERRORS: Final[dict[int, type[TailraceError]]] = {
    errors.GRPC_INVALID_ARGUMENT: BadRequestError,
    errors.GRPC_DEADLINE_EXCEEDED: errors.DeadlineError,
    errors.GRPC_NOT_FOUND: errors.NotFoundError,
    errors.GRPC_ALREADY_EXISTS: errors.AlreadyExistsError,
    errors.GRPC_PERMISSION_DENIED: errors.PermissionDeniedError,
    errors.GRPC_RESOURCE_EXHAUSTED: errors.OverloadedError,
    errors.GRPC_FAILED_PRECONDITION: errors.WriteConflictError,
    errors.GRPC_UNIMPLEMENTED: errors.UnsupportedError,
    errors.GRPC_INTERNAL: errors.IllegalStateError,
    errors.GRPC_UNAVAILABLE: UnavailableError,
    errors.GRPC_DATA_LOSS: errors.DataError,
    errors.GRPC_UNAUTHENTICATED: errors.UnauthenticatedError,
    errors.GRPC_UNKNOWN: BadRequestError,  # what argument errors arrive as (controller §3)
}


class ControllerTransport(Protocol):
    """Carries one call to a controller. Raises errors of the one tree."""

    async def call(self, method: str, request: Message, reply: type[M], deadline_s: float) -> M:
        """Make one attempt."""
        ...

    async def close(self) -> None:
        """Release connections."""
        ...


class LocalTransport:
    """Calls a function in the same process (standalone, simulator)."""

    def __init__(self, handle: Callable[[str, Any], Awaitable[Any]]) -> None:
        self._handle = handle

    async def call(self, method: str, request: Message, reply: type[M], deadline_s: float) -> M:
        """Pass the request on; the handler raises errors of the one tree itself."""
        answer = await self._handle(method, request)
        assert isinstance(answer, reply)
        return answer

    async def close(self) -> None:
        """Nothing to release."""


class GrpcTransport:
    """gRPC over the network; with several addresses, the next one is tried when one cannot be reached."""

    def __init__(self, uri: str, *, authorization: str | None = None, tls_root: bytes | None = None) -> None:
        self._targets, self._tls = parse_controller_uri(uri)
        self._metadata = (("authorization", authorization),) if authorization else ()
        self._tls_root = tls_root
        self._channels: dict[str, grpc.aio.Channel] = {}

    def _channel(self, target: str) -> grpc.aio.Channel:
        channel = self._channels.get(target)
        if channel is None:
            options = [
                ("grpc.max_receive_message_length", limits.CLIENT_CONTROLLER_MESSAGE_MAX_BYTES),
                ("grpc.enable_http_proxy", 0),
                ("grpc.initial_reconnect_backoff_ms", int(limits.CLIENT_BACKOFF_INITIAL_S * 1000)),
                ("grpc.min_reconnect_backoff_ms", int(limits.CLIENT_BACKOFF_INITIAL_S * 1000)),
                ("grpc.max_reconnect_backoff_ms", int(limits.CLIENT_BACKOFF_MAX_S * 1000)),
            ]
            if self._tls:
                credentials = grpc.ssl_channel_credentials(self._tls_root)
                channel = grpc.aio.secure_channel(target, credentials, options=options)
            else:
                channel = grpc.aio.insecure_channel(target, options=options)
            self._channels[target] = channel
        return channel

    async def wait_ready(self, deadline_s: float) -> bool:
        """Connect, and wait until gRPC (with TLS: TLS, too) is spoken at one of the addresses; False when it is not."""
        waiting = [asyncio.ensure_future(self._channel(target).channel_ready()) for target in self._targets]
        try:
            done, _ = await asyncio.wait(waiting, timeout=deadline_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.wait(waiting)
        return bool(done)

    async def call(self, method: str, request: Message, reply: type[M], deadline_s: float) -> M:
        """One attempt on the address that worked last."""
        target = self._targets[0]
        stub = self._channel(target).unary_unary(
            f"/{SERVICE}/{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=reply.FromString,
        )
        try:
            answer: M = await stub(request, timeout=deadline_s, metadata=self._metadata)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                self._targets.append(self._targets.pop(0))
            raise error_of_status(error.code().value[0], error.details() or "", target) from error
        return answer

    async def close(self) -> None:
        """Close the channels."""
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            await channel.close(grace=None)


def error_of_status(code: int, details: str, target: str) -> TailraceError:
    """The error that a gRPC status stands for (controller §3)."""
    kind = _ERRORS.get(code, UnavailableError)
    if code == errors.GRPC_UNAVAILABLE:
        return kind(f"controller {target} is not available: {details}")
    return kind(details or f"controller {target} answered with gRPC status {code}")


def parse_controller_uri(uri: str) -> tuple[list[str], bool]:
    """Addresses and whether TLS is used, of ``tcp://h:p[,h:p]``, ``tls://…`` or ``h:p`` (controller §1).

    Raises:
        BadRequestError: another scheme, or an address without a port.
    """
    scheme, separator, rest = uri.partition("://")
    if not separator:
        scheme, rest = "tcp", uri
    if scheme not in _PLAIN_SCHEMES + _TLS_SCHEMES:
        raise BadRequestError(f"controller address {uri!r} has an unknown scheme")
    targets = [part.strip() for part in rest.rstrip("/").split(",") if part.strip()]
    if not targets or not all(_has_port(target) for target in targets):
        raise BadRequestError(f"controller address {uri!r} is not of the form tcp://HOST:PORT")
    return targets, scheme in _TLS_SCHEMES


def _has_port(target: str) -> bool:
    try:
        parts = urlsplit(f"//{target}")
        return bool(parts.hostname) and parts.port is not None
    except ValueError:
        return False
