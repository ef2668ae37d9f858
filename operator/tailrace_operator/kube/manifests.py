"""What the operator reads in any object's metadata, and the Events it creates. Pure."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tailrace.cluster.kubernetes import Manifest
    from tailrace.common.ports import Clock

FIELD_MANAGER: Final = "tailrace-operator"
FINALIZER: Final = "tailrace.io/operator"


@dataclass(frozen=True, slots=True)
class Notice:
    """An Event to be: ``reason`` CamelCase, ``message`` one sentence."""

    reason: str
    message: str
    warning: bool = False


def is_deleted(manifest: Manifest) -> bool:
    """Whether the object is being deleted and waits for finalizers."""
    return bool((manifest.get("metadata") or {}).get("deletionTimestamp"))


def holds(manifest: Manifest) -> bool:
    """Whether the object carries our finalizer."""
    return FINALIZER in ((manifest.get("metadata") or {}).get("finalizers") or [])


def generation_of(manifest: Manifest) -> int | None:
    """The generation of the object's specification."""
    found = (manifest.get("metadata") or {}).get("generation")
    return found if type(found) is int else None


def stamp(clock: Clock) -> str:
    """The time as conditions and Events have it."""
    now = datetime.datetime.fromtimestamp(clock.now_ms() // 1000, datetime.UTC)
    return now.strftime("%Y-%m-%dT%H:%M:%SZ")
