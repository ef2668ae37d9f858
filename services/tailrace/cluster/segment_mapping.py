"""Maps segments to containers (docs/protocol/server.md#containers).

A pure function of the name and the number of containers, so controller and segment store agree without a request.
Segments that differ only in epoch, transaction or transient part share a container: merges stay inside one.
"""

from __future__ import annotations

import functools
from typing import Final

from tailrace.common import limits
from tailrace.common.errors import BadRequestError
from tailrace.common.murmur import murmur3_128
from tailrace.common.names import container_key

CONTAINER_SEED: Final = 1661405012

_MASK: Final = 0xFFFFFFFFFFFFFFFF
_LCG_MULTIPLIER: Final = 2862933555777941757


def container_of(segment_name: str, container_count: int) -> int:
    """Return the container, from 0 to `container_count` - 1, that serves the segment.

    Raises:
        BadRequestError: `container_count` is below 1.
    """
    if container_count < 1:
        raise BadRequestError(f"container count is {container_count}, at least 1 is needed")
    return _container(container_key(segment_name), container_count)


@functools.lru_cache(maxsize=limits.SEGMENT_CONTAINERS_CACHED_MAX)
def _container(key: str, container_count: int) -> int:
    digest, _ = murmur3_128(key.encode("utf-16-le", "surrogatepass"), CONTAINER_SEED)
    return jump_hash(digest, container_count)


def jump_hash(key: int, buckets: int) -> int:
    """Return the jump consistent hash of an unsigned 64-bit key: few keys move when the number of buckets changes."""
    state = key & _MASK
    candidate = 0
    while True:
        state = (state * _LCG_MULTIPLIER + 1) & _MASK
        step = ((state >> 33) + 1) / 2**31
        following = int((candidate + 1) / step)
        if not 0 <= following < buckets:
            return candidate
        candidate = following
