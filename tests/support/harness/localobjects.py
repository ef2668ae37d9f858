"""Resources in memory behind the operator's port, and a loop in steps that reconciles them."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from tailrace.cluster.kubernetes import STREAM_CLUSTERS, Kind, Manifest
from tailrace.common import limits
from tailrace.common.errors import NotFoundError, UnavailableError, WriteConflictError
from tailrace_operator.kube.manifests import Notice
from tailrace_operator.kube.objects import Page
from tailrace_operator.reconcile.outcome import Condition, Outcome, Reconciler
from tailrace_operator.reconcile.status_writer import StatusWriter

NAMESPACE = "here"
NOW = "2026-01-02T03:04:05Z"
_PASSES_MAX = 20


class LocalObjects:
    """Implements Objects. ``events``: what was created. ``terminating``: namespaces that are being deleted."""

    def __init__(self) -> None:
        self.events: list[tuple[str, Notice]] = []
        self.terminating: set[str] = set()
        self.reachable = True
        self.gets = 0
        self._objects: dict[tuple[str, str, str], Manifest] = {}
        self._version = 0

    # -- what users and the API server do

    def make(
        self, kind: Kind, name: str, spec: Mapping[str, Any], namespace: str = NAMESPACE, **metadata: Any
    ) -> Manifest:
        """Create an object; ``metadata``: more metadata."""
        metadata |= {"namespace": namespace, "name": name, "uid": str(uuid.uuid4()), "generation": 1}
        manifest = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata, "spec": deepcopy(spec)}
        assert (kind.plural, namespace, name) not in self._objects
        return self._store(kind, manifest)

    def edit(self, kind: Kind, name: str, spec: Mapping[str, Any], namespace: str = NAMESPACE) -> None:
        """Change fields of a spec."""
        manifest = self._find(kind, namespace, name)
        manifest["spec"] = {**manifest["spec"], **deepcopy(dict(spec))}
        manifest["metadata"]["generation"] += 1
        self._store(kind, manifest)

    def put_status(self, kind: Kind, name: str, status: Mapping[str, Any], namespace: str = NAMESPACE) -> None:
        """Replace a status, as a controller of Kubernetes does."""
        self._store(kind, self._find(kind, namespace, name) | {"status": deepcopy(dict(status))})

    def annotate(self, kind: Kind, name: str, annotation: str, namespace: str = NAMESPACE, value: str = "true") -> None:
        """Set an annotation."""
        manifest = self._find(kind, namespace, name)
        manifest["metadata"]["annotations"] = {annotation: value}
        self._store(kind, manifest)

    def remove(self, kind: Kind, name: str, namespace: str = NAMESPACE) -> None:
        """Delete an object as ``kubectl delete`` does: it stays while it has a finalizer."""
        manifest = self._find(kind, namespace, name)
        manifest["metadata"]["deletionTimestamp"] = NOW
        self._store(kind, manifest)

    def exists(self, kind: Kind, name: str, namespace: str = NAMESPACE) -> bool:
        """Return whether the object exists."""
        return (kind.plural, namespace, name) in self._objects

    def reasons(self, name: str) -> list[str]:
        """Return the reasons of the Events about an object, oldest first."""
        return [notice.reason for about, notice in self.events if about == name]

    def _find(self, kind: Kind, namespace: str, name: str) -> Manifest:
        found = self._objects.get((kind.plural, namespace, name))
        if found is None:
            raise NotFoundError(f"{kind.plural} {name} does not exist")
        return deepcopy(found)

    def _store(self, kind: Kind, manifest: Manifest) -> Manifest:
        self._version += 1
        metadata = manifest["metadata"]
        metadata["resourceVersion"] = str(self._version)
        key = (kind.plural, metadata["namespace"], metadata["name"])
        self._objects[key] = manifest
        if metadata.get("deletionTimestamp") and not metadata.get("finalizers"):
            del self._objects[key]
        return deepcopy(manifest)

    def _compared(self, kind: Kind, manifest: Manifest) -> Manifest:
        if not self.reachable:
            raise UnavailableError("the API server does not answer")
        metadata = manifest["metadata"]
        found = self._find(kind, metadata["namespace"], metadata["name"])
        if any(found["metadata"][name] != metadata[name] for name in ("uid", "resourceVersion")):
            raise WriteConflictError(f"{kind.plural} {metadata['name']} has been modified")
        return found

    # -- the port

    async def get(self, kind: Kind, namespace: str, name: str) -> Manifest:
        """See Objects.get."""
        self.gets += 1
        if not self.reachable:
            raise UnavailableError("the API server does not answer")
        return self._find(kind, namespace, name)

    async def list(
        self, kind: Kind, namespace: str | None, labels: Mapping[str, str] | None = None
    ) -> tuple[Manifest, ...]:
        """See Objects.list."""
        wanted = (labels or {}).items()
        return tuple(
            deepcopy(item)
            for (plural, place, _), item in sorted(self._objects.items())
            if plural == kind.plural
            and namespace in (None, place)
            and wanted <= item["metadata"].get("labels", {}).items()
        )

    async def page(self, kind: Kind, namespace: str | None, rest: str | None = None) -> Page:
        """See Objects.page; all are one page."""
        return Page(await self.list(kind, namespace), None)

    async def apply(self, kind: Kind, namespace: str, manifest: Manifest, *, only_new: bool = False) -> Manifest:
        """See Objects.apply; fields of the spec are merged at its top, all others replaced."""
        name, own = manifest["metadata"]["name"], deepcopy(dict(manifest))
        if not self.exists(kind, name, namespace):
            if "uid" in own["metadata"]:
                raise WriteConflictError(f"{kind.plural} {name} is gone")
            own["metadata"] |= {"uid": str(uuid.uuid4()), "generation": 1, "creationTimestamp": NOW}
            return self._store(kind, own)
        found = self._find(kind, namespace, name)
        if only_new:
            raise WriteConflictError(f"{kind.plural} {name} exists")
        if manifest["metadata"]["uid"] != found["metadata"]["uid"]:
            raise WriteConflictError(f"{kind.plural} {name} is another one")
        if manifest["metadata"].get("resourceVersion") not in (None, found["metadata"]["resourceVersion"]):
            raise WriteConflictError(f"{kind.plural} {name} has been modified")
        found["metadata"] |= own.pop("metadata")
        spec = found.get("spec", {}) | own.pop("spec", {})
        return self._store(kind, {**found, **own, **({"spec": spec} if spec else {})})

    async def merge_status(self, kind: Kind, manifest: Manifest, status: Mapping[str, Any]) -> Manifest:
        """See Objects.merge_status."""
        found = self._compared(kind, manifest)
        found["status"] = _patched(found.get("status"), deepcopy(dict(status)))
        return self._store(kind, found)

    async def merge_spec(self, kind: Kind, manifest: Manifest, spec: Mapping[str, Any]) -> Manifest:
        """See Objects.merge_spec."""
        found = self._compared(kind, manifest)
        found["spec"] = _patched(found.get("spec"), deepcopy(dict(spec)))
        return self._store(kind, found)

    async def set_finalizers(self, kind: Kind, manifest: Manifest, finalizers: Sequence[str]) -> Manifest:
        """See Objects.set_finalizers."""
        found = self._compared(kind, manifest)
        found["metadata"]["finalizers"] = [*finalizers]
        return self._store(kind, found)

    async def delete(self, kind: Kind, namespace: str, name: str, uid: str) -> None:
        """See Objects.delete."""
        if self._find(kind, namespace, name)["metadata"]["uid"] != uid:
            raise WriteConflictError(f"{kind.plural} {name} is another one")
        self.remove(kind, name, namespace)

    async def create_event(self, kind: Kind, manifest: Manifest, notice: Notice, now: str) -> None:
        """See Objects.create_event."""
        self.events.append((manifest["metadata"]["name"], notice))

    async def namespace_is_terminating(self, namespace: str) -> bool:
        """See Objects.namespace_is_terminating."""
        return namespace in self.terminating


class CountingObjects(LocalObjects):
    """Counts lists by the plural of their kind, and lets others run meanwhile, as an API server does."""

    def __init__(self) -> None:
        super().__init__()
        self.lists: Counter[str] = Counter()

    async def list(
        self, kind: Kind, namespace: str | None, labels: Mapping[str, str] | None = None
    ) -> tuple[Manifest, ...]:
        """See Objects.list."""
        self.lists[kind.plural] += 1
        await asyncio.sleep(0)
        return await super().list(kind, namespace, labels)


@dataclass
class Idle:
    """Implements Reconciler, and does nothing: the loop knows the objects of its kind."""

    kind: Kind
    period_s: float = limits.OPERATOR_PERIOD_S

    async def reconcile(self, manifest: Manifest) -> Outcome:
        """See Reconciler.reconcile."""
        return Outcome()

    def away(self, manifest: Manifest, message: str) -> tuple[Condition, ...]:
        """See Reconciler.away."""
        return ()

    async def gone(self, namespace: str, name: str) -> None:
        """See Reconciler.gone."""


def _patched(found: Any, patch: Any) -> Any:
    """Return the result of a JSON merge patch (RFC 7386)."""
    if not isinstance(patch, dict):
        return patch
    before = found if isinstance(found, dict) else {}
    after = {**before, **{name: _patched(before.get(name), value) for name, value in patch.items()}}
    return {name: value for name, value in after.items() if value is not None}


class StoppedClock:
    """The same time for ever, NOW."""

    def now_ms(self) -> int:
        return 1_767_323_045_000


@dataclass
class Hand:
    """Reconciles single objects, and writes each outcome as the operator's loop does."""

    objects: LocalObjects
    reconcilers: Mapping[str, Reconciler]
    cluster: str = "main"
    outcomes: list[Outcome] = field(default_factory=list)

    def make_cluster(self) -> None:
        """Create a StreamCluster with the fields that Streams need."""
        self.objects.make(STREAM_CLUSTERS, self.cluster, {})

    async def look(self, kind: Kind, name: str, namespace: str = NAMESPACE) -> Outcome:
        """Reconcile an object until no immediate retry is asked for; return the last outcome."""
        reconciler = self.reconcilers[kind.plural]
        for _ in range(_PASSES_MAX):
            manifest = self.objects._find(kind, namespace, name)
            outcome = await reconciler.reconcile(deepcopy(manifest))
            await StatusWriter(self.objects, StoppedClock()).write(kind, manifest, outcome)
            self.outcomes.append(outcome)
            if outcome.retry_after_s != 0:
                return outcome
        raise AssertionError(f"{kind.plural} {name} is reconciled for ever")

    def status(self, kind: Kind, name: str, namespace: str = NAMESPACE) -> dict[str, Any]:
        """Return the written status."""
        found: dict[str, Any] = self.objects._find(kind, namespace, name).get("status", {})
        return found

    def condition(self, kind: Kind, name: str, condition: str) -> tuple[str, str]:
        """Return status and reason of a condition."""
        for item in self.status(kind, name)["conditions"]:
            if item["type"] == condition:
                return item["status"], item["reason"]
        raise AssertionError(f"{kind.plural} {name} has no condition {condition}")
