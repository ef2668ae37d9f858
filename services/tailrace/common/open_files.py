"""Raises the limit of open files, and derives the connection limit of each listener from it."""

from __future__ import annotations

import resource
from dataclasses import dataclass

from tailrace.common import limits
from tailrace.common.errors import StartError


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Connection limits by listener; with the files that a server keeps open they fit the limit of open files."""

    store: int
    controller: int
    http: int


def connection_limits(open_files: int) -> ConnectionLimits:
    """Return the connection limits for a limit of open files.

    Raises:
        StartError: the limit is below ``limits.OPEN_FILES_MIN``.
    """
    if open_files < limits.OPEN_FILES_MIN:
        raise StartError(f"the limit of open files (ulimit -n) is {open_files}: set at least {limits.OPEN_FILES_MIN}")
    left = open_files - limits.OPEN_FILES_RESERVED
    return ConnectionLimits(
        store=min(limits.CONNECTIONS_MAX, left // 2),
        controller=min(limits.RPC_CONNECTIONS_MAX, left // 4),
        http=min(limits.HTTP_CONNECTIONS_MAX, left // 16),
    )


def raise_open_files() -> int:
    """Raise the limit of open files of this process and its children as far as allowed; return the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = limits.OPEN_FILES_MAX
    wanted = most if hard == resource.RLIM_INFINITY else min(hard, most)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    return most if soft == resource.RLIM_INFINITY else soft
