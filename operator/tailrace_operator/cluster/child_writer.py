"""Read, apply and delete the children of a StreamCluster or a Pipeline (ADR 0017).

An owner may be deleted without its children (`kubectl delete --cascade=orphan`) while it is reconciled. An apply from
before the deletion would make it their owner again, and Kubernetes deletes objects whose owner does not exist. So an
apply changes only the version of a child that was read before the owner was found to exist.

A cluster may have hundreds of children. A few calls are made at a time, in steps: accounts and Roles, RoleBindings, for
which the API server compares rights, what pods need besides, and workloads. What was applied before an apply failed is
not applied again by the next one while it is in the version that was left, so each attempt comes further.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeAlias, TypeVar

import structlog

from tailrace.common import limits
from tailrace.common.errors import NotFoundError, WriteConflictError
from tailrace.common.task_groups import gather_bounded
from tailrace_operator.cluster import names
from tailrace_operator.cluster.name_conflicts import is_owned, name_conflict
from tailrace_operator.kube.manifests import is_deleted
from tailrace_operator.kube.objects import (
    CRON_JOBS,
    DEPLOYMENTS,
    JOBS,
    ROLE_BINDINGS,
    ROLES,
    SERVICE_ACCOUNTS,
    SERVICES,
    STATEFUL_SETS,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence

    from tailrace.cluster.kubernetes import Kind, Manifest
    from tailrace_operator.cluster.render import Child
    from tailrace_operator.kube.objects import Objects

Existing: TypeAlias = "Mapping[tuple[str, str], tuple[Kind, Manifest]]"
"""Objects by the plural of their kind and their name."""

_WORKLOADS: Final = (STATEFUL_SETS, DEPLOYMENTS, JOBS, CRON_JOBS)

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
T = TypeVar("T")
U = TypeVar("U")


class OwnerDeletedError(Exception):
    """The owner was deleted since its reconciliation began: its children are not to be changed any more."""


class ChildWriter(Generic[P]):
    """Writes the children of owners of one kind; ``children`` renders them."""

    def __init__(self, objects: Objects, owner: Kind, children: Callable[[P], tuple[Child, ...]]) -> None:
        self._objects = objects
        self._owner = owner
        self._children = children
        self._calls = asyncio.Semaphore(limits.OPERATOR_CHILD_CALLS_MAX)
        """Of all owners together, so that calls do not wait for threads until their deadlines."""
        self._written: dict[tuple[str, str], dict[tuple[str, str], tuple[str, str]]] = {}
        """By namespace and name of the owner, then by plural and name of the child: what an apply that failed left."""

    def forget(self, namespace: str, name: str) -> None:
        """Forget what was written for an owner that is gone, or all of whose children were applied."""
        self._written.pop((namespace, name), None)

    async def existing(self, plan: P) -> Existing:
        """Return the existing objects that have the names of the children."""
        children = self._children(plan)
        listed = await self._listed(plan, children)
        found = await self._call_each(children, lambda child: self._read(plan, child, listed))
        return {
            (child.kind.plural, child.name): (child.kind, manifest)
            for child, manifest in zip(children, found, strict=True)
            if manifest is not None
        }

    async def _listed(self, plan: P, children: Sequence[Child]) -> dict[tuple[str, str], Manifest]:
        """Return the objects with the labels of the children, of kinds of which there are many: one call for each kind.

        The others are read by name. So is a child that is not among them: an object of others may have its name.
        """
        found: dict[tuple[str, str], Manifest] = {}
        for kind in {child.kind.plural: child.kind for child in children}.values():
            same = [child.manifest["metadata"]["labels"].items() for child in children if child.kind is kind]
            if len(same) >= limits.OPERATOR_CHILDREN_LISTED_MIN:
                labels = {name: value for name, value in same[0] if all((name, value) in each for each in same)}
                for item in await self._objects.list(kind, plan.namespace, labels):
                    found[kind.plural, str(item["metadata"]["name"])] = item
        return found

    async def _read(self, plan: P, child: Child, listed: Mapping[tuple[str, str], Manifest]) -> Manifest | None:
        found = listed.get((child.kind.plural, child.name))
        if found is not None:
            return found
        try:
            return await self._objects.get(child.kind, plan.namespace, child.name)
        except NotFoundError:
            return None

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
        for step in _steps(child for child in self._children(plan) if pods or child.kind not in _WORKLOADS):
            found = await self._call_each(step, lambda child: self._apply_child(plan, child, existing))
            applied |= {child.kind.plural: item for child, item in zip(step, found, strict=True) if item is not None}
        self.forget(plan.namespace, plan.name)
        return applied

    async def _call_each(self, items: Sequence[T], call: Callable[[T], Awaitable[U | None]]) -> list[U | None]:
        """Return the results of a call for each item. The calls begin in the order of the items, a few at a time.

        After a failure no further one begins, those in progress end, and the first failure in the order is raised. So
        it is the same one as long as its reason lasts.
        """
        failures: dict[int, Exception] = {}

        async def one(numbered: tuple[int, T]) -> U | None:
            number, item = numbered
            async with self._calls:
                if failures:
                    return None
                try:
                    return await call(item)
                except Exception as error:  # any error ends the calls, and is raised below
                    failures[number] = error
                    return None

        results = await gather_bounded(enumerate(items), one)
        if failures:
            raise failures[min(failures)]
        return results

    async def _apply_child(self, plan: P, child: Child, existing: Existing) -> Manifest:
        """Apply a child, unless the existing object is what an earlier attempt with the same content left."""
        key = (child.kind.plural, child.name)
        _, seen = existing.get(key, (child.kind, None))
        known = self._written.setdefault((plan.namespace, plan.name), {})
        digest = _digest(child.manifest)
        if seen is not None and known.get(key) == (digest, _version(seen)):
            return seen
        applied = await self._apply_one(plan, child, seen)
        known[key] = digest, _version(applied)
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
        found = await self._objects.list(SERVICES, plan.namespace, names.labels(plan.name, names.STORE))
        removed = [one for one in found if one["metadata"]["name"] not in wanted and is_owned(one, plan.uid)]
        await self._call_each(removed, self._delete_service)

    async def _delete_service(self, service: Manifest) -> None:
        metadata = service["metadata"]
        try:
            await self._objects.delete(SERVICES, metadata["namespace"], metadata["name"], metadata["uid"])
        except (NotFoundError, WriteConflictError):
            return  # deleted or replaced by another client
        reason = "its pod was removed"
        _logger.info("service_deleted", namespace=metadata["namespace"], name=metadata["name"], reason=reason)


def _steps(children: Iterable[Child]) -> list[list[Child]]:
    """Divide children into steps: all children of one are applied before those of the next."""
    steps: list[list[Child]] = [[], [], [], []]
    for child in children:
        later = [child.kind in kinds for kinds in ((SERVICE_ACCOUNTS, ROLES), (ROLE_BINDINGS,), (), _WORKLOADS)]
        steps[later.index(True) if True in later else 2].append(child)
    return steps


def _digest(manifest: Manifest) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _version(manifest: Manifest) -> str:
    return f"{manifest['metadata']['uid']} {manifest['metadata']['resourceVersion']}"
