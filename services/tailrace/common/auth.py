"""The hooks that servers call for every request: authorization and accounting.

Both are plain functions, so that one place decides for all servers. The implementations here are those of a server
without authentication and without quotas.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Protocol


class AccessLevel(enum.IntEnum):
    """The permission that a request needs on a resource, in ascending order.

    See docs/protocol/wire.md#delegation-tokens.
    """

    NONE = 0
    READ = 1
    READ_UPDATE = 2


@dataclass(frozen=True, slots=True)
class Principal:
    """The peer of a connection: its address, and its name when a certificate proved one."""

    address: str
    name: str = ""


class Authorize(Protocol):
    """Decides whether `principal` with `token` may use `resource` (a segment or scope name) at `level`.

    Raises:
        UnauthenticatedError: the token is missing, malformed or expired.
        PermissionDeniedError: it does not cover the resource.
    """

    def __call__(self, principal: Principal, token: str, resource: str, level: AccessLevel) -> None:
        """Return if allowed, else raise."""
        ...


class Account(Protocol):
    """Records `operations` requests with `length_bytes` bytes of data on a scope."""

    def __call__(self, scope: str, length_bytes: int, operations: int) -> None:
        """Record the use; must not raise."""
        ...


def allow_all(principal: Principal, token: str, resource: str, level: AccessLevel) -> None:
    """Authorize everything: the server runs without authentication."""


def account_nothing(scope: str, length_bytes: int, operations: int) -> None:
    """Record nothing."""
