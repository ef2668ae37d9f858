"""Configure a client: address, TLS and credentials.

See docs/protocol/controller.md#endpoint, docs/protocol/controller.md#authorization.
"""

from __future__ import annotations

import base64
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import grpc

from tailrace.common.errors import BadRequestError

if TYPE_CHECKING:
    from os import PathLike

Authorization: TypeAlias = str | Callable[[], str]
"""The ``authorization`` metadata of controller calls, or a function that returns it for each call."""


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """TLS to the controller and to the segment stores; files are PEM.

    ``ca_file``: certificates to trust (None: the system's). ``certificate_file`` and ``key_file``: the client's own, if
    servers require it. ``server_name``: the name in the servers' certificates when it differs from the address.
    """

    ca_file: str | PathLike[str] | None = None
    certificate_file: str | PathLike[str] | None = None
    key_file: str | PathLike[str] | None = None
    server_name: str | None = None

    def __post_init__(self) -> None:
        if (self.certificate_file is None) != (self.key_file is None):
            raise BadRequestError("certificate_file and key_file must be given together")

    def context(self) -> ssl.SSLContext:
        """Return the TLS context for segment stores. Raises BadRequestError for unusable files."""
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            if self.certificate_file is not None and self.key_file is not None:
                context.load_cert_chain(self.certificate_file, self.key_file)
        except OSError as error:  # includes ssl.SSLError
            raise BadRequestError(f"TLS files {self._files()} cannot be used: {error}") from error
        return context

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """Return the gRPC credentials for controllers. Raises BadRequestError for unreadable files."""
        try:
            return grpc.ssl_channel_credentials(
                _content(self.ca_file), _content(self.key_file), _content(self.certificate_file)
            )
        except OSError as error:
            raise BadRequestError(f"TLS files {self._files()} cannot be read: {error}") from error

    def _files(self) -> str:
        files = (self.ca_file, self.certificate_file, self.key_file)
        return ", ".join(str(file) for file in files if file is not None) or "of the system"


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """How to reach a cluster.

    ``controller`` is its address, ``tcp://HOST:PORT`` or ``tls://HOST:PORT``, or several separated by commas. With
    ``tls://`` or `tls`, connections to the controller and the segment stores use TLS. With `authorization` (see
    `basic_authorization`) the client also requests delegation tokens and renews them.
    """

    controller: str
    tls: TlsOptions | None = None
    authorization: Authorization | None = None


def basic_authorization(user: str, password: str) -> str:
    """Return the credentials of a user and password. Raises BadRequestError for a user with a colon.

    See docs/protocol/controller.md#authorization.
    """
    if ":" in user:
        raise BadRequestError("a user name must not contain a colon")
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def bearer_authorization(token: str) -> str:
    """Return credentials from a token that another service issued (docs/protocol/controller.md#authorization)."""
    return f"Bearer {token}"


def _content(file: str | PathLike[str] | None) -> bytes | None:
    return None if file is None else Path(file).read_bytes()
