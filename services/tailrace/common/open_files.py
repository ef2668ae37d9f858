"""How many files a process may have open, and how many connections each listener may take of that."""

from __future__ import annotations

import resource
from dataclasses import dataclass

from tailrace.common import limits
from tailrace.common.errors import StartError


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Connections of one listener of each kind; together with the files that a server keeps open they always fit."""

    store: int
    controller: int
    http: int


def connection_limits(open_files: int) -> ConnectionLimits:
    """What `open_files` allow.

    Raises:
        StartError: they are too few to serve anything.
    """
    if open_files < limits.OPEN_FILES_MIN:
        raise StartError(f"{open_files} files may be open (ulimit -n), at least {limits.OPEN_FILES_MIN} are needed")
    left = open_files - limits.OPEN_FILES_RESERVED
    return ConnectionLimits(
        store=min(limits.CONNECTIONS_MAX, left // 2),
        controller=min(limits.RPC_CONNECTIONS_MAX, left // 4),
        http=min(limits.HTTP_CONNECTIONS_MAX, left // 16),
    )


def raise_open_files() -> int:
    """Let this process, and those that it starts, open as many files as the system lets it; returns how many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = limits.OPEN_FILES_MAX
    wanted = most if hard == resource.RLIM_INFINITY else min(hard, most)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    return most if soft == resource.RLIM_INFINITY else soft
