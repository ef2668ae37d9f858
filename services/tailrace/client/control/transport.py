"""Carry calls to the controller over gRPC (docs/design.md#client); the simulator has another transport."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar
from urllib.parse import urlsplit

import grpc
import grpc.aio

from tailrace.client.config import TlsOptions
from tailrace.common import errors, limits
from tailrace.common.errors import BadRequestError, ClientClosedError, TailraceError, UnavailableError
from tailrace.rpc import controller_pb2, operator_pb2

if TYPE_CHECKING:
    from collections.abc import Iterable

    from google.protobuf.message import Message

    from tailrace.client.config import Authorization

M = TypeVar("M", bound="Message")
ERROR_NAME_KEY: Final = "tailrace-error"
"""Trailing metadata in which our controller names the error behind a status."""
_SERVICES: Final = (
    controller_pb2.DESCRIPTOR.services_by_name["ControllerService"],
    operator_pb2.DESCRIPTOR.services_by_name["OperatorService"],
)
_PATHS: Final = {
    method.name: f"/{service.full_name}/{method.name}" for service in _SERVICES for method in service.methods
}

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
    errors.GRPC_OUT_OF_RANGE: errors.AnswerTooLargeError,
    errors.GRPC_UNIMPLEMENTED: errors.UnsupportedError,
    errors.GRPC_INTERNAL: errors.IllegalStateError,
    errors.GRPC_UNAVAILABLE: UnavailableError,
    errors.GRPC_DATA_LOSS: errors.DataError,
    errors.GRPC_UNAUTHENTICATED: errors.UnauthenticatedError,
}


class UnknownStatusError(BadRequestError):
    """The controller returned the status UNKNOWN only: a wrong argument, or a transient failure.

    See docs/protocol/controller.md#errors.
    """


class ControllerTransport(Protocol):
    """Carry one call to a controller. Raises kinds of TailraceError."""

    async def call(self, method: str, request: Message, reply: type[M], deadline_s: float) -> M:
        """Make one attempt."""
        ...

    async def close(self) -> None:
        """Release connections."""
        ...


class GrpcTransport:
    """Calls over gRPC; with several addresses, it tries the next one when one is unreachable or falls silent.

    ``tls``: with which options it uses TLS; None for plaintext.

    Raises BadRequestError for a malformed address or unusable TLS files.
    """

    def __init__(self, uri: str, *, tls: TlsOptions | None = None, authorization: Authorization | None = None) -> None:
        self._targets, uses_tls = parse_controller_uri(uri)
        self._authorization = authorization
        self.tls = tls or (TlsOptions() if uses_tls else None)
        self._credentials = None if self.tls is None else self.tls.channel_credentials()
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._closed = False

    def _channel(self, target: str) -> grpc.aio.Channel:
        channel = self._channels.get(target)
        if channel is None:
            options: list[tuple[str, int | str]] = [
                ("grpc.max_receive_message_length", limits.CLIENT_CONTROLLER_MESSAGE_MAX_BYTES),
                ("grpc.enable_http_proxy", 0),
                ("grpc.initial_reconnect_backoff_ms", int(limits.CLIENT_BACKOFF_INITIAL_S * 1000)),
                ("grpc.min_reconnect_backoff_ms", int(limits.CLIENT_BACKOFF_INITIAL_S * 1000)),
                ("grpc.max_reconnect_backoff_ms", int(limits.CLIENT_BACKOFF_MAX_S * 1000)),
                # One ping for each call without an answer: Java's servers end connections on which many come.
                ("grpc.keepalive_time_ms", int(limits.CLIENT_KEEP_ALIVE_S * 1000)),
                ("grpc.keepalive_timeout_ms", int(limits.CLIENT_PING_REPLY_S * 1000)),
                ("grpc.http2.max_pings_without_data", 1),
                ("grpc.http2.ping_timeout_ms", int(limits.CLIENT_PING_REPLY_S * 1000)),
            ]
            if self._credentials is not None:
                if self.tls is not None and self.tls.server_name is not None:
                    options.append(("grpc.ssl_target_name_override", self.tls.server_name))
                channel = grpc.aio.secure_channel(target, self._credentials, options=options)
            else:
                channel = grpc.aio.insecure_channel(target, options=options)
            self._channels[target] = channel
        return channel

    async def wait_ready(self, deadline_s: float) -> bool:
        """Connect and wait until one address answers with gRPC, over TLS if configured; return False if none does."""
        waiting = [asyncio.ensure_future(self._channel(target).channel_ready()) for target in self._targets]
        try:
            done, _ = await asyncio.wait(waiting, timeout=deadline_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.wait(waiting)
        return bool(done)

    async def call(self, method: str, request: Message, reply: type[M], deadline_s: float) -> M:
        """Make one attempt on the address that worked last. Raises ClientClosedError."""
        self._check_open()
        target = self._targets[0]
        stub = self._channel(target).unary_unary(
            _PATHS[method],
            request_serializer=type(request).SerializeToString,
            response_deserializer=reply.FromString,
        )
        try:
            answer: M = await stub(request, timeout=deadline_s, metadata=self._metadata())
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and not task.cancelling():
                self._check_open()  # closing the channel cancelled the call, not the caller
            raise
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNAVAILABLE and self._targets[0] == target:  # once for all its calls
                self._targets.append(self._targets.pop(0))
            name = _error_name(error.trailing_metadata() or ())
            raise error_of_status(error.code().value[0], error.details() or "", target, name) from error
        return answer

    def _metadata(self) -> tuple[tuple[str, str], ...]:
        value = self._authorization
        if callable(value):
            try:
                value = value()
            except TailraceError:
                raise
            except Exception as error:  # for example, its file is being replaced
                reason = f"{type(error).__name__}: {error}"
                raise UnavailableError(f"the function for the authorization failed: {reason}") from error
        if isinstance(value, str) and not (value.isascii() and value.isprintable()):
            raise BadRequestError("the authorization has characters that a header cannot carry, such as a line end")
        return (("authorization", value),) if value else ()

    def _check_open(self) -> None:
        if self._closed:
            raise ClientClosedError

    async def close(self) -> None:
        """Close the channels; calls in flight raise ClientClosedError."""
        self._closed = True
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            await channel.close(grace=None)


def _error_name(metadata: Iterable[Any]) -> str:
    for key, value in metadata:
        if key == ERROR_NAME_KEY:
            return value if isinstance(value, str) else value.decode("latin-1")
    return ""


def error_of_status(code: int, details: str, target: str, name: str = "") -> TailraceError:
    """Return the error of a gRPC status; `name` is the server's name for it, if it sent one.

    See docs/protocol/controller.md#errors.
    """
    if code == errors.GRPC_UNKNOWN:
        # Our server names its error; without a name UNKNOWN may be a wrong argument or any failure.
        kind: type[TailraceError] = BadRequestError if name else UnknownStatusError
    else:
        kind = _ERRORS.get(code, UnavailableError)
    if code == errors.GRPC_UNAVAILABLE:
        return kind(f"controller {target} is not available: {details}")
    return kind(details or f"controller {target} answered with gRPC status {code}")


def parse_controller_uri(uri: str) -> tuple[list[str], bool]:
    """Parse ``tcp://h:p[,h:p]``, ``tls://…`` or ``h:p``; return the addresses and whether to use TLS.

    See docs/protocol/controller.md#endpoint.

    Raises:
        BadRequestError: another scheme, or an address without a port.
    """
    scheme, separator, rest = uri.partition("://")
    if not separator:
        scheme, rest = "tcp", uri
    if scheme not in _PLAIN_SCHEMES + _TLS_SCHEMES:
        raise BadRequestError(f"controller address {uri!r} has an unknown scheme; use tcp:// or tls://")
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
