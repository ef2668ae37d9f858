"""The reconcile loop: decides when each object is reconciled (ADR 0015).

An object is reconciled after a watch event that changes it, after a change of the object that it depends on, after its
period, and after a failure. All objects of a kind are listed once a period, so a watch that has stopped delays changes
by one period at most, and is detected. Each object is in one call at a time, with the newest version known.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import structlog

from tailrace.common import limits
from tailrace.common.errors import NotFoundError, TailraceError
from tailrace_operator.kube.manifests import FINALIZER, is_deleted
from tailrace_operator.reconcile.keys import Key, key_of
from tailrace_operator.reconcile.known_objects import KnownObjects, is_of_another, is_older
from tailrace_operator.reconcile.outcome import READY, Condition, Outcome, Status
from tailrace_operator.reconcile.status_writer import StatusWriter
from tailrace_operator.reconcile.watch_check import WatchCheck
from tailrace_operator.reconcile.work_queue import WorkQueue

if TYPE_CHECKING:
    from typing import NoReturn

    from tailrace.cluster.kubernetes import Kind, Manifest
    from tailrace.common.ports import Clock, Entropy
    from tailrace_operator.kube.objects import Objects
    from tailrace_operator.reconcile.outcome import Reconciler

_logger = structlog.get_logger()

FieldSelector: TypeAlias = Callable[["Manifest"], Any]
"""Selects the fields of an object whose change is of interest."""


_SHARING: Final = 2
"""Of so many objects that others depend on, none gets more than its share of the workers."""


@dataclass(frozen=True, slots=True)
class _Dependency:
    """A kind that others depend on: the fields that matter to them, and what to call when these change."""

    fields: FieldSelector
    changed: Callable[[Key], None]


class ReconcileLoop:
    """Reconciles the objects of all registered kinds. ``namespace`` None: of all namespaces."""

    def __init__(self, objects: Objects, namespace: str | None, clock: Clock, entropy: Entropy) -> None:
        self._objects = objects
        self._namespace = namespace
        self._entropy = entropy
        self._status = StatusWriter(objects, clock)
        self._reconcilers: dict[str, Reconciler] = {}
        self._watched_fields: dict[str, FieldSelector] = {}
        self._known = KnownObjects()
        self._listed: set[str] = set()
        """Kinds of which all objects are known, by their plural."""
        self._last_seen: dict[Key, Any] = {}
        self._failures: dict[Key, int] = {}
        self._group_of: dict[str, Callable[[Manifest], Hashable]] = {}
        self._heard: dict[str, Callable[[Manifest], None]] = {}
        self._depends_on: dict[str, Callable[[Manifest], Key]] = {}
        self._dependencies: dict[str, _Dependency] = {}
        self._last_notified: dict[Key, Any] = {}
        """Of objects that others depend on: the fields at the last notification of their dependents."""
        self._queues: dict[str, WorkQueue[Key]] = {}
        """By kind, so that Streams that wait for a controller take no workers from StreamClusters.

        Of a kind, the objects of one cluster take a part of the workers when there are other clusters. The same is so
        of objects of one group.
        """
        self._watch = WatchCheck()
        self._deleted: dict[str, set[str]] = {}
        """By kind that is being listed: uids of objects whose deletion was heard since the list began."""
        self._list_started_s: dict[str, float] = {}
        """By kind: when the last list began."""
        self.reconciled = 0
        self.failed = 0
        self.reconcile_s = 0.0
        """How long all reconciles together took, also those that failed."""

    def add(
        self,
        reconciler: Reconciler,
        watched_fields: FieldSelector = lambda _: None,
        *,
        depends_on: Callable[[Manifest], Key] | None = None,
        group_of: Callable[[Manifest], Hashable] | None = None,
        heard: Callable[[Manifest], None] = lambda _: None,
    ) -> None:
        """Register a kind.

        `watched_fields` selects the fields besides the specification whose change requeues an object. `depends_on`
        returns the object that one of this kind depends on. `group_of` returns what objects wait for together: those of
        one group take a part of the workers. `heard` is called with every version of an object that is heard of, before
        the object waits for a worker.
        """
        plural = reconciler.kind.plural
        self._heard[plural] = heard
        if group_of is not None:
            self._group_of[plural] = group_of
        if depends_on is not None:
            self._depends_on[plural] = depends_on
        self._reconcilers[plural] = reconciler
        self._queues[plural] = WorkQueue(self._work, group_of=self._sharing)
        self._watched_fields[plural] = watched_fields

    def add_dependency(self, kind: Kind, fields: FieldSelector, changed: Callable[[Key], None]) -> None:
        """Requeue dependents when `fields` of a `kind` object change, or it is deleted.

        ``changed`` is called first. Many dependents of one object are requeued a few at a time.
        """
        self._dependencies[kind.plural] = _Dependency(fields, changed)

    @property
    def kinds(self) -> list[Kind]:
        """Return the registered kinds."""
        return [reconciler.kind for reconciler in self._reconcilers.values()]

    def __len__(self) -> int:
        """Return how many objects are known."""
        return len(self._known)

    def conditions(self) -> Counter[tuple[str, str, str, str]]:
        """Count the conditions of all known objects by kind, type, status and reason."""
        found: Counter[tuple[str, str, str, str]] = Counter()
        for key, manifest in self._known.items():
            kind = self._reconcilers[key.plural].kind.kind
            for condition in (manifest.get("status") or {}).get("conditions") or ():
                status, reason = str(condition.get("status")), str(condition.get("reason"))
                found[kind, str(condition.get("type")), status, reason] += 1
        return found

    async def list_known(self, kind: Kind, namespace: str) -> Collection[Manifest]:
        """Return the objects of a kind in a namespace as they were last heard of, which may be late.

        They come from the API server until the first list of the kind has ended. Raises as Objects.list then.
        """
        if kind.plural in self._listed:
            return self._known.of(kind.plural, namespace)
        return await self._objects.list(kind, namespace)

    # -- events

    def on_event(self, kind: Kind, change: str | None, manifest: Manifest) -> None:
        """Handle a watch event: ``change`` is ADDED, MODIFIED, DELETED, or None for an object of the first list.

        Events of one object come in their order, but not those of two objects that have had the same name.
        """
        key = key_of(kind, manifest)
        if change == "DELETED" and kind.plural in self._deleted:
            self._deleted[kind.plural].add(_uid(manifest))
        known = self._known.get(key)
        if known is not None and is_of_another(manifest, known, is_gone=change == "DELETED"):
            return
        if change == "DELETED":
            self._forget(key)
        else:
            self._watch.on_event(key, _version(manifest))
            self._update(key, manifest)

    def child_changed(self, owner: Key) -> None:
        """Requeue the owner of a changed child; changes within a short time count as one."""
        if owner in self._known:
            self._queues[owner.plural].add(owner, limits.OPERATOR_CHILD_PAUSE_S)

    def _update(self, key: Key, manifest: Manifest) -> None:
        known = self._known.get(key)
        if known is not None and is_older(manifest, known):
            return
        if known is None and self._known.count(key.plural) >= limits.OPERATOR_OBJECTS_MAX:
            _logger.error(
                "too_many_objects",
                known=self._known.count(key.plural),
                ignored=f"{key.plural} {key.namespace}/{key.name}",
            )
            return
        self._known.put(key, manifest)
        self._heard[key.plural](manifest)
        self._notify_dependents(key, manifest)
        seen = (_desired_state(manifest), self._watched_fields[key.plural](manifest))
        wiped = not _has_conditions(manifest) and known is not None and _has_conditions(known)
        if self._last_seen.get(key) != seen or wiped:
            self._last_seen[key] = seen
            self._failures.pop(key, None)
            self._queues[key.plural].add(key)

    def _forget(self, key: Key) -> None:
        self._watch.on_event(key, None)
        if self._known.remove(key):
            self._last_seen.pop(key, None)
            self._failures.pop(key, None)
            self._queues[key.plural].add(key)
            self._notify_dependents(key, None)

    def _notify_dependents(self, key: Key, manifest: Manifest | None) -> None:
        dependency = self._dependencies.get(key.plural)
        if dependency is None:
            return
        before = self._last_notified.pop(key, None)
        if manifest is not None:
            self._last_notified[key] = dependency.fields(manifest)
        if self._last_notified.get(key) == before:
            return
        dependency.changed(key)
        for plural, depends_on in self._depends_on.items():
            dependents = [one for one, its in self._known.items(plural) if depends_on(its) == key]
            spread_s = min(len(dependents) * limits.OPERATOR_DEPENDENT_GAP_S, self._reconcilers[plural].period_s / 2)
            for number, dependent in enumerate(dependents):
                self._failures.pop(dependent, None)
                self._queues[plural].add(dependent, number * spread_s / len(dependents))

    # -- work

    def _sharing(self, key: Key) -> Hashable | None:
        """Return the object whose dependents may not take all workers: it may be away. None: no other needs any.

        Of a kind whose objects are in groups, return the group.
        """
        depends_on, manifest = self._depends_on.get(key.plural), self._known.get(key)
        if manifest is not None and key.plural in self._group_of:
            return self._group_of[key.plural](manifest)
        if depends_on is None or manifest is None or sum(map(self._known.count, self._dependencies)) < _SHARING:
            return None
        return depends_on(manifest)

    async def run(self, kinds: Iterable[Kind]) -> NoReturn:
        """Work on objects of these kinds until cancelled. Kinds that are installed later are in a call of their own."""
        async with asyncio.TaskGroup() as group:
            for kind in kinds:
                group.create_task(self._queues[kind.plural].run())
                group.create_task(self._list_periodically(self._reconcilers[kind.plural]))
        raise AssertionError("a group that is not cancelled does not end")

    async def _list_periodically(self, reconciler: Reconciler) -> NoReturn:
        kind, loop = reconciler.kind, asyncio.get_running_loop()
        while True:
            began_s = self._list_started_s[kind.plural] = loop.time()
            self._deleted[kind.plural] = set()
            try:
                listed = await self._objects.list(kind, self._namespace)
            except (TailraceError, ValueError) as error:
                _logger.warning("list_failed", kind=kind.kind, reason=str(error))
            else:
                await self._on_list(kind, listed, reconciler.period_s / 2)
            del self._deleted[kind.plural]
            await asyncio.sleep(max(0.0, began_s + reconciler.period_s - loop.time()))

    async def _on_list(self, kind: Kind, listed: tuple[Manifest, ...], spread_s: float) -> None:
        found = {key_of(kind, manifest): manifest for manifest in listed}
        versions = {key: _version(manifest) for key, manifest in found.items()}
        self._watch.on_list(kind.plural, versions, asyncio.get_running_loop().time())
        for key in [key for key, _ in self._known.items(kind.plural) if key not in found]:
            if not await self._forget_if_deleted(kind, key):
                break  # the API server does not answer any more: the next list is soon enough
        for number, (key, manifest) in enumerate(found.items()):
            if _uid(manifest) in self._deleted[kind.plural]:
                continue  # the list is older than the deletion
            self._update(key, manifest)
            if key in self._known:
                self._queues[key.plural].add(key, number * spread_s / len(found))
        self._listed.add(kind.plural)

    async def _forget_if_deleted(self, kind: Kind, key: Key) -> bool:
        """Forget an object that is not in a list, unless it was created after it. Return False without an answer."""
        try:
            self._update(key, await self._objects.get(kind, key.namespace, key.name))
        except NotFoundError:
            self._forget(key)
        except TailraceError as error:
            _logger.info("deletion_not_confirmed", kind=kind.kind, name=key.name, reason=str(error))
            return False
        return True

    async def _work(self, key: Key) -> float | None:
        """Reconcile an object; return the seconds until the next time, None when only a change brings one."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        try:
            return await self._reconcile(key)
        finally:
            self.reconcile_s += loop.time() - began_s

    async def _reconcile(self, key: Key) -> float | None:
        reconciler, manifest = self._reconcilers[key.plural], self._known.get(key)
        try:
            async with asyncio.timeout(limits.OPERATOR_RECONCILE_DEADLINE_S):
                if manifest is None:
                    await reconciler.gone(key.namespace, key.name)
                    return None
                outcome = await reconciler.reconcile(manifest)
                self._wrote(key, manifest, await self._status.write(reconciler.kind, manifest, outcome))
        except TimeoutError:
            message = f"reconciling took more than {limits.OPERATOR_RECONCILE_DEADLINE_S:g} s"
            return await self._failed(key, "Unavailable", message)
        except TailraceError as error:
            return await self._failed(key, "Unavailable" if error.retryable else "Failed", str(error))
        except Exception as error:
            _logger.exception("unexpected_error", kind=reconciler.kind.kind, namespace=key.namespace, name=key.name)
            return await self._failed(key, "InternalError", f"internal error of the operator: {error!r}")
        self.reconciled += 1
        self._failures.pop(key, None)
        return outcome.retry_after_s

    def _wrote(self, key: Key, before: Manifest, manifest: Manifest | None) -> None:
        """Remember an object as it was written: its watch event may be late, and the old one would be written again.

        A version that was heard of since `before` stays, because it may be newer: Events are created after the write.
        """
        if manifest is None or self._known.get(key) is not before:
            return
        if not is_older(manifest, before) and not is_deleted(before):
            self._known.put(key, manifest)

    async def _failed(self, key: Key, reason: str, message: str) -> float:
        """Return the pause before the next attempt; report repeated failures in condition Ready."""
        self.failed += 1
        count = self._failures[key] = self._failures.get(key, 0) + 1
        pause_s = min(limits.OPERATOR_RETRY_MAX_S, limits.OPERATOR_RETRY_MIN_S * 2.0 ** min(count - 1, 30))
        pause_s *= 0.75 + self._entropy.uniform() / 2  # spreads the retries of objects that failed together
        _logger.warning(
            "reconcile_failed",
            kind=self._reconcilers[key.plural].kind.kind,
            namespace=key.namespace,
            name=key.name,
            reason=message,
            failures=count,
            retry_s=round(pause_s, 1),
        )
        manifest = self._known.get(key)
        if count >= limits.OPERATOR_FAILURES_REPORT and manifest is not None:
            ready = Condition(READY, Status.UNKNOWN, reason, message, warn_on=Status.UNKNOWN)
            away = self._reconcilers[key.plural].away(manifest, message) if reason == "Unavailable" else ()
            outcome = Outcome((ready, *away), carried_out=False)
            try:
                written = await self._status.write(self._reconcilers[key.plural].kind, manifest, outcome)
                self._wrote(key, manifest, written)
            except TailraceError as error:
                _logger.info("status_not_written", reason=str(error))
        return pause_s

    # -- liveness

    def liveness_problem(self) -> str | None:
        """Return why the loop is not alive, in one sentence; None: it is. An API outage is not a problem."""
        now_s = asyncio.get_running_loop().time()
        for plural, began_s in self._list_started_s.items():
            silent_s = now_s - began_s
            if silent_s > 3 * self._reconcilers[plural].period_s + limits.OPERATOR_RECONCILE_DEADLINE_S:
                return f"{plural} have not been listed for {silent_s:.0f} s"
        missed = self._watch.missed()
        if missed is not None:
            return f"the watch of {missed.plural} has stopped: it missed a change of {missed.namespace}/{missed.name}"
        return None


def _version(manifest: Manifest) -> str:
    return str(manifest["metadata"]["resourceVersion"])


def _uid(manifest: Manifest) -> str:
    return str(manifest["metadata"]["uid"])


def _desired_state(manifest: Mapping[str, Any]) -> Any:
    """Return what users ask for in an object, in a form that can be compared."""
    metadata = manifest["metadata"]
    return (
        metadata.get("uid"),
        metadata.get("generation"),
        metadata.get("deletionTimestamp"),
        FINALIZER in (metadata.get("finalizers") or []),
        sorted((metadata.get("annotations") or {}).items()),
    )


def _has_conditions(manifest: Mapping[str, Any]) -> bool:
    """Return whether the status has conditions; another client may have removed them."""
    return bool((manifest.get("status") or {}).get("conditions"))
