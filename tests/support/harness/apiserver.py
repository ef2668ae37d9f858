"""A fake Kubernetes API server over HTTP for any kinds and namespaces: the part that the operator and kopf use.

Objects with uids, versions and generations; watches; merge patches; server-side apply of one level of field ownership
(fields that the same manager no longer names are removed; lists are replaced as a whole; managedFields are kept);
deletion with preconditions, finalizers and the collection of children; discovery. No schemas, no defaults, no
authorisation.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import socket
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, StreamingResponse

from tailrace.cluster.kubernetes import LEASES, STREAM_CLUSTERS, Kind, Manifest
from tailrace.common.http import serve_app
from tailrace_operator.kube.objects import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    DISRUPTION_BUDGETS,
    EVENTS,
    PIPELINES,
    PODS,
    READER_GROUPS,
    ROLE_BINDINGS,
    ROLES,
    SECRETS,
    SERVICE_ACCOUNTS,
    SERVICES,
    STATEFUL_SETS,
    STREAMS,
)

NAMESPACE = "here"
KINDS = (
    CONFIG_MAPS,
    DEPLOYMENTS,
    DISRUPTION_BUDGETS,
    EVENTS,
    LEASES,
    PIPELINES,
    PODS,
    READER_GROUPS,
    ROLE_BINDINGS,
    ROLES,
    SECRETS,
    SERVICE_ACCOUNTS,
    SERVICES,
    STATEFUL_SETS,
    STREAMS,
    STREAM_CLUSTERS,
)
_DISCOVERED = (
    Kind("", "v1", "Namespace", "namespaces"),
    Kind("apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions"),
)
"""Cluster-wide kinds, which clients discover before they start."""
Place = tuple[str, str, str]
"""Plural of the kind, namespace, name."""
_VERBS = ["get", "list", "watch", "create", "update", "patch", "delete"]


class ApiError(Exception):
    """An error response."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class ApiServer:
    """The stored objects, and methods with which tests change them.

    ``down``: every request is answered 503. ``mute``: watches of these plurals tell nothing, without an error.
    ``forbidden``: paths that are answered 403. ``refuse``: what a write must not contain, by plural, and the message of
    the 422.
    """

    def __init__(self, kinds: tuple[Kind, ...] = KINDS) -> None:
        self.kinds = {kind.plural: kind for kind in kinds}
        self.objects: dict[Place, Manifest] = {}
        self.down = False
        self.mute: set[str] = set()
        self.refuse: dict[str, Callable[[Manifest], str | None]] = {}
        self.forbidden: set[str] = set()
        self.requests: list[str] = []
        self.longest_list = 0
        """More objects than these are not listed in the time that a request may take; 0: any number is."""
        self.ending: set[str] = set()
        self._applied: dict[tuple[Place, str], Manifest] = {}
        self._versions = itertools.count(1000)
        self._version = 999
        self._history: list[tuple[int, str, Manifest]] = []
        self._watchers: list[tuple[str, asyncio.Queue[tuple[str, Manifest]]]] = []
        self._pages: dict[str, list[Manifest]] = {}
        """The remaining pages of lists, as of their first page."""

    # -- for tests

    def forget_pages(self) -> None:
        """Expire the tokens of lists in pages."""
        self._pages.clear()

    def find(self, kind: Kind, name: str, namespace: str = NAMESPACE) -> Manifest | None:
        """Return the current object."""
        return deepcopy(self.objects.get((kind.plural, namespace, name)))

    def all(self, kind: Kind) -> list[Manifest]:
        """Return all objects of a kind, by name."""
        return [deepcopy(item) for place, item in sorted(self.objects.items()) if place[0] == kind.plural]

    def make(self, kind: Kind, manifest: Manifest, namespace: str = NAMESPACE) -> Manifest:
        """Create an object as ``kubectl create`` does."""
        metadata = {**manifest["metadata"], "namespace": namespace}
        if "name" not in metadata:
            metadata["name"] = f"{metadata['generateName']}{uuid.uuid4().hex[:8]}"
        place = (kind.plural, namespace, metadata["name"])
        if place in self.objects:
            raise ApiError(409, f"{kind.plural} {metadata['name']} exists already")
        self._check(kind, manifest)
        metadata |= {"uid": str(uuid.uuid4()), "generation": 1, "creationTimestamp": _now()}
        made = {"apiVersion": kind.api_version, "kind": kind.kind, **deepcopy(manifest), "metadata": metadata}
        if kind.status_apart:
            made.pop("status", None)
        return self._store(place, made, "ADDED")

    def edit(self, kind: Kind, name: str, change: dict[str, Any], namespace: str = NAMESPACE) -> Manifest:
        """Patch an object as ``kubectl patch --type=merge`` does, including its status."""
        place = (kind.plural, namespace, name)
        found = self._at(place)
        return self._change(place, _merged(found, change), found)

    def remove(self, kind: Kind, name: str, namespace: str = NAMESPACE) -> None:
        """Delete an object as ``kubectl delete`` does."""
        place = (kind.plural, namespace, name)
        found = deepcopy(self._at(place))
        if found["metadata"].get("finalizers"):
            found["metadata"].setdefault("deletionTimestamp", _now())
            self._store(place, found, "MODIFIED")
        else:
            self._drop(place)

    def orphan(self, kind: Kind, name: str, namespace: str = NAMESPACE) -> None:
        """Delete an object as ``kubectl delete --cascade=orphan`` does: its children stay, without an owner."""
        uid = self._at((kind.plural, namespace, name))["metadata"]["uid"]
        for place, found in list(self.objects.items()):
            owners = found["metadata"].get("ownerReferences") or []
            left = [owner for owner in owners if owner["uid"] != uid]
            if left != owners:
                self.edit(self.kinds[place[0]], place[2], {"metadata": {"ownerReferences": left or None}}, place[1])
        self.remove(kind, name, namespace)

    # -- storage

    def _at(self, place: Place) -> Manifest:
        if place not in self.objects:
            raise ApiError(404, f"{place[0]} {place[2]} not found")
        return self.objects[place]

    def _check(self, kind: Kind, manifest: Manifest) -> None:
        message = self.refuse.get(kind.plural, lambda _: None)(manifest)
        if message is not None:
            raise ApiError(422, message)

    def _change(self, place: Place, wanted: Manifest, found: Manifest) -> Manifest:
        """Store a changed object; metadata that only the server sets is kept."""
        for name in ("uid", "creationTimestamp", "deletionTimestamp", "name", "namespace", "generation"):
            if name in found["metadata"]:
                wanted["metadata"][name] = found["metadata"][name]
        wanted["metadata"]["resourceVersion"] = found["metadata"]["resourceVersion"]
        if wanted == found:
            return deepcopy(found)
        if {k: v for k, v in wanted.items() if k not in ("metadata", "status")} != {
            k: v for k, v in found.items() if k not in ("metadata", "status")
        }:
            wanted["metadata"]["generation"] = found["metadata"]["generation"] + 1
        if wanted["metadata"].get("deletionTimestamp") and not wanted["metadata"].get("finalizers"):
            self._drop(place)
            return wanted
        return self._store(place, wanted, "MODIFIED")

    def _store(self, place: Place, manifest: Manifest, change: str) -> Manifest:
        self._version = next(self._versions)
        manifest["metadata"]["resourceVersion"] = str(self._version)
        self.objects[place] = manifest
        self._tell(place[0], change, manifest)
        if self._is_orphan(manifest):  # written by a reconcile that was in progress when its owner was deleted
            asyncio.get_running_loop().call_soon(self._collect, place, manifest["metadata"]["uid"])
        return deepcopy(manifest)

    def _drop(self, place: Place) -> None:
        gone = deepcopy(self.objects.pop(place))
        self._version = next(self._versions)
        gone["metadata"]["resourceVersion"] = str(self._version)
        for key in [key for key in self._applied if key[0] == place]:
            del self._applied[key]
        self._tell(place[0], "DELETED", gone)
        uid = gone["metadata"]["uid"]
        for child, manifest in list(self.objects.items()):
            if any(owner["uid"] == uid for owner in manifest["metadata"].get("ownerReferences") or []):
                self.remove(self.kinds[child[0]], child[2], child[1])

    def _is_orphan(self, manifest: Manifest) -> bool:
        """Return whether an object has owners and none of them exists."""
        owners = {owner["uid"] for owner in manifest["metadata"].get("ownerReferences") or []}
        return bool(owners) and not any(found["metadata"]["uid"] in owners for found in self.objects.values())

    def _collect(self, place: Place, uid: str) -> None:
        """Delete orphans as the garbage collector of Kubernetes does."""
        found = self.objects.get(place)
        if found is not None and found["metadata"]["uid"] == uid and self._is_orphan(found):
            self.remove(self.kinds[place[0]], place[2], place[1])

    def _tell(self, plural: str, change: str, manifest: Manifest) -> None:
        event: dict[str, Any] = {"type": change, "object": deepcopy(manifest)}
        self._history.append((self._version, plural, event))
        for watched, queue in self._watchers:
            if watched == plural:
                queue.put_nowait((change, event["object"]))

    # -- HTTP

    def app(self) -> FastAPI:
        """Return the web application."""
        app = FastAPI()
        app.add_exception_handler(ApiError, self._unserved)
        app.add_api_route("/api", self._core, methods=["GET"], response_model=None)
        app.add_api_route("/apis", self._groups, methods=["GET"], response_model=None)
        app.add_api_route("/version", self._about, methods=["GET"], response_model=None)
        app.add_api_route("/api/v1", self._resources, methods=["GET"], response_model=None)
        app.add_api_route("/api/v1/namespaces/{namespace}", self._namespace, methods=["GET"], response_model=None)
        for root in ("/api/v1", "/apis/{group}/{version}"):
            if root != "/api/v1":
                app.add_api_route(root, self._resources, methods=["GET"], response_model=None)
            app.add_api_route(root + "/{plural}", self._list, methods=["GET"], response_model=None)
            place = root + "/namespaces/{namespace}/{plural}"
            app.add_api_route(place, self._list, methods=["GET"], response_model=None)
            app.add_api_route(place, self._create, methods=["POST"], response_model=None)
            for method, call in (
                ("GET", self._get),
                ("PUT", self._replace),
                ("PATCH", self._patch),
                ("DELETE", self._delete),
            ):
                app.add_api_route(place + "/{name}", call, methods=[method], response_model=None)
            for method, call in (("PUT", self._replace), ("PATCH", self._patch)):
                app.add_api_route(place + "/{name}/{subresource}", call, methods=[method], response_model=None)
        return app

    async def _about(self) -> Any:
        return {"major": "1", "minor": "34", "gitVersion": "v1.34.0"}

    async def _core(self) -> Any:
        return {"kind": "APIVersions", "versions": ["v1"]}

    async def _groups(self) -> Any:
        groups = []
        for group, version in sorted({(kind.group, kind.version) for kind in self._kinds() if kind.group}):
            preferred = {"groupVersion": f"{group}/{version}", "version": version}
            groups.append({"name": group, "versions": [preferred], "preferredVersion": preferred})
        return {"kind": "APIGroupList", "groups": groups}

    async def _resources(self, request: Request) -> Any:
        group, version = request.path_params.get("group", ""), request.path_params.get("version", "v1")
        found = [kind for kind in self._kinds() if (kind.group, kind.version) == (group, version)]
        resources = []
        for kind in found:
            namespaced = kind not in _DISCOVERED
            about = {"kind": kind.kind, "namespaced": namespaced, "verbs": _VERBS, "singularName": kind.kind.lower()}
            resources.append({"name": kind.plural, **about})
            if kind.status_apart:
                resources.append({"name": f"{kind.plural}/status", **about})
        return {"kind": "APIResourceList", "groupVersion": f"{group}/{version}", "resources": resources}

    def _kinds(self) -> list[Kind]:
        return [*self.kinds.values(), *_DISCOVERED]

    async def _namespace(self, request: Request) -> Any:
        name = request.path_params["namespace"]
        metadata = {"name": name, **({"deletionTimestamp": _now()} if name in self.ending else {})}
        return await self._answer(request, lambda: {"kind": "Namespace", "apiVersion": "v1", "metadata": metadata})

    async def _list(self, request: Request) -> Any:
        kind, namespace = self._kind(request), request.path_params.get("namespace")
        labels = dict(
            item.replace("==", "=").split("=", 1)
            for item in request.query_params.get("labelSelector", "").split(",")
            if item
        )

        def selected(manifest: Manifest) -> bool:
            metadata = manifest["metadata"]
            has = metadata.get("labels") or {}
            return namespace in (None, metadata["namespace"]) and labels.items() <= has.items()

        if request.query_params.get("watch", "").lower() in ("true", "1"):
            timeout = request.query_params.get("timeoutSeconds", "0")
            if not timeout.isdecimal():
                return _status(400, f'strconv.ParseInt: parsing "{timeout}": invalid syntax')
            return self._watch(kind, selected, request.query_params.get("resourceVersion", "0"))

        def found() -> Manifest:
            items = [item for item in self.all(kind) if selected(item)]
            metadata = {"resourceVersion": str(self._version)}
            rest, limit = request.query_params.get("continue"), int(request.query_params.get("limit", "0"))
            if rest is not None:
                if rest not in self._pages:
                    raise ApiError(410, "the provided continue parameter is too old")
                items = self._pages.pop(rest)
            if limit and len(items) > limit:
                metadata["continue"] = uuid.uuid4().hex
                self._pages[metadata["continue"]] = items[limit:]
                items = items[:limit]
            if self.longest_list and len(items) > self.longest_list:
                raise ApiError(504, "request did not complete within the allowed duration")
            return {"kind": f"{kind.kind}List", "apiVersion": kind.api_version, "metadata": metadata, "items": items}

        return await self._answer(request, found)

    @property
    def watched(self) -> set[str]:
        """Return the plurals of kinds that clients watch."""
        return {plural for plural, _ in self._watchers}

    def _watch(self, kind: Kind, selected: Callable[[Manifest], bool], since: str) -> Any:
        if self.down:
            return _status(503, "as the test asks")
        queue: asyncio.Queue[tuple[str, Manifest]] = asyncio.Queue()
        for version, plural, event in self._history:
            if plural == kind.plural and version > int(since or 0):
                queue.put_nowait((event["type"], event["object"]))
        watcher = (kind.plural, queue)
        self._watchers.append(watcher)

        async def stream() -> AsyncIterator[bytes]:
            try:
                while not self.down:
                    with contextlib.suppress(TimeoutError):
                        change, manifest = await asyncio.wait_for(queue.get(), 0.5)
                        if selected(manifest) and kind.plural not in self.mute:
                            yield json.dumps({"type": change, "object": manifest}).encode() + b"\n"
            finally:
                self._watchers.remove(watcher)

        return StreamingResponse(stream())

    async def _get(self, request: Request) -> Any:
        return await self._answer(request, lambda: deepcopy(self._at(self._place(request))))

    async def _create(self, request: Request) -> Any:
        manifest = await request.json()
        kind, namespace = self._kind(request), request.path_params["namespace"]
        return await self._answer(request, lambda: self.make(kind, manifest, namespace))

    async def _replace(self, request: Request) -> Any:
        manifest = await request.json()

        def replace() -> Manifest:
            place = self._place(request)
            found = self._compared(place, manifest)
            if request.path_params.get("subresource") == "status":
                wanted = {**deepcopy(found), "status": manifest.get("status", {})}
            else:
                wanted = deepcopy(manifest)
                if self._kind(request).status_apart:
                    wanted["status"] = deepcopy(found.get("status", {}))
            return self._change(place, wanted, found)

        return await self._answer(request, replace)

    async def _patch(self, request: Request) -> Any:
        patch = json.loads(await request.body())
        content = request.headers["content-type"]
        if "apply-patch" in content:
            return await self._answer(request, lambda: self._apply(request, patch))
        assert "merge-patch" in content, content

        def merge() -> Manifest:
            place = self._place(request)
            found = self._compared(place, patch)
            status = request.path_params.get("subresource") == "status"
            allowed = {"status"} if status else {name for name in patch if name != "status"}
            self._check(self._kind(request), patch)
            return self._change(place, _merged(found, {k: v for k, v in patch.items() if k in allowed}), found)

        return await self._answer(request, merge)

    def _apply(self, request: Request, manifest: Manifest) -> Manifest:
        kind, place = self._kind(request), self._place(request)
        manager = request.query_params["fieldManager"]
        assert request.query_params["force"] == "true"
        self._check(kind, manifest)
        before = self._applied.get((place, manager), {})
        found = self.objects.get(place)
        if found is not None:
            version = {"resourceVersion": manifest["metadata"].get("resourceVersion")}
            self._compared(place, {"metadata": version})
            if manifest["metadata"].get("uid") not in (None, found["metadata"]["uid"]):
                raise ApiError(422, "metadata.uid: Invalid value: field is immutable")
        if found is None and manifest["metadata"].get("uid"):  # a version alone does not prevent creation
            raise ApiError(409, "uid mismatch: no existing object was found")
        metadata = {key: value for key, value in manifest["metadata"].items() if key not in ("uid", "resourceVersion")}
        manifest = {**manifest, "metadata": metadata}
        managers = (found or {"metadata": {}})["metadata"].get("managedFields", [])
        others = [entry for entry in managers if (entry["manager"], entry["operation"]) != (manager, "Apply")]
        own = {"manager": manager, "operation": "Apply", "fieldsType": "FieldsV1", "fieldsV1": _fields(manifest)}
        written = {**manifest, "metadata": {**metadata, "managedFields": [*others, own]}}
        if found is None:
            self.make(kind, written, place[1])
        else:
            self._change(place, _merged(_without(deepcopy(found), before, manifest), written), found)
        self._applied[place, manager] = deepcopy(manifest)
        return deepcopy(self.objects[place])

    async def _delete(self, request: Request) -> Any:
        body = json.loads(await request.body() or b"{}")

        def delete() -> Manifest:
            place = self._place(request)
            uid = (body.get("preconditions") or {}).get("uid")
            if uid not in (None, self._at(place)["metadata"]["uid"]):
                raise ApiError(409, "the uid in the precondition is not the object's")
            self.remove(self._kind(request), place[2], place[1])
            return {"kind": "Status", "metadata": {}, "status": "Success"}

        return await self._answer(request, delete)

    def _compared(self, place: Place, manifest: Manifest) -> Manifest:
        found = self._at(place)
        for name in ("uid", "resourceVersion"):
            if manifest.get("metadata", {}).get(name) not in (None, found["metadata"][name]):
                raise ApiError(409, f"{name} is not the object's: it has been modified")
        return found

    def _kind(self, request: Request) -> Kind:
        plural = request.path_params["plural"]
        if plural not in self.kinds:
            raise ApiError(404, f"{plural} are not served")
        return self.kinds[plural]

    def _place(self, request: Request) -> Place:
        parts = request.path_params
        return parts["plural"], parts["namespace"], parts["name"]

    async def _unserved(self, _: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, ApiError)
        return _status(error.code, str(error))

    async def _answer(self, request: Request, effect: Callable[[], Any]) -> Any:
        self.requests.append(f"{request.method} {request.url.path}")
        if self.down:
            return _status(503, "as the test asks")
        if request.url.path in self.forbidden:
            return _status(403, "as the test asks")
        try:
            return JSONResponse(effect(), 201 if request.method == "POST" else 200)
        except ApiError as error:
            return _status(error.code, str(error))


def _status(code: int, message: str) -> JSONResponse:
    return JSONResponse({"kind": "Status", "status": "Failure", "code": code, "message": message}, code)


def _merged(found: Any, change: Any) -> Any:
    """Return a value with a JSON merge patch applied."""
    if not isinstance(change, dict):
        return deepcopy(change)
    merged = dict(found) if isinstance(found, dict) else {}
    for name, value in change.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = _merged(merged.get(name), value)
    return merged


def _without(found: Any, before: Any, now: Any) -> Any:
    """Return the object without the fields that were applied before and are not named now."""
    if not (isinstance(found, dict) and isinstance(before, dict) and isinstance(now, dict)):
        return found
    left = {}
    for name, value in found.items():
        if name in before and name not in now:
            continue
        left[name] = _without(value, before.get(name), now.get(name))
    return left


def _fields(manifest: Manifest) -> Manifest:
    """Return the field names in the form of managedFields; a list is one field."""
    named = {f"f:{name}": _fields(value) if isinstance(value, dict) else {} for name, value in manifest.items()}
    return {name: value for name, value in named.items() if name not in ("f:apiVersion", "f:kind", "f:name")}


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def kubeconfig(folder: Path, address: str) -> Path:
    """Write a kubeconfig file for a server."""
    path = folder / "kubeconfig"
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "clusters": [{"name": "test", "cluster": {"server": address}}],
        "users": [{"name": "test", "user": {"token": "test"}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
    }
    path.write_text(json.dumps(content))
    return path


@asynccontextmanager
async def api_server() -> AsyncIterator[tuple[ApiServer, str]]:
    """Run a server; provide it and its address."""
    server = ApiServer()
    listener = socket.create_server(("127.0.0.1", 0))
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(serve_app(server.app(), listener))
        stack.callback(setattr, server, "down", True)  # watches end before the server stops
        yield server, f"http://127.0.0.1:{listener.getsockname()[1]}"
