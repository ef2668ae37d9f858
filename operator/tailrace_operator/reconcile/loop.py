"""Reconciling: when which object is looked at (ADR 0015).

Four things bring an object on: a change that the watch tells, a change of the object that it follows, its period, and a
failure before. Each period all objects of a kind are listed: so a watch that has fallen silent costs a period and no
more, and it is noticed. An object is reconciled from the newest state that was heard of, by one call at a time.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import structlog

from tailrace.common import limits
from tailrace.common.errors import NotFoundError, TailraceError
from tailrace_operator.kube.manifests import FINALIZER
from tailrace_operator.reconcile.keys import Key, key_of
from tailrace_operator.reconcile.outcome import READY, Condition, Outcome, Truth
from tailrace_operator.reconcile.status_writer import settle
from tailrace_operator.reconcile.watch_check import WatchCheck
from tailrace_operator.reconcile.work_queue import WorkQueue

if TYPE_CHECKING:
    from typing import NoReturn

    from tailrace.cluster.kubernetes import Kind, Manifest
    from tailrace.common.ports import Clock, Entropy
    from tailrace_operator.kube.objects import Objects
    from tailrace_operator.reconcile.outcome import Reconciler

_logger = structlog.get_logger()

Notable: TypeAlias = Callable[["Manifest"], Any]


class Rounds:
    """All objects of all kinds that are reconciled. ``namespace`` None: those of all namespaces."""

    def __init__(self, objects: Objects, namespace: str | None, clock: Clock, entropy: Entropy) -> None:
        self._objects = objects
        self._namespace = namespace
        self._clock = clock
        self._entropy = entropy
        self._reconcilers: dict[str, Reconciler] = {}
        self._notable: dict[str, Notable] = {}
        self._known: dict[Key, Manifest] = {}
        self._counts: Counter[str] = Counter()
        self._noted: dict[Key, Any] = {}
        self._failures: dict[Key, int] = {}
        self._leader_of: dict[str, Callable[[Manifest], Key]] = {}
        self._leaders: dict[str, tuple[Notable, Callable[[Key], None]]] = {}
        self._told: dict[Key, Any] = {}
        """Of objects that others follow: what these were told of last."""
        self._queues: dict[str, WorkQueue[Key]] = {}
        """By kind: Streams that wait for their controller leave the workers of StreamClusters alone."""
        self._watch = WatchCheck()
        self._rounds_s: dict[str, float] = {}
        """When a round over a kind was begun last."""
        self.reconciled = 0
        self.failed = 0

    def add(
        self,
        reconciler: Reconciler,
        notable: Notable = lambda _: None,
        *,
        follows: Callable[[Manifest], Key] | None = None,
    ) -> None:
        """Register a kind. `notable`: what of an object, besides its specification, is worth a look when it changes.

        ``follows``: the object that one of the kind depends on.
        """
        plural = reconciler.kind.plural
        if follows is not None:
            self._leader_of[plural] = follows
        self._reconcilers[plural] = reconciler
        self._queues[plural] = WorkQueue(self._work)
        self._notable[plural] = notable

    def lead(self, kind: Kind, told: Notable, changed: Callable[[Key], None]) -> None:
        """Let the objects that follow one of `kind` be looked at when what is `told` of it changes, or it is gone.

        ``changed`` is called before they are. Of many that follow one, a few are looked at at a time.
        """
        self._leaders[kind.plural] = (told, changed)

    @property
    def kinds(self) -> list[Kind]:
        """The kinds that are registered."""
        return [reconciler.kind for reconciler in self._reconcilers.values()]

    def __len__(self) -> int:
        """How many objects are known."""
        return len(self._known)

    # -- what is heard

    def heard(self, kind: Kind, change: str | None, manifest: Manifest) -> None:
        """An event of the watch: ``change`` is ADDED, MODIFIED, DELETED, or None for what was there already."""
        key = key_of(kind, manifest)
        if change == "DELETED":
            self._forget(key)
        else:
            self._watch.heard(key, _version(manifest))
            self._note(key, manifest)

    def child_changed(self, owner: Key) -> None:
        """Something that belongs to an object changed by itself; several changes in a moment count as one."""
        if owner in self._known:
            self._queues[owner.plural].add(owner, limits.OPERATOR_CHILD_PAUSE_S)

    def _note(self, key: Key, manifest: Manifest) -> None:
        known = self._known.get(key)
        if known is not None and _is_older(manifest, known):
            return
        if known is None and self._counts[key.plural] >= limits.OPERATOR_OBJECTS_MAX:
            _logger.error(
                "too_many_objects",
                known=self._counts[key.plural],
                ignored=f"{key.plural} {key.namespace}/{key.name}",
            )
            return
        self._counts[key.plural] += known is None
        self._known[key] = manifest
        self._tell_followers(key, manifest)
        noted = (_essence(manifest), self._notable[key.plural](manifest))
        wiped = not _has_conditions(manifest) and known is not None and _has_conditions(known)
        if self._noted.get(key) != noted or wiped:
            self._noted[key] = noted
            self._failures.pop(key, None)
            self._queues[key.plural].add(key)

    def _forget(self, key: Key) -> None:
        self._watch.heard(key, None)
        if self._known.pop(key, None) is not None:
            self._counts[key.plural] -= 1
            self._noted.pop(key, None)
            self._failures.pop(key, None)
            self._queues[key.plural].add(key)
            self._tell_followers(key, None)

    def _tell_followers(self, key: Key, manifest: Manifest | None) -> None:
        if key.plural not in self._leaders:
            return
        told, changed = self._leaders[key.plural]
        before = self._told.pop(key, None)
        if manifest is not None:
            self._told[key] = told(manifest)
        if self._told.get(key) == before:
            return
        changed(key)
        for plural, leader_of in self._leader_of.items():
            followers = [one for one, its in self._known.items() if one.plural == plural and leader_of(its) == key]
            spread_s = min(len(followers) * limits.OPERATOR_FOLLOW_GAP_S, self._reconcilers[plural].period_s / 2)
            for number, follower in enumerate(followers):
                self._failures.pop(follower, None)
                self._queues[plural].add(follower, number * spread_s / len(followers))

    # -- what runs

    async def run(self) -> NoReturn:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as group:
            for queue in self._queues.values():
                group.create_task(queue.run())
            for reconciler in self._reconcilers.values():
                group.create_task(self._go_round(reconciler))
        raise AssertionError("a group that is not cancelled does not end")

    async def _go_round(self, reconciler: Reconciler) -> NoReturn:
        kind, loop = reconciler.kind, asyncio.get_running_loop()
        while True:
            began_s = self._rounds_s[kind.plural] = loop.time()
            try:
                listed = await self._objects.list(kind, self._namespace)
            except (TailraceError, ValueError) as error:
                _logger.warning("round_failed", kind=kind.kind, reason=str(error))
            else:
                await self._take_in(kind, listed, reconciler.period_s / 2)
            await asyncio.sleep(max(0.0, began_s + reconciler.period_s - loop.time()))

    async def _take_in(self, kind: Kind, listed: tuple[Manifest, ...], spread_s: float) -> None:
        found = {key_of(kind, manifest): manifest for manifest in listed}
        self._watch.listed(kind.plural, {key: _version(manifest) for key, manifest in found.items()})
        for key in [key for key in self._known if key.plural == kind.plural and key not in found]:
            await self._forget_if_gone(kind, key)
        for number, (key, manifest) in enumerate(found.items()):
            self._note(key, manifest)
            if key in self._known:
                self._queues[key.plural].add(key, number * spread_s / len(found))

    async def _forget_if_gone(self, kind: Kind, key: Key) -> None:
        """What a list does not show may have been made after it."""
        try:
            self._note(key, await self._objects.get(kind, key.namespace, key.name))
        except NotFoundError:
            self._forget(key)
        except TailraceError as error:
            _logger.info("not_known_whether_gone", kind=kind.kind, name=key.name, reason=str(error))

    async def _work(self, key: Key) -> float | None:
        reconciler, manifest = self._reconcilers[key.plural], self._known.get(key)
        try:
            async with asyncio.timeout(limits.OPERATOR_RECONCILE_DEADLINE_S):
                if manifest is None:
                    await reconciler.gone(key.namespace, key.name)
                    return None
                outcome = await reconciler.reconcile(manifest)
                await settle(self._objects, self._clock, reconciler.kind, manifest, outcome)
        except TimeoutError:
            return await self._failed(key, "Unavailable", f"no end within {limits.OPERATOR_RECONCILE_DEADLINE_S:g} s")
        except TailraceError as error:
            return await self._failed(key, "Unavailable" if error.retryable else "Failed", str(error))
        except Exception as error:
            _logger.exception("unexpected", kind=reconciler.kind.kind, namespace=key.namespace, name=key.name)
            return await self._failed(key, "InternalError", f"the operator failed: {error!r}")
        self.reconciled += 1
        self._failures.pop(key, None)
        return outcome.retry_after_s

    async def _failed(self, key: Key, reason: str, message: str) -> float:
        """Tell it when it is not the first time; the pause before the next attempt."""
        self.failed += 1
        count = self._failures[key] = self._failures.get(key, 0) + 1
        pause_s = min(limits.OPERATOR_RETRY_MAX_S, limits.OPERATOR_RETRY_MIN_S * 2.0 ** min(count - 1, 30))
        pause_s *= 0.75 + self._entropy.uniform() / 2  # so that what failed together does not try together
        _logger.warning(
            "not_reconciled",
            kind=self._reconcilers[key.plural].kind.kind,
            namespace=key.namespace,
            name=key.name,
            reason=message,
            failures=count,
            retry_s=round(pause_s, 1),
        )
        manifest = self._known.get(key)
        if count >= limits.OPERATOR_FAILURES_REPORT and manifest is not None:
            outcome = Outcome((Condition(READY, Truth.UNKNOWN, reason, message, bad=Truth.UNKNOWN),))
            try:
                await settle(self._objects, self._clock, self._reconcilers[key.plural].kind, manifest, outcome)
            except TailraceError as error:
                _logger.info("status_not_written", reason=str(error))
        return pause_s

    # -- whether it goes on

    def trouble(self) -> str | None:
        """Why this is not alive, in one sentence; None: it is. An API server that does not answer is no reason."""
        now_s = asyncio.get_running_loop().time()
        for plural, began_s in self._rounds_s.items():
            silent_s = now_s - began_s
            if silent_s > 3 * self._reconcilers[plural].period_s + limits.OPERATOR_RECONCILE_DEADLINE_S:
                return f"no round over {plural} was begun for {silent_s:.0f} s"
        missed = self._watch.missed()
        if missed is not None:
            return f"the watch of {missed.plural} stands still: it did not tell of {missed.namespace}/{missed.name}"
        return None


def _version(manifest: Manifest) -> str:
    return str(manifest["metadata"]["resourceVersion"])


def _is_older(manifest: Manifest, known: Manifest) -> bool:
    """Whether it is an older state of the same object, as far as it matters: its generation only rises."""
    new, old = manifest["metadata"], known["metadata"]
    same = new.get("uid") == old.get("uid")
    return same and int(new.get("generation") or 0) < int(old.get("generation") or 0)


def _essence(manifest: Mapping[str, Any]) -> Any:
    """What an object is asked to be."""
    metadata = manifest["metadata"]
    return (
        metadata.get("uid"),
        metadata.get("generation"),
        metadata.get("deletionTimestamp"),
        FINALIZER in (metadata.get("finalizers") or []),
        sorted((metadata.get("annotations") or {}).items()),
    )


def _has_conditions(manifest: Mapping[str, Any]) -> bool:
    """Somebody may have wiped them."""
    return bool((manifest.get("status") or {}).get("conditions"))
