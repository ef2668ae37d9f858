"""The result of reconciling an object: conditions, Events, status and finalizer; pure.

See docs/design.md#resources, ADR 0013.

A reconciler compares one object with its actual state, changes that state where it differs, and returns an `Outcome`.
`changes_of` computes from it what is written to the object. Conditions follow the Kubernetes API conventions: one of
each type, `lastTransitionTime` changes with the status only, `observedGeneration` names the specification. Each
transition creates one Event.
"""

from __future__ import annotations

import datetime
import enum
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

from tailrace.common import limits
from tailrace_operator.kube.manifests import FINALIZER, Notice, generation_of, is_deleted, is_time

if TYPE_CHECKING:
    from tailrace.cluster.kubernetes import Kind, Manifest

READY: Final = "Ready"

MEASURED_TIME: Final = "measuredTime"
_NEAR: Final = 10
"""A number is near another one from which it differs by less than one part in so many."""
_REASON: Final = re.compile(r"[A-Z][A-Za-z0-9]*")


class Status(enum.StrEnum):
    """The status of a condition."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition of an object.

    ``reason`` is CamelCase, for programs. ``message`` is one sentence for people; it names the field and the fix where
    the user has to act. ``warn_on`` is the status whose Event is a Warning; None: all its Events are Normal.
    ``is_measured``: the message has numbers that keep changing; they are written as `Outcome.measured` is.
    """

    type: str
    status: Status
    reason: str
    message: str
    warn_on: Status | None = Status.FALSE
    is_measured: bool = False

    def __post_init__(self) -> None:
        """Raises ValueError: the reason is not CamelCase, or there is no message."""
        if not _REASON.fullmatch(self.reason):
            raise ValueError(f"reason {self.reason!r} is not CamelCase")
        if not self.message:
            raise ValueError(f"condition {self.type} has no message")

    @property
    def is_true(self) -> bool:
        """Return whether the status is True."""
        return self.status is Status.TRUE

    @property
    def is_warning(self) -> bool:
        """Return whether its Event is a Warning."""
        return self.status is self.warn_on


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a reconciler found, and what it asks to write to the object.

    ``conditions``: conditions to set; others in the status are kept. ``status``: fields of the status to set, None
    removes a field; fields that are not named are kept. ``measured``: the same for numbers that keep changing, which
    are not written each time (`changes_of`). ``near``: for fields of ``measured`` that vary by nature, whether two
    values differ by little. ``notices``: Events besides those of transitions.
    ``retry_after_s``: reconcile again after this time; None: with the next period. ``finalizer``: True adds
    `FINALIZER`, False removes it, None leaves it unchanged. ``carried_out``: False while the specification waits for
    something; then ``status.observedGeneration`` stays that of the last one that was carried out or refused.

    The finalizer is written before the reconciler is called again. A reconciler that needs it before an effect returns
    ``finalizer=True, retry_after_s=0`` and has no effects until `has_finalizer` is true.
    """

    conditions: tuple[Condition, ...] = ()
    status: Mapping[str, Any] = field(default_factory=dict)
    notices: tuple[Notice, ...] = ()
    retry_after_s: float | None = None
    finalizer: bool | None = None
    carried_out: bool = True
    measured: Mapping[str, Any] = field(default_factory=dict)
    near: Mapping[str, Callable[[object, object], bool]] = field(default_factory=dict)


class Reconciler(Protocol):
    """Reconciles the objects of one kind. Calls are idempotent; each object is in one call at a time."""

    @property
    def kind(self) -> Kind:
        """Return the kind that it reconciles."""
        ...

    @property
    def period_s(self) -> float:
        """Return the period after which an unchanged object is reconciled again."""
        ...

    async def reconcile(self, manifest: Manifest) -> Outcome:
        """Make the actual state match the object; also called while the object is being deleted (`is_deleted`).

        ``manifest`` is the newest version known. It may be stale, so writes to the object compare uid and version.

        Raises:
            TailraceError: reconciling failed. It is retried with growing pauses. After
            ``limits.OPERATOR_FAILURES_REPORT`` failures in a row, condition Ready is Unknown and says why.
        """
        ...

    def away(self, manifest: Manifest, message: str) -> tuple[Condition, ...]:
        """Return conditions besides Ready for an object that has repeatedly failed because something did not answer."""
        ...

    async def gone(self, namespace: str, name: str) -> None:
        """Forget what is kept in memory about an object that was deleted."""
        ...


@dataclass(frozen=True, slots=True)
class Changes:
    """What to write to an object. None: nothing.

    ``status``: a merge patch of the status. ``finalizers``: the complete new list. ``notices``: Events to create after
    the status is written.
    """

    status: dict[str, Any] | None
    finalizers: list[str] | None
    notices: tuple[Notice, ...]


def changes_of(manifest: Manifest, outcome: Outcome, generation: int | None, now: str) -> Changes:
    """Return what to write to an object so that it shows the outcome.

    What was measured is written with ``status.measuredTime``: when something else is written, when a number differs
    from the written one by a tenth or more, or a value is not ``near`` it, and when the written ones are
    `limits.OPERATOR_MEASURED_AGE_S` old.

    `generation`: of the specification that was reconciled. `now`: the time in RFC 3339, in seconds.
    """
    found = manifest.get("status")
    status = found if isinstance(found, dict) else {}
    wanted = _differing(status, outcome.status)
    conditions = merged(status.get("conditions"), outcome.conditions, generation, now)
    steady = _with_written_messages(status.get("conditions"), conditions, outcome.conditions)
    if outcome.conditions and steady != status.get("conditions"):
        wanted["conditions"] = conditions
    if outcome.carried_out and generation is not None and status.get("observedGeneration") != generation:
        wanted["observedGeneration"] = generation
    measured = _differing(status, outcome.measured)
    near = all(outcome.near.get(name, _is_near)(status.get(name), value) for name, value in outcome.measured.items())
    if measured and (wanted or not near or _is_old(status.get(MEASURED_TIME), now)):
        wanted |= {**measured, MEASURED_TIME: now}
        if outcome.conditions and conditions != status.get("conditions"):
            wanted["conditions"] = conditions
    notices = (*transitions(status.get("conditions"), outcome.conditions), *outcome.notices)
    return Changes(wanted or None, _finalizers(manifest, outcome.finalizer), notices)


def _differing(status: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the merge patch of the fields that a status does not have with these values."""
    return {name: _merge_patch(status.get(name), value) for name, value in values.items() if status.get(name) != value}


def _is_old(written: object, now: str) -> bool:
    """Return whether numbers were written too long ago, or when is not known."""
    if not is_time(written):
        return True
    age = datetime.datetime.fromisoformat(now) - datetime.datetime.fromisoformat(written)
    return not 0 <= age.total_seconds() < limits.OPERATOR_MEASURED_AGE_S


def _is_near(found: object, wanted: object) -> bool:
    """Return whether two values differ by less than a tenth in all numbers, and otherwise only in times."""
    if isinstance(found, Mapping) and isinstance(wanted, Mapping):
        return found.keys() == wanted.keys() and all(_is_near(found[name], wanted[name]) for name in wanted)
    if isinstance(found, list) and isinstance(wanted, list):
        return len(found) == len(wanted) and all(map(_is_near, found, wanted))
    if isinstance(found, int) and isinstance(wanted, int):
        return found == wanted or abs(wanted - found) * _NEAR < found
    return found == wanted or (is_time(found) and is_time(wanted))


def _merge_patch(found: object, wanted: object) -> object:
    """Return the JSON merge patch that makes `wanted` of `found`: fields that `wanted` lacks are None."""
    if not isinstance(wanted, dict) or not isinstance(found, dict):
        return wanted
    gone = {name: None for name in found if name not in wanted}
    return {**gone, **{name: _merge_patch(found.get(name), value) for name, value in wanted.items()}}


def merged(found: object, own: Sequence[Condition], generation: int | None, now: str) -> list[dict[str, Any]]:
    """Return the conditions of a status with those of `own` set and all others kept."""
    before = {item["type"]: dict(item) for item in _items(found)}
    for condition in own:
        old = before.get(condition.type, {})
        since = old.get("lastTransitionTime") if old.get("status") == condition.status.value else None
        before[condition.type] = {
            "type": condition.type,
            "status": condition.status.value,
            "reason": condition.reason,
            "message": condition.message[: limits.CONDITION_MESSAGE_MAX_LENGTH],
            "lastTransitionTime": since if isinstance(since, str) else now,
            **({"observedGeneration": generation} if generation is not None else {}),
        }
    return list(before.values())


def _with_written_messages(
    found: object, conditions: list[dict[str, Any]], own: Sequence[Condition]
) -> list[dict[str, Any]]:
    """Return the conditions with the written messages of those that are measured."""
    written = {item["type"]: item.get("message") for item in _items(found)}
    measured = {one.type for one in own if one.is_measured}
    return [
        {**one, "message": written[one["type"]]} if one["type"] in measured & written.keys() else one
        for one in conditions
    ]


def transitions(found: object, own: Iterable[Condition]) -> tuple[Notice, ...]:
    """Return one Event for each condition whose status or reason changed.

    A new condition that is not True and not a warning creates no Event. Ready creates none when it repeats the reason
    and message of another condition.
    """
    before = {item["type"]: (item.get("status"), item.get("reason")) for item in _items(found)}
    notices: list[Notice] = []
    for condition in sorted(own, key=lambda condition: condition.type == READY):
        old = before.get(condition.type)
        is_new = old is None and (condition.is_true or condition.is_warning)
        if not is_new and (old is None or old == (condition.status.value, condition.reason)):
            continue
        notice = Notice(condition.reason, condition.message, condition.is_warning)
        if condition.type != READY or all(
            (notice.reason, notice.message) != (other.reason, other.message) for other in notices
        ):
            notices.append(notice)
    return tuple(notices)


def ready(parts: Sequence[Condition], reason: str, message: str) -> Condition:
    """Return condition Ready: True with that reason and message when all parts are True.

    Otherwise Ready repeats the first part that is False, or else the first that is Unknown.
    """
    for status in (Status.FALSE, Status.UNKNOWN):
        for part in parts:
            if part.status is status:
                return Condition(READY, status, part.reason, part.message, warn_on=part.warn_on)
    return Condition(READY, Status.TRUE, reason, message)


def condition_of(manifest: Manifest, condition_type: str) -> Status | None:
    """Return the status of a condition that was observed for the current specification; None: there is none."""
    status = manifest.get("status")
    for item in _items(status.get("conditions") if isinstance(status, dict) else None):
        if item["type"] == condition_type and item.get("observedGeneration") in (None, generation_of(manifest)):
            return Status(item["status"]) if item.get("status") in set(Status) else None
    return None


def _finalizers(manifest: Manifest, wanted: bool | None) -> list[str] | None:
    """Return the new list of finalizers; None: unchanged. An object that is being deleted gets no new one."""
    found = (manifest.get("metadata") or {}).get("finalizers") or []
    if wanted is None or wanted is (FINALIZER in found) or (wanted and is_deleted(manifest)):
        return None
    return [*found, FINALIZER] if wanted else [name for name in found if name != FINALIZER]


def _items(found: object) -> list[Mapping[str, Any]]:
    if not isinstance(found, list):
        return []
    return [item for item in found if isinstance(item, dict) and isinstance(item.get("type"), str)]
