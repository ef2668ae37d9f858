"""A Kubernetes API that is linearizable inside and unreliable outside (docs/design.md#faults).

`KubernetesCore` is the API server's truth: objects, versions, conflicts, watches, without time or faults (the HTTP
server of the tests serves it, too). `SimKubernetes` puts simulated time and faults around it: outages for all or for
one process, 429 and 5xx with and without effect, answers that get lost, conflicts after one's own success, effects long
after the answer, old lists, watches that are late, die silently, are closed or answer 410, objects and status wiped.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from sim.faults import FaultCounter
from sim.loop import SimLoop
from sim.process import ProcessKilledError, SimProcess
from tailrace.cluster.kubernetes import Kind, Listing, Manifest, WatchEvent
from tailrace.common import limits
from tailrace.common.errors import (
    AlreadyExistsError,
    DeadlineError,
    NotFoundError,
    TailraceError,
    UnavailableError,
    WriteConflictError,
)

HISTORY_MAX = 1000

Objects = Mapping[tuple[str, str], Manifest]
"""By plural of the kind, and name."""


def copied(value: Any) -> Any:
    """A copy of what JSON can hold."""
    if isinstance(value, dict):
        return {name: copied(item) for name, item in value.items()}
    return [copied(item) for item in value] if isinstance(value, list) else value


@dataclass(frozen=True, slots=True)
class Change:
    """A change of one object. ``before``: the object before it, None when it is new; ``manifest``: after it.

    ``kind`` is ``ADDED``, ``MODIFIED`` or ``DELETED``. A deleted object's manifest is its last state, with the
    version of the deletion.
    """

    version: int
    plural: str
    kind: str
    manifest: Manifest
    before: Manifest | None

    def seen(self, kind: Kind, labels: Mapping[str, str], since: str) -> WatchEvent | None:
        """Return the event that a watch of these labels from version `since` reports; None when it reports none.

        An object that starts to have the labels is ADDED. One that stops is DELETED, in its state before the change.
        """
        if self.plural != kind.plural or self.version <= int(since):
            return None
        had = self.before is not None and carries(self.before, labels)
        has = self.kind != "DELETED" and carries(self.manifest, labels)
        if has:
            return WatchEvent("MODIFIED" if had else "ADDED", copied(self.manifest))
        if not had:
            return None
        gone = copied(self.before)
        gone["metadata"]["resourceVersion"] = self.manifest["metadata"]["resourceVersion"]
        return WatchEvent("DELETED", gone)


class KubernetesCore:
    """The objects of one namespace. Every change has a version of its own, which is the version of the object, too."""

    def __init__(self, first_uid: int = 1) -> None:
        self.version = 100
        self.objects: dict[tuple[str, str], Manifest] = {}
        self.changes: list[Change] = []
        """Oldest first, as far back as a watch can begin."""
        self.compacted = self.version
        self.subscribers: list[Callable[[Change], None]] = []
        self._uids = first_uid

    def get(self, kind: Kind, name: str) -> Manifest:
        """See KubernetesApi.get."""
        return copied(self._object(kind, name))

    def create(self, kind: Kind, manifest: Manifest) -> Manifest:
        """See KubernetesApi.create."""
        name = manifest["metadata"]["name"]
        if (kind.plural, name) in self.objects:
            raise AlreadyExistsError(f"{kind.plural} {name} exists already")
        stored = copied(manifest)
        if kind.status_apart:
            stored.pop("status", None)
        self._uids += 1
        stored["metadata"]["uid"] = f"00000000-0000-4000-8000-{self._uids:012x}"
        return self._store(kind, "ADDED", stored)

    def replace(self, kind: Kind, manifest: Manifest) -> Manifest:
        """See KubernetesApi.replace."""
        found = self._compare(kind, manifest)
        stored = copied(manifest)
        if kind.status_apart:
            stored.pop("status", None)
            if "status" in found:
                stored["status"] = copied(found["status"])
        return self._changed(kind, found, stored)

    def replace_status(self, kind: Kind, manifest: Manifest) -> Manifest:
        """See KubernetesApi.replace_status."""
        found = self._compare(kind, manifest)
        stored = {**copied(found), "status": copied(manifest.get("status", {}))}
        return self._changed(kind, found, stored)

    def delete(self, kind: Kind, name: str) -> None:
        """Delete an object. Raises NotFoundError."""
        gone = self._object(kind, name)
        del self.objects[kind.plural, name]
        self._note(kind, "DELETED", copied(gone), gone)

    def list(self, kind: Kind, labels: Mapping[str, str]) -> Listing:
        """See KubernetesApi.list."""
        return listing(self.objects, kind, labels, self.version)

    def compact(self, keep: int = 0) -> None:
        """Forget all changes but the last `keep`; watches from before are answered 410."""
        dropped = self.changes[: len(self.changes) - keep]
        if dropped:
            self.compacted = dropped[-1].version
            del self.changes[: len(dropped)]

    def changes_since(self, kind: Kind, resource_version: str) -> Sequence[Change]:
        """The changes after a version; none when it is of the future. Raises UnavailableError: it is too old."""
        version = int(resource_version)
        if version < self.compacted:
            raise UnavailableError(f"watch of {kind.plural} from {version}: 410, too old resource version")
        return [change for change in self.changes if change.version > version and change.plural == kind.plural]

    def _object(self, kind: Kind, name: str) -> Manifest:
        found = self.objects.get((kind.plural, name))
        if found is None:
            raise NotFoundError(f"{kind.plural} {name} does not exist")
        return found

    def _compare(self, kind: Kind, manifest: Manifest) -> Manifest:
        metadata = manifest["metadata"]
        if not metadata.get("uid") or not metadata.get("resourceVersion"):
            raise ValueError("a replace needs metadata.uid and metadata.resourceVersion")
        found = self._object(kind, metadata["name"])["metadata"]
        if (found["uid"], found["resourceVersion"]) != (metadata["uid"], metadata["resourceVersion"]):
            raise WriteConflictError(f"{kind.plural} {metadata['name']} has been modified")
        return self._object(kind, metadata["name"])

    def _changed(self, kind: Kind, found: Manifest, stored: Manifest) -> Manifest:
        if stored == found:
            return copied(found)  # no change, no version
        return self._store(kind, "MODIFIED", stored)

    def _store(self, kind: Kind, change: str, stored: Manifest) -> Manifest:
        key = kind.plural, stored["metadata"]["name"]
        before = self.objects.get(key)
        self.objects[key] = stored
        self._note(kind, change, stored, before)
        return copied(stored)

    def _note(self, kind: Kind, verb: str, manifest: Manifest, before: Manifest | None) -> None:
        self.version += 1
        manifest["metadata"]["resourceVersion"] = str(self.version)
        change = Change(self.version, kind.plural, verb, copied(manifest), before)
        self.changes.append(change)
        if len(self.changes) > HISTORY_MAX:
            self.compact(HISTORY_MAX // 2)
        for subscriber in list(self.subscribers):
            subscriber(change)


def listing(
    objects: Mapping[tuple[str, str], Manifest], kind: Kind, labels: Mapping[str, str], version: int
) -> Listing:
    """The objects of a kind with the labels, by name."""
    found = (objects[key] for key in sorted(objects) if key[0] == kind.plural)
    items = tuple(copied(item) for item in found if carries(item, labels))
    return Listing(items, str(version))


def carries(manifest: Manifest, labels: Mapping[str, str]) -> bool:
    """Whether an object has the labels."""
    has = manifest["metadata"].get("labels") or {}
    return all(has.get(name) == value for name, value in labels.items())


class SimKubernetes(FaultCounter):
    """The API server in the simulated world: shared by all processes. `attach` gives a process its port.

    All chances are of one request or one watch.
    """

    CHANCES = MappingProxyType(
        {
            "throttled_chance": "kubernetes 429",
            "error_chance": "kubernetes 5xx",
            "error_after_effect_chance": "kubernetes 5xx after effect",
            "lost_reply_chance": "kubernetes reply lost",
            "own_conflict_chance": "conflict after own success",
            "late_chance": "late kubernetes effect",
            "slow_chance": "slow kubernetes",
            "stale_list_chance": "stale kubernetes list",
            "dead_watch_chance": "watch silently dead",
            "late_watch_chance": "watch late",
            "closed_watch_chance": "watch closed",
            "gone_watch_chance": "watch answered 410",
        }
    )

    def __init__(self, loop: SimLoop, seed: int) -> None:
        super().__init__()
        self.loop = loop
        self.random = random.Random(f"{seed}-kubernetes")
        self.core = KubernetesCore()
        self.throttled_chance = 0.0
        self.error_chance = 0.0
        self.error_after_effect_chance = 0.0
        self.lost_reply_chance = 0.0
        self.own_conflict_chance = 0.0
        """Of a write: it takes effect, and the answer is that of a repeated request: conflict, or exists already."""
        self.late_chance = 0.0
        """Of a write: the answer is an error at once, the effect comes up to ``late_max_s`` later, if it still can."""
        self.late_max_s = 30.0
        self.slow_chance = 0.02
        self.slow_max_s = 1.0
        self.stale_list_chance = 0.0
        self.dead_watch_chance = 0.0
        self.late_watch_chance = 0.0
        self.late_watch_max_s = 20.0
        self.closed_watch_chance = 0.0
        self.gone_watch_chance = 0.0
        self.operations = 0
        self._down_until_s = 0.0
        self._cut_until_s: dict[SimProcess, float] = {}
        self._old: tuple[dict[tuple[str, str], Manifest], int] = ({}, self.core.version)
        self._countdowns: dict[SimProcess, tuple[int, Callable[[SimProcess], None]]] = {}
        self.forget_enabled()

    def attach(self, process: SimProcess) -> AttachedKubernetes:
        """The KubernetesApi port of a process."""
        return AttachedKubernetes(self, process)

    # -- what a nemesis does

    def outage(self, seconds: float) -> None:
        """Cut all clients off from the API server for some time; open watches end or fall silent."""
        self.count("kubernetes outage")
        self._down_until_s = max(self._down_until_s, self.loop.time() + seconds)

    def cut_off(self, process: SimProcess, seconds: float) -> None:
        """One process does not reach the API server from now on for so long."""
        self.count("kubernetes cut off")
        self._cut_until_s[process] = self.loop.time() + seconds

    def heal(self) -> None:
        """End outages and cuts, and inject nothing any more. Watches that are dead stay so."""
        self._down_until_s = 0.0
        self._cut_until_s.clear()
        for name in vars(self):
            if name.endswith("_chance"):
                setattr(self, name, 0.0)

    def wipe(self, kind: Kind, name: str) -> bool:
        """Delete an object without notice to any client; False when there is none."""
        if (kind.plural, name) not in self.core.objects:
            return False
        self.count(f"wiped {kind.kind}")
        self.loop.trace("wipe", kind.plural, name)
        self.core.delete(kind, name)
        return True

    def wipe_all(self, kind: Kind) -> None:
        """Delete all objects of a kind."""
        for plural, name in sorted(self.core.objects):
            if plural == kind.plural:
                self.wipe(kind, name)

    def wipe_status(self, kind: Kind, name: str) -> bool:
        """Empty an object's status without notice to any client; False when there is none."""
        if "status" not in self.core.objects.get((kind.plural, name), {}):
            return False
        self.count("wiped status")
        self.loop.trace("wipe status", kind.plural, name)
        manifest = self.core.get(kind, name)
        manifest["status"] = {}
        self.core.replace_status(kind, manifest)
        return True

    def kill_at(self, process: SimProcess, requests: int, kill: Callable[[SimProcess], None]) -> None:
        """Kill the process at its n-th request from now, sent or not; `kill` is called in the world to clean up."""
        self._countdowns[process] = (requests, kill)

    # -- for the attached ports

    def dies_now(self, process: SimProcess) -> bool:
        """Count a request of a process; True when the process is to die with it."""
        if process not in self._countdowns:
            return False
        left, kill = self._countdowns.pop(process)
        if left > 0:
            self._countdowns[process] = (left - 1, kill)
            return False
        process.alive = False
        self.loop.call_world(0, kill, process)
        return True

    def reachable(self, process: SimProcess) -> bool:
        """Whether the process reaches the API server now."""
        now_s = self.loop.time()
        return now_s >= self._down_until_s and now_s >= self._cut_until_s.get(process, 0.0)

    def happens(self, chance: float, fault: str) -> bool:
        """Draw; count the fault if it happens."""
        if chance <= 0 or self.random.random() >= chance:
            return False
        self.count(fault)
        return True

    def delay_s(self) -> float:
        """How long one way takes."""
        # The order of the draws decides the traces of all seeds: first the share of the time, then whether it is slow.
        share, slow = self.random.random(), self.random.random() < self.slow_chance
        if slow:
            self.count("slow kubernetes")
        return share * (self.slow_max_s if slow else 0.01)

    def listed(self, kind: Kind, labels: Mapping[str, str]) -> Listing:
        """What a list shows: the objects, or an old state of them."""
        if self.stale_list_chance:
            if self.happens(self.stale_list_chance, "stale kubernetes list"):
                return listing(self._old[0], kind, labels, self._old[1])
            if self.random.random() < 0.5:
                self._old = (dict(self.core.objects), self.core.version)
        return self.core.list(kind, labels)

    def request(
        self, process: SimProcess, what: str, effect: Callable[[], Any], *, writes: bool
    ) -> asyncio.Future[Any]:
        """Run `effect` at some instant between now and the answer; the answer may still be an error."""
        self.operations += 1
        answer: asyncio.Future[Any] = self.loop.create_future()
        if not self.reachable(process):
            refused = self.random.random() < 0.5
            error = UnavailableError(f"{what}: connection refused") if refused else DeadlineError(f"{what}: no answer")
            self._reply_in(self.delay_s() if refused else limits.KUBERNETES_CALL_DEADLINE_S, answer, None, error)
        elif writes and self.happens(self.late_chance, "late kubernetes effect"):
            self.loop.call_world(self.random.random() * self.late_max_s, self._unanswered, what, effect)
            self._reply_in(self.delay_s(), answer, None, DeadlineError(f"{what}: no answer"))
        else:
            self.loop.call_world(self.delay_s(), self._act, process, what, effect, writes, answer)
        return answer

    def _act(
        self, process: SimProcess, what: str, effect: Callable[[], Any], writes: bool, answer: asyncio.Future[Any]
    ) -> None:
        self.loop.trace(what)
        result, error = None, None
        if self.happens(self.throttled_chance, "kubernetes 429"):
            error = UnavailableError(f"{what}: 429, too many requests")
        elif self.happens(self.error_chance, "kubernetes 5xx"):
            error = UnavailableError(f"{what}: 503")
        else:
            try:
                result = effect()
            except (TailraceError, ValueError) as failure:
                error = failure  # type: ignore[assignment]
            if not self.reachable(process) or self.happens(self.lost_reply_chance, "kubernetes reply lost"):
                result, error = None, DeadlineError(f"{what}: no answer")
            elif self.happens(self.error_after_effect_chance, "kubernetes 5xx after effect"):
                result, error = None, UnavailableError(f"{what}: 500")
            elif writes and error is None and self.happens(self.own_conflict_chance, "conflict after own success"):
                kind = AlreadyExistsError if what.startswith("create") else WriteConflictError
                result, error = None, kind(f"{what}: 409")  # type: ignore[assignment]
        self._reply_in(self.delay_s(), answer, result, error)

    def _reply_in(self, delay_s: float, answer: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
        def reply() -> None:
            if answer.done():
                return
            if error is None:
                answer.set_result(result)
            else:
                answer.set_exception(error)
                answer.exception()

        self.loop.call_world(delay_s, reply)

    def _unanswered(self, what: str, effect: Callable[[], Any]) -> None:
        self.loop.trace("late", what)
        try:
            effect()
        except TailraceError as error:
            self.loop.trace(type(error).__name__)  # what it compared has changed meanwhile


class AttachedKubernetes:
    """The KubernetesApi port of one process."""

    def __init__(self, api: SimKubernetes, process: SimProcess) -> None:
        self._api = api
        self._process = process

    async def _request(self, what: str, effect: Callable[[], Any], *, writes: bool = False) -> Any:
        self._process.check()
        if self._api.dies_now(self._process):
            if self._api.random.random() < 0.5:
                self._api.request(self._process, what, effect, writes=writes)
            raise ProcessKilledError(self._process.name)
        result = await self._api.request(self._process, what, effect, writes=writes)
        self._process.check()
        return result

    async def close(self) -> None:
        """See HttpKubernetes.close."""

    async def get(self, kind: Kind, name: str) -> Manifest:
        """See KubernetesApi.get."""
        found: Manifest = await self._request(f"get {kind.plural} {name}", lambda: self._api.core.get(kind, name))
        return found

    async def create(self, kind: Kind, manifest: Manifest) -> Manifest:
        """See KubernetesApi.create."""
        return await self._write("create", kind, manifest, self._api.core.create)

    async def replace(self, kind: Kind, manifest: Manifest) -> Manifest:
        """See KubernetesApi.replace."""
        return await self._write("replace", kind, manifest, self._api.core.replace)

    async def replace_status(self, kind: Kind, manifest: Manifest) -> Manifest:
        """See KubernetesApi.replace_status."""
        return await self._write("replace status", kind, manifest, self._api.core.replace_status)

    async def _write(
        self, verb: str, kind: Kind, manifest: Manifest, effect: Callable[[Kind, Manifest], Manifest]
    ) -> Manifest:
        sent = copied(manifest)
        what = f"{verb} {kind.plural} {sent['metadata']['name']}"
        stored: Manifest = await self._request(what, lambda: effect(kind, sent), writes=True)
        return stored

    async def list(self, kind: Kind, labels: Mapping[str, str]) -> Listing:
        """See KubernetesApi.list."""
        found: Listing = await self._request(f"list {kind.plural}", lambda: self._api.listed(kind, labels))
        return found

    async def watch(
        self, kind: Kind, labels: Mapping[str, str], resource_version: str
    ) -> AsyncGenerator[WatchEvent, None]:
        """See KubernetesApi.watch."""
        api = self._api
        if api.happens(api.gone_watch_chance, "watch answered 410"):
            api.core.compact()
        queue: asyncio.Queue[WatchEvent | None] = asyncio.Queue()
        begun = await self._request(
            f"watch {kind.plural}", lambda: _Watch(api, self._process, kind, labels, resource_version, queue)
        )
        ends_at_s = api.loop.time() + limits.KUBERNETES_WATCH_S
        try:
            while (event := await asyncio.wait_for(queue.get(), ends_at_s - api.loop.time())) is not None:
                self._process.check()
                yield event
        except TimeoutError:
            return  # as servers end watches
        finally:
            begun.end()
        raise UnavailableError(f"watch of {kind.plural}: the connection was closed")


class _Watch:
    """One watch, on the server's side."""

    def __init__(
        self,
        api: SimKubernetes,
        process: SimProcess,
        kind: Kind,
        labels: Mapping[str, str],
        resource_version: str,
        queue: asyncio.Queue[WatchEvent | None],
    ) -> None:
        self._api = api
        self._process = process
        self._kind = kind
        self._labels = labels
        self._since = resource_version
        self._queue = queue
        self._pending: list[WatchEvent] = []
        self._dead = api.happens(api.dead_watch_chance, "watch silently dead")
        self._late = api.happens(api.late_watch_chance, "watch late")
        for change in api.core.changes_since(kind, resource_version):
            self._on_change(change)
        api.core.subscribers.append(self._on_change)
        if api.happens(api.closed_watch_chance, "watch closed"):
            api.loop.call_world(api.random.random() * 20.0, self._close)

    def end(self) -> None:
        """The client has gone."""
        if self._on_change in self._api.core.subscribers:
            self._api.core.subscribers.remove(self._on_change)

    def _on_change(self, change: Change) -> None:
        event = change.seen(self._kind, self._labels, self._since)
        if event is None:
            return
        if not self._process.alive:
            self.end()
            return
        if not self._api.reachable(self._process) and not self._dead:
            self._dead = True  # the connection broke; the client learns of it, or does not
            self._api.count("watch silently dead")
            if self._api.random.random() < 0.5:
                self._close()
        if self._dead:
            return
        self._pending.append(event)
        late_s = self._api.random.random() * self._api.late_watch_max_s if self._late else 0.0
        self._api.loop.call_world(self._api.delay_s() + late_s, self._deliver)

    def _deliver(self) -> None:
        event = self._pending.pop(0)  # in order, whichever timer comes first
        if not self._dead:
            self._queue.put_nowait(WatchEvent(event.kind, copied(event.manifest)))

    def _close(self) -> None:
        self.end()
        self._queue.put_nowait(None)
