"""Errors for code under simulation that reaches for real sockets, threads, processes, sleep; garbage collection."""

from __future__ import annotations

import gc
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sim.loop import ForbiddenError


def _forbidden(what: str) -> Any:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise ForbiddenError(f"{what} reaches outside of the simulation")

    return refuse


@contextmanager
def real_world_forbidden() -> Iterator[None]:
    """While the simulated loop runs nothing may block or leave the process."""
    places: list[tuple[Any, str]] = [
        (socket.socket, "connect"),
        (socket.socket, "bind"),
        (socket.socket, "listen"),
        (threading.Thread, "start"),
        (subprocess.Popen, "__init__"),
        (time, "sleep"),
    ]
    saved = [(owner, name, owner.__dict__.get(name), name in owner.__dict__) for owner, name in places]
    collecting = gc.isenabled()
    gc.disable()  # the loop collects at certain turns (`sim.loop`)
    gc.freeze()  # and looks only at what the run made
    for owner, name in places:
        setattr(owner, name, _forbidden(f"{owner.__name__}.{name}"))
    try:
        yield
    finally:
        gc.unfreeze()
        if collecting:
            gc.enable()
        for owner, name, value, own in saved:
            if own:
                setattr(owner, name, value)
            else:
                delattr(owner, name)
