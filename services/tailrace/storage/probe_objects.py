"""Objects with which stores are tried out, and those that killed processes left behind (docs/operations/run.md).

A probe deletes its objects; a process that is killed during one leaves them. A later process deletes old ones.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import structlog

from tailrace.common import limits
from tailrace.common.errors import NotFoundError, UnavailableError
from tailrace.storage.port import UploadParts

if TYPE_CHECKING:
    from tailrace.storage.port import ObjectInfo, ObjectStore

_FOLDER: Final = "probe"
_KEY: Final = re.compile(_FOLDER + r"/(operator|[0-9a-f]{16}(/clock|/\d+/(read|condition|rivals)-\d+)?)")
_PART: Final = re.compile(r"(.+)#\d+")
_log = structlog.get_logger()


def is_probe(key: str) -> bool:
    """Return whether servers and operators write objects of that key to try stores out, or it is a part of one."""
    part = _PART.fullmatch(key)
    return _KEY.fullmatch(part[1] if part else key) is not None


async def delete_left_overs(store: ObjectStore, nonce: str, *keys: str) -> None:
    """Delete objects of probes that were killed, and parts of interrupted puts of those and of `keys`.

    The store has passed a probe, and its prefix is the cluster's; `nonce` must be new. Deleted is what is older than
    ``limits.PROBE_LEFT_OVER_AGE_S`` by the clock of the store, so no object of a probe that another process runs; at
    most ``limits.PROBE_LEFT_OVERS_MAX`` of each kind. Left-overs do no harm: a store that does not answer keeps them.
    """
    try:
        await _delete_left_overs(store, f"{_FOLDER}/{nonce}", keys)
    except (NotFoundError, UnavailableError) as error:
        _log.info("probes_not_deleted", reason=str(error))


async def _delete_left_overs(store: ObjectStore, own: str, keys: tuple[str, ...]) -> None:
    objects, parts = await _objects(store), await _parts(store, keys)
    if not objects and not parts:
        return
    clock = f"{own}/clock"
    await store.put(clock, [own.encode()])
    times_ms = [info.modified_ms async for info in store.list(f"{own}/") if info.key == clock]
    before_ms = min(times_ms, default=0) - limits.PROBE_LEFT_OVER_AGE_S * 1000
    old = [*_older(objects, before_ms), clock]
    for start in range(0, len(old), limits.DELETE_BATCH_MAX):
        await store.delete(old[start : start + limits.DELETE_BATCH_MAX])
    if isinstance(store, UploadParts):
        await store.delete_parts(_older(parts, before_ms))


async def _objects(store: ObjectStore) -> list[ObjectInfo]:
    listed: list[ObjectInfo] = []
    async for info in store.list(f"{_FOLDER}/"):
        listed.append(info)
        if len(listed) == limits.PROBE_LEFT_OVERS_MAX:
            break
    return [info for info in listed if is_probe(info.key)]


async def _parts(store: ObjectStore, keys: tuple[str, ...]) -> list[ObjectInfo]:
    if not isinstance(store, UploadParts):
        return []
    listed = [await store.list_parts(place, limits.PROBE_LEFT_OVERS_MAX) for place in (_FOLDER, *keys)]
    return [info for infos in listed for info in infos if is_probe(info.key) or _is_part_of(info.key, keys)]


def _is_part_of(name: str, keys: tuple[str, ...]) -> bool:
    part = _PART.fullmatch(name)
    return part is not None and part[1] in keys


def _older(found: list[ObjectInfo], before_ms: float) -> list[str]:
    """Return the keys of what is older. An object without a time may be new."""
    return [info.key for info in found if 0 < info.modified_ms < before_ms]
