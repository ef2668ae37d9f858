"""Objects of any kind in the Kubernetes API: the port, and its adapter over the official client (ADR 0013).

Children are written by server-side apply under one field manager, so fields that the operator does not name belong to
other managers. An object's own status and finalizers, and a child whose specification cannot be rendered, are written
by merge patches that compare the object's version.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias
from urllib.parse import quote

from tailrace.cluster.kubernetes import STREAM_CLUSTERS, Kind, Manifest, ThrottledError
from tailrace.cluster.kubernetes_requests import KubernetesRequests
from tailrace.common import limits
from tailrace.common.errors import BadRequestError, NotFoundError, UnavailableError, WriteConflictError
from tailrace_operator.kube.manifests import FIELD_MANAGER, Notice

if TYPE_CHECKING:
    from kubernetes import client

STREAMS: Final = Kind("tailrace.io", "v1alpha1", "Stream", "streams", status_apart=True)
READER_GROUPS: Final = Kind("tailrace.io", "v1alpha1", "ReaderGroup", "readergroups", status_apart=True)
PIPELINES: Final = Kind("tailrace.io", "v1alpha1", "Pipeline", "pipelines", status_apart=True)
JOBS: Final = Kind("batch", "v1", "Job", "jobs", status_apart=True)
CRON_JOBS: Final = Kind("batch", "v1", "CronJob", "cronjobs", status_apart=True)
STATEFUL_SETS: Final = Kind("apps", "v1", "StatefulSet", "statefulsets", status_apart=True)
DEPLOYMENTS: Final = Kind("apps", "v1", "Deployment", "deployments", status_apart=True)
PODS: Final = Kind("", "v1", "Pod", "pods", status_apart=True)
SERVICES: Final = Kind("", "v1", "Service", "services", status_apart=True)
CONFIG_MAPS: Final = Kind("", "v1", "ConfigMap", "configmaps")
SECRETS: Final = Kind("", "v1", "Secret", "secrets")
SERVICE_ACCOUNTS: Final = Kind("", "v1", "ServiceAccount", "serviceaccounts")
EVENTS: Final = Kind("", "v1", "Event", "events")
ROLES: Final = Kind("rbac.authorization.k8s.io", "v1", "Role", "roles")
ROLE_BINDINGS: Final = Kind("rbac.authorization.k8s.io", "v1", "RoleBinding", "rolebindings")
DISRUPTION_BUDGETS: Final = Kind("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets", status_apart=True)

_NO_VERSION: Final = "1"
"""The version of no object: an apply with it conflicts with an existing object and creates a missing one (ADR 0017)."""
_OTHER_UID: Final = "metadata.uid: Invalid value"

__all__ = ["STREAM_CLUSTERS", "HttpObjects", "ListObjects", "Objects", "Page"]


@dataclass(frozen=True, slots=True)
class Page:
    """One page of the objects of a kind. ``rest``: the token of the next page; None: this is the last."""

    items: tuple[Manifest, ...]
    rest: str | None


class Objects(Protocol):
    """Reads and writes objects in the namespaces that the operator serves.

    Every call has a deadline, and raises besides the errors it names:

    - BadRequestError: the API server refuses the content (400, 422).
    - UnavailableError: no answer, 401, 403, 429 or 5xx. Waiting or the cluster's administrator may resolve it. The
      outcome of a write is unknown; all writes may be repeated. A call that is answered 429 was repeated: a
      reconciliation makes hundreds, and would never end where a few of a hundred are throttled.
    """

    async def get(self, kind: Kind, namespace: str, name: str) -> Manifest:
        """Return the current object. Raises NotFoundError."""
        ...

    async def list(
        self, kind: Kind, namespace: str | None, labels: Mapping[str, str] | None = None
    ) -> tuple[Manifest, ...]:
        """Return the objects with these labels, in one namespace or (None) in all."""
        ...

    async def page(self, kind: Kind, namespace: str | None, rest: str | None = None) -> Page:
        """Return at most ``limits.KUBERNETES_PAGE`` objects, all as of the request of the first page (`rest` None).

        Raises:
            NotFoundError: the kind is not installed. UnavailableError: also when the token of the page has expired.
        """
        ...

    async def apply(self, kind: Kind, namespace: str, manifest: Manifest, *, only_new: bool = False) -> Manifest:
        """Create or change an object so that it has the fields of `manifest` (server-side apply).

        Fields that an earlier apply named and this one does not are removed. Fields of other managers are kept, except
        that this manager takes over those that `manifest` names.

        Raises:
            WriteConflictError: `manifest` has a uid or a resourceVersion that is not that of the object with its name,
            or, with `only_new`, an object exists. Nothing was changed.
        """
        ...

    async def merge_status(self, kind: Kind, manifest: Manifest, status: Mapping[str, Any]) -> Manifest:
        """Set these fields of the object's status (None removes one). `manifest` is the object as it was read.

        Raises:
            WriteConflictError: the object has changed since. NotFoundError: it was deleted.
        """
        ...

    async def merge_spec(self, kind: Kind, manifest: Manifest, spec: Mapping[str, Any]) -> Manifest:
        """Set these fields of the object's specification, and keep all others. Raises as `merge_status`."""
        ...

    async def set_finalizers(self, kind: Kind, manifest: Manifest, finalizers: Sequence[str]) -> Manifest:
        """Set the complete list of the object's finalizers. Raises as `merge_status`."""
        ...

    async def delete(self, kind: Kind, namespace: str, name: str, uid: str) -> None:
        """Delete the object with that uid; Kubernetes deletes its children afterwards.

        Raises:
            WriteConflictError: another object has the name. NotFoundError: no object has it.
        """
        ...

    async def create_event(self, kind: Kind, manifest: Manifest, notice: Notice, now: str) -> None:
        """Create an Event about the object; `now` in RFC 3339."""
        ...

    async def namespace_is_terminating(self, namespace: str) -> bool:
        """Return whether the namespace is being deleted or does not exist."""
        ...


ListObjects: TypeAlias = "Callable[[Kind, str], Awaitable[Collection[Manifest]]]"
"""Returns the objects of a kind in a namespace: of the API server as `Objects.list`, or as they were last heard of."""


class HttpObjects:
    """Implements Objects over HTTP. ``instance`` names this process in Events.

    ``attempts``: of a request that is throttled. A caller that concludes something from the time makes one.
    """

    def __init__(
        self, configuration: client.Configuration, instance: str, attempts: int = limits.OPERATOR_THROTTLED_ATTEMPTS
    ) -> None:
        self._calls = KubernetesRequests(configuration)
        self._instance = instance
        self._attempts = attempts

    def close(self) -> None:
        """Close the connections; calls in progress end at their deadlines."""
        self._calls.close()

    async def get(self, kind: Kind, namespace: str, name: str) -> Manifest:
        """See Objects.get."""
        return await self._request("get", "GET", kind, namespace, name)

    async def list(
        self, kind: Kind, namespace: str | None, labels: Mapping[str, str] | None = None
    ) -> tuple[Manifest, ...]:
        """See Objects.list. In pages: thousands of objects take longer than one request may."""
        selector = ",".join(f"{name}={value}" for name, value in sorted((labels or {}).items()))
        page = await self._page(kind, namespace, None, selector)
        items = list(page.items)
        while page.rest is not None:
            page = await self._page(kind, namespace, page.rest, selector)
            items += page.items
            if len(items) > limits.KUBERNETES_LIST_MAX:
                raise UnavailableError(f"list {kind.plural}: more than {limits.KUBERNETES_LIST_MAX} objects")
        return tuple(items)

    async def page(self, kind: Kind, namespace: str | None, rest: str | None = None) -> Page:
        """See Objects.page."""
        return await self._page(kind, namespace, rest, "")

    async def _page(self, kind: Kind, namespace: str | None, rest: str | None, selector: str) -> Page:
        query = {"limit": str(limits.KUBERNETES_PAGE)}
        query |= {"continue": rest} if rest else {}
        query |= {"labelSelector": selector} if selector else {}
        found = await self._request("list", "GET", kind, namespace, query=query)
        items = tuple(_whole(kind, item) for item in found.get("items") or [])
        return Page(items, found["metadata"].get("continue") or None)

    async def apply(self, kind: Kind, namespace: str, manifest: Manifest, *, only_new: bool = False) -> Manifest:
        """See Objects.apply."""
        metadata = {**manifest["metadata"], **({"resourceVersion": _NO_VERSION} if only_new else {})}
        try:
            return await self._request(
                "apply",
                "PATCH",
                kind,
                namespace,
                metadata["name"],
                query={"fieldManager": FIELD_MANAGER, "force": "true"},
                body={"apiVersion": kind.api_version, "kind": kind.kind, **manifest, "metadata": metadata},
                content_type="application/apply-patch+yaml",
            )
        except (
            BadRequestError
        ) as error:  # a wrong uid is refused as content; only that of a missing object is a conflict
            if "uid" in metadata and _OTHER_UID in str(error):
                raise WriteConflictError(str(error)) from error
            raise

    async def merge_status(self, kind: Kind, manifest: Manifest, status: Mapping[str, Any]) -> Manifest:
        """See Objects.merge_status."""
        return await self._merge("set the status of", "/status", kind, manifest, {"status": dict(status)})

    async def merge_spec(self, kind: Kind, manifest: Manifest, spec: Mapping[str, Any]) -> Manifest:
        """See Objects.merge_spec."""
        return await self._merge("change", "", kind, manifest, {"spec": dict(spec)})

    async def set_finalizers(self, kind: Kind, manifest: Manifest, finalizers: Sequence[str]) -> Manifest:
        """See Objects.set_finalizers."""
        change = {"metadata": {"finalizers": list(finalizers)}}
        return await self._merge("set the finalizers of", "", kind, manifest, change)

    async def delete(self, kind: Kind, namespace: str, name: str, uid: str) -> None:
        """See Objects.delete."""
        body = {"preconditions": {"uid": uid}, "propagationPolicy": "Background"}
        await self._request("delete", "DELETE", kind, namespace, name, body=body)

    async def create_event(self, kind: Kind, manifest: Manifest, notice: Notice, now: str) -> None:
        """See Objects.create_event."""
        metadata = manifest["metadata"]
        namespace = metadata["namespace"]
        body = {
            "apiVersion": EVENTS.api_version,
            "kind": EVENTS.kind,
            "metadata": {"generateName": f"{metadata['name']}.", "namespace": namespace},
            "involvedObject": {
                "apiVersion": kind.api_version,
                "kind": kind.kind,
                "namespace": namespace,
                "name": metadata["name"],
                "uid": metadata["uid"],
            },
            "reason": notice.reason,
            "message": notice.message[: limits.EVENT_MESSAGE_MAX_LENGTH],
            "type": "Warning" if notice.warning else "Normal",
            "source": {"component": FIELD_MANAGER},
            "reportingComponent": FIELD_MANAGER,
            "reportingInstance": self._instance,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        await self._request("create", "POST", EVENTS, namespace, body=body)

    async def namespace_is_terminating(self, namespace: str) -> bool:
        """See Objects.namespace_is_terminating."""
        try:
            found = await self._calls.request(
                f"get namespace {namespace}", "GET", f"/api/v1/namespaces/{namespace}", conflict=WriteConflictError
            )
        except NotFoundError:
            return True
        return bool(found["metadata"].get("deletionTimestamp"))

    async def _merge(
        self, verb: str, subresource: str, kind: Kind, manifest: Manifest, change: dict[str, Any]
    ) -> Manifest:
        metadata = manifest["metadata"]
        compared = {"resourceVersion": metadata["resourceVersion"], "uid": metadata["uid"]}
        body = {**change, "metadata": {**change.get("metadata", {}), **compared}}
        return await self._request(
            verb,
            "PATCH",
            kind,
            metadata["namespace"],
            metadata["name"],
            subresource=subresource,
            query={"fieldManager": FIELD_MANAGER},
            body=body,
            content_type="application/merge-patch+json",
        )

    async def _request(
        self,
        verb: str,
        method: str,
        kind: Kind,
        namespace: str | None,
        name: str = "",
        *,
        subresource: str = "",
        **options: Any,
    ) -> Manifest:
        for attempt in range(self._attempts):
            try:
                return await self._calls.request(
                    f"{verb} {kind.plural} {name}".rstrip(),
                    method,
                    _path(kind, namespace, name) + subresource,
                    conflict=WriteConflictError,
                    refused=BadRequestError,
                    **options,
                )
            except ThrottledError as error:
                if attempt + 1 == self._attempts:
                    raise
                await asyncio.sleep(error.pause_s)
        raise AssertionError("the last attempt returns or raises")


def _whole(kind: Kind, item: Manifest) -> Manifest:
    """Return a list item with apiVersion and kind, which lists leave out."""
    return {"apiVersion": kind.api_version, "kind": kind.kind, **item}


def _path(kind: Kind, namespace: str | None, name: str) -> str:
    if name in (".", "..") or "/" in name:
        raise BadRequestError(f"{name!r} is not a valid name of a {kind.kind}")
    group = f"/apis/{kind.api_version}" if kind.group else f"/api/{kind.api_version}"
    place = f"/namespaces/{namespace}" if namespace is not None else ""
    return f"{group}{place}/{kind.plural}" + (f"/{quote(name)}" if name else "")
