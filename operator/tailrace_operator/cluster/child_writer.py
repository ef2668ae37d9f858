"""Read, apply and delete the children of a StreamCluster or a Pipeline (ADR 0017).

An owner may be deleted without its children (`kubectl delete --cascade=orphan`) while it is reconciled. An apply from
before the deletion would make it their owner again, and Kubernetes deletes objects whose owner does not exist. So an
apply changes only the version of a child that was read before the owner was found to exist.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, Protocol, TypeAlias, TypeVar

import structlog

from tailrace.common import limits
from tailrace.common.errors import NotFoundError, WriteConflictError
from tailrace_operator.cluster import names
from tailrace_operator.cluster.name_conflicts import is_owned, name_conflict
from tailrace_operator.kube.manifests import is_deleted
from tailrace_operator.kube.objects import CRON_JOBS, DEPLOYMENTS, JOBS, SERVICES, STATEFUL_SETS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from tailrace.cluster.kubernetes import Kind, Manifest
    from tailrace_operator.cluster.render import Child
    from tailrace_operator.kube.objects import Objects

Existing: TypeAlias = "Mapping[tuple[str, str], tuple[Kind, Manifest]]"
"""Objects by the plural of their kind and their name."""

_WORKLOADS = (STATEFUL_SETS, DEPLOYMENTS, JOBS, CRON_JOBS)

_logger = structlog.get_logger()


class Plan(Protocol):
    """What children are rendered from: at least their owner."""

    @property
    def name(self) -> str:
        """Return the owner's name."""
        ...

    @property
    def namespace(self) -> str:
        """Return the owner's namespace."""
        ...

    @property
    def uid(self) -> str:
        """Return the owner's uid."""
        ...


P = TypeVar("P", bound=Plan)


class OwnerDeletedError(Exception):
    """The owner was deleted since its reconciliation began: its children are not to be changed any more."""


class ChildWriter(Generic[P]):
    """Writes the children of owners of one kind; ``children`` renders them."""

    def __init__(self, objects: Objects, owner: Kind, children: Callable[[P], tuple[Child, ...]]) -> None:
        self._objects = objects
        self._owner = owner
        self._children = children

    async def existing(self, plan: P) -> Existing:
        """Return the existing objects that have the names of the children."""
        existing: dict[tuple[str, str], tuple[Kind, Manifest]] = {}
        for child in self._children(plan):
            try:
                found = await self._objects.get(child.kind, plan.namespace, child.name)
            except NotFoundError:
                continue
            existing[child.kind.plural, child.name] = child.kind, found
        return existing

    async def apply(self, plan: P, existing: Existing, *, pods: bool) -> dict[str, Manifest]:
        """Apply the children, with or without the pods; return the last one of each kind by its plural.

        `existing`: the objects that were checked.

        Raises:
            OwnerDeletedError: the owner does not exist any more; what was applied before stays.
            BadRequestError: the API server refuses a child.
            WriteConflictError: an object with a child's name was created or replaced since the check, or others
            change it all the time.
        """
        await self._check_owner(plan)
        applied: dict[str, Manifest] = {}
        for child in self._children(plan):
            if pods or child.kind not in _WORKLOADS:
                seen = existing.get((child.kind.plural, child.name))
                applied[child.kind.plural] = await self._apply_one(plan, child, seen[1] if seen else None)
        return applied

    async def _apply_one(self, plan: P, child: Child, seen: Manifest | None) -> Manifest:
        """Change exactly the object that was checked, or create it if there was none."""
        if seen is None:
            return await self._objects.apply(child.kind, plan.namespace, child.manifest, only_new=True)
        for _ in range(limits.OPERATOR_CONFLICTS_MAX):
            compared = {name: seen["metadata"][name] for name in ("uid", "resourceVersion")}
            manifest = {**child.manifest, "metadata": {**child.manifest["metadata"], **compared}}
            try:
                return await self._objects.apply(child.kind, plan.namespace, manifest)
            except WriteConflictError as error:
                conflict = error
            seen = await self._read_again(plan, child, compared["uid"])
            if seen is None:
                break
        raise conflict

    async def _read_again(self, plan: P, child: Child, uid: str) -> Manifest | None:
        """Return the child again; None: it is another object, or belongs to another owner, or is gone."""
        try:
            found = await self._objects.get(child.kind, plan.namespace, child.name)
        except NotFoundError:
            found = None
        await self._check_owner(plan)
        if found is None or found["metadata"]["uid"] != uid:
            return None
        return None if name_conflict(self._owner, plan.name, plan.uid, [(child.kind, found)]) else found

    async def _check_owner(self, plan: P) -> None:
        """Raise OwnerDeletedError if the owner is deleted, or another one has its name."""
        try:
            found = await self._objects.get(self._owner, plan.namespace, plan.name)
        except NotFoundError as error:
            raise OwnerDeletedError from error
        if is_deleted(found) or found["metadata"]["uid"] != plan.uid:
            raise OwnerDeletedError

    async def delete_services(self, plan: P, wanted: Collection[str]) -> None:
        """Delete the Services of pods that were removed by scaling down: all but `wanted`, their names."""
        for service in await self._objects.list(SERVICES, plan.namespace, names.labels(plan.name, names.STORE)):
            name = service["metadata"]["name"]
            if name in wanted or not is_owned(service, plan.uid):
                continue
            try:
                await self._objects.delete(SERVICES, plan.namespace, name, service["metadata"]["uid"])
                _logger.info("service_deleted", namespace=plan.namespace, name=name, reason="its pod was removed")
            except (NotFoundError, WriteConflictError):
                continue  # deleted or replaced by another client
