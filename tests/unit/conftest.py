"""What all unit tests share: each fails for the sockets that it loses."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Iterator

import pytest


def _open_sockets() -> int:
    with os.scandir("/proc/self/fd") as opened:
        return sum(_is_socket(each.path) for each in opened)


def _is_socket(path: str) -> bool:
    with contextlib.suppress(FileNotFoundError):  # the listing's own descriptor
        return os.readlink(path).startswith("socket:")
    return False


@pytest.fixture(autouse=True)
def own_sockets() -> Iterator[None]:
    """A test that loses an open socket fails for it; else the cycle collector would find it during some later test."""
    before = _open_sockets()
    yield
    if _open_sockets() > before:
        gc.collect()
