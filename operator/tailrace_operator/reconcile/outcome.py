"""What reconciling has in common for all kinds: conditions, Events, status, finalizer; pure (design §11, ADR 0013).

A reconciler looks at one object and at the world, brings the world into step, and tells what it found: an `Outcome`.
`changes_of` turns that into what is written to the object: conditions by the Kubernetes API conventions (a map by type,
a time that changes with the status alone, the generation that was observed), and one Event per transition.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

from tailrace.common import limits
from tailrace_operator.kube.manifests import FINALIZER, Notice, generation_of, is_deleted

if TYPE_CHECKING:
    from tailrace.cluster.kubernetes import Kind, Manifest

READY: Final = "Ready"

_REASON: Final = re.compile(r"[A-Z][A-Za-z0-9]*")


class Truth(enum.StrEnum):
    """A condition's status."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition as it is now.

    ``reason`` is CamelCase, for programs; ``message`` one sentence for people, which names the field and the fix when
    somebody has to act. ``bad`` is the truth that calls for attention (its Event is a warning); None: none does.
    """

    type: str
    truth: Truth
    reason: str
    message: str
    bad: Truth | None = Truth.FALSE

    def __post_init__(self) -> None:
        """Raises ValueError: the reason is not CamelCase, or there is no message."""
        if not _REASON.fullmatch(self.reason):
            raise ValueError(f"the reason {self.reason!r} is not CamelCase")
        if not self.message:
            raise ValueError(f"condition {self.type} has no message")

    @property
    def is_true(self) -> bool:
        """Whether the condition holds."""
        return self.truth is Truth.TRUE

    @property
    def warns(self) -> bool:
        """Whether its Event is a warning."""
        return self.truth is self.bad


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a reconciler found and wants to be written.

    ``conditions``: those that it knows about now; others in the status stay. ``status``: fields of the status, None
    removes one; what is not named stays. ``notices``: Events besides those of transitions. ``retry_after_s``: look
    again so soon; None: with the next round. ``finalizer``: True: the object is to carry `FINALIZER`, False: it is not,
    None: as it is. A finalizer is in place before the reconciler is called again, so whoever needs one before an effect
    asks for it with ``retry_after_s=0`` and does nothing else until `holds` tells that it is there.
    """

    conditions: tuple[Condition, ...] = ()
    status: Mapping[str, Any] = field(default_factory=dict)
    notices: tuple[Notice, ...] = ()
    retry_after_s: float | None = None
    finalizer: bool | None = None


class Reconciler(Protocol):
    """Brings one kind of objects into step with the world. Idempotent; one call at a time for each object."""

    @property
    def kind(self) -> Kind:
        """What it reconciles."""
        ...

    @property
    def period_s(self) -> float:
        """Between two looks at an object that nobody changes."""
        ...

    async def reconcile(self, manifest: Manifest) -> Outcome:
        """Bring the world into step with the object; also when it is being deleted (`is_deleted`).

        ``manifest`` is the newest that is known; it may be a little old, so effects on it must compare (uid, version).

        Raises:
            TailraceError: it could not be done now; it is tried again, with growing pauses, and after
            ``limits.OPERATOR_FAILURES_REPORT`` failures in a row the condition Ready is Unknown and says why.
        """
        ...

    async def gone(self, namespace: str, name: str) -> None:
        """The object does not exist any more: forget what is kept in memory about it."""
        ...


@dataclass(frozen=True, slots=True)
class Changes:
    """What an outcome changes in an object. None: nothing.

    ``status``: a merge patch of the status. ``finalizers``: all that there are to be. ``notices``: Events to be made
    once the status is written.
    """

    status: dict[str, Any] | None
    finalizers: list[str] | None
    notices: tuple[Notice, ...]


def changes_of(manifest: Manifest, outcome: Outcome, generation: int | None, now: str) -> Changes:
    """What has to be written to the object as it is now.

    `generation`: of the specification that the outcome is about; `now`: RFC 3339, in seconds.
    """
    found = manifest.get("status")
    status = found if isinstance(found, dict) else {}
    wanted = {name: value for name, value in outcome.status.items() if status.get(name) != value}
    conditions = merged(status.get("conditions"), outcome.conditions, generation, now)
    if outcome.conditions and conditions != status.get("conditions"):
        wanted["conditions"] = conditions
    if generation is not None and status.get("observedGeneration") != generation:
        wanted["observedGeneration"] = generation
    notices = (*transitions(status.get("conditions"), outcome.conditions), *outcome.notices)
    return Changes(wanted or None, _finalizers(manifest, outcome.finalizer), notices)


def merged(found: object, own: Sequence[Condition], generation: int | None, now: str) -> list[dict[str, Any]]:
    """The conditions of a status with those of `own` set; all others stay as they are."""
    before = {item["type"]: dict(item) for item in _items(found)}
    for condition in own:
        old = before.get(condition.type, {})
        since = old.get("lastTransitionTime") if old.get("status") == condition.truth.value else None
        before[condition.type] = {
            "type": condition.type,
            "status": condition.truth.value,
            "reason": condition.reason,
            "message": condition.message[: limits.CONDITION_MESSAGE_MAX_LENGTH],
            "lastTransitionTime": since if isinstance(since, str) else now,
            **({"observedGeneration": generation} if generation is not None else {}),
        }
    return list(before.values())


def transitions(found: object, own: Iterable[Condition]) -> tuple[Notice, ...]:
    """One Event for each condition whose status or reason is new.

    A condition that is new, does not hold and is no reason for attention is none yet. What Ready repeats of another
    condition is not said twice.
    """
    before = {item["type"]: (item.get("status"), item.get("reason")) for item in _items(found)}
    notices: list[Notice] = []
    for condition in sorted(own, key=lambda condition: condition.type == READY):
        old = before.get(condition.type)
        is_new = old is None and (condition.is_true or condition.warns)
        if not is_new and (old is None or old == (condition.truth.value, condition.reason)):
            continue
        notice = Notice(condition.reason, condition.message, condition.warns)
        if condition.type != READY or all(
            (notice.reason, notice.message) != (other.reason, other.message) for other in notices
        ):
            notices.append(notice)
    return tuple(notices)


def ready(parts: Sequence[Condition], reason: str, message: str) -> Condition:
    """The summary: True with that reason and message when all parts are, else what the first one that is not says.

    False weighs more than Unknown.
    """
    for truth in (Truth.FALSE, Truth.UNKNOWN):
        for part in parts:
            if part.truth is truth:
                return Condition(READY, truth, part.reason, part.message, bad=part.bad)
    return Condition(READY, Truth.TRUE, reason, message)


def condition_of(manifest: Manifest, condition_type: str) -> Truth | None:
    """The truth of a condition in an object's status that was observed for its present specification; None: none."""
    status = manifest.get("status")
    for item in _items(status.get("conditions") if isinstance(status, dict) else None):
        if item["type"] == condition_type and item.get("observedGeneration") in (None, generation_of(manifest)):
            return Truth(item["status"]) if item.get("status") in set(Truth) else None
    return None


def _finalizers(manifest: Manifest, wanted: bool | None) -> list[str] | None:
    """All finalizers as they are to be; None: as they are. One is never added to an object that is being deleted."""
    found = (manifest.get("metadata") or {}).get("finalizers") or []
    if wanted is None or wanted is (FINALIZER in found) or (wanted and is_deleted(manifest)):
        return None
    return [*found, FINALIZER] if wanted else [name for name in found if name != FINALIZER]


def _items(found: object) -> list[Mapping[str, Any]]:
    if not isinstance(found, list):
        return []
    return [item for item in found if isinstance(item, dict) and isinstance(item.get("type"), str)]
