"""Metadata that the operator reads in any object, and the Events that it creates. Pure."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeGuard

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tailrace.cluster.kubernetes import Manifest
    from tailrace.common.ports import Clock

FIELD_MANAGER: Final = "tailrace-operator"
FINALIZER: Final = "tailrace.io/operator"
CONTAINERS_OPEN: Final = "ContainersOpen"
"""Condition of a StreamCluster: whether workers can open the containers that they have been given."""
_TIME: Final = "%Y-%m-%dT%H:%M:%SZ"


@dataclass(frozen=True, slots=True)
class Notice:
    """An Event to create: ``reason`` in CamelCase, ``message`` one sentence."""

    reason: str
    message: str
    warning: bool = False


def is_deleted(manifest: Manifest) -> bool:
    """Return whether the object is being deleted and waits for its finalizers."""
    return bool((manifest.get("metadata") or {}).get("deletionTimestamp"))


def has_finalizer(manifest: Manifest) -> bool:
    """Return whether the object has the finalizer of this operator."""
    return FINALIZER in ((manifest.get("metadata") or {}).get("finalizers") or [])


def generation_of(manifest: Manifest) -> int | None:
    """Return the generation of the object's specification."""
    found = (manifest.get("metadata") or {}).get("generation")
    return found if type(found) is int else None


def written_condition(manifest: Manifest, condition_type: str) -> Mapping[str, Any]:
    """Return a condition as last written, for any generation; empty when there is none."""
    conditions = [one for one in (manifest.get("status") or {}).get("conditions") or [] if isinstance(one, dict)]
    return next((one for one in conditions if one.get("type") == condition_type), {})


def timestamp(clock: Clock) -> str:
    """Return the current time in the form of conditions and Events."""
    return time_text(clock.now_ms())


def time_text(unix_ms: int) -> str:
    """Return a time in ms since 1970 in the form of Kubernetes, in whole seconds."""
    return datetime.datetime.fromtimestamp(unix_ms // 1000, datetime.UTC).strftime(_TIME)


def created_ms(manifest: Manifest) -> int:
    """Return when an object was created, in ms since 1970; 0: it does not say."""
    return time_ms((manifest.get("metadata") or {}).get("creationTimestamp"))


def time_ms(text: object) -> int:
    """Return a time as `time_text` writes it, in ms since 1970; 0: it is none."""
    return round(datetime.datetime.fromisoformat(text).timestamp() * 1000) if is_time(text) else 0


def is_time(value: object) -> TypeGuard[str]:
    """Return whether a value is a time as `time_text` writes it."""
    if not isinstance(value, str):
        return False
    try:
        datetime.datetime.strptime(value, _TIME)
    except ValueError:
        return False
    return True
