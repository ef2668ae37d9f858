"""Sends requests to the Kubernetes API with the official client (docs/design.md#stale-owners).

The client blocks, so its calls run in a few threads; each has a deadline in its thread and one on the loop. Retries of
the client are off: a write that it repeats would conflict with itself. Needs the extra ``kubernetes``.
"""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeAlias

import urllib3
from kubernetes import client, config

from tailrace.cluster.kubernetes import ForbiddenError, ThrottledError
from tailrace.common import limits
from tailrace.common.errors import DeadlineError, NotFoundError, StartError, TailraceError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tailrace.cluster.kubernetes import Manifest


Configuration: TypeAlias = client.Configuration
"""Address and credentials of the API."""


def in_cluster_configuration() -> Configuration:
    """Return the configuration of a pod's service account. Raises StartError: this process runs in no pod."""
    configuration = client.Configuration()
    try:
        config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
    except config.ConfigException as error:
        raise StartError(f"the Kubernetes API cannot be reached from here: {error}") from error
    return configuration


def kubeconfig_configuration(path: str | None = None, context: str | None = None) -> Configuration:
    """Return the configuration of a kubeconfig (None: the one of kubectl). Raises StartError: it cannot be used."""
    configuration = client.Configuration()
    try:
        config.load_kube_config(path, context, client_configuration=configuration)  # type: ignore[no-untyped-call]
    except (config.ConfigException, OSError) as error:
        raise StartError(f"the kubeconfig cannot be used: {error}") from error
    return configuration


class KubernetesRequests:
    """The client, its threads, deadlines and errors. ``connections``: connections in addition to one per thread."""

    def __init__(self, configuration: Configuration, connections: int = 0) -> None:
        configuration.retries = False
        configuration.connection_pool_maxsize = limits.KUBERNETES_THREADS + connections
        self.client = client.ApiClient(configuration)
        self._threads = ThreadPoolExecutor(limits.KUBERNETES_THREADS, thread_name_prefix="tailrace-kubernetes")

    @property
    def address(self) -> str:
        """Return the address of the API server."""
        return str(self.client.configuration.host)

    def close(self) -> None:
        """Close the connections; requests in progress end by themselves."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self.client.close()  # type: ignore[no-untyped-call]

    async def request(
        self,
        what: str,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        content_type: str = "application/json",
        conflict: type[TailraceError],
        refused: type[TailraceError] = UnavailableError,
    ) -> Manifest:
        """Send one request to a path of the API; errors as of `call`."""

        def send(_request_timeout: tuple[float, float]) -> Any:
            headers = {"Accept": "application/json", "Content-Type": content_type}
            prepared = self.client.param_serialize(
                method,
                path,
                query_params=sorted((query or {}).items()),
                header_params=headers,
                body=body,
                auth_settings=["BearerToken"],
            )
            response = self.client.call_api(*prepared, _request_timeout=_request_timeout)
            response.read()  # type: ignore[no-untyped-call]
            return self.client.response_deserialize(response, {"default": "object"}).data

        return await self.call(what, send, conflict=conflict, refused=refused)

    async def call(
        self,
        what: str,
        call: Callable[..., Any],
        *arguments: Any,
        conflict: type[TailraceError],
        refused: type[TailraceError] = UnavailableError,
        **options: Any,
    ) -> Manifest:
        """Call a method of the client in a thread. Errors name the request ``what``.

        Raises:
            NotFoundError: 404. `conflict`: 409. `refused`: 400 or 422. ForbiddenError: 401 or 403. ThrottledError: 429.
            UnavailableError: any other failure; the outcome is unknown.
        """
        deadline_s = limits.KUBERNETES_CALL_DEADLINE_S

        def run() -> Manifest:
            try:
                found = call(*arguments, _request_timeout=(deadline_s, deadline_s), **options)
            except Exception as error:
                raise translated(what, error, conflict, refused) from error
            if not isinstance(found, dict) or "metadata" not in found:
                raise UnavailableError(f"{what}: the reply does not come from a Kubernetes API")
            return found

        try:
            # The thread's deadlines bound each wait; this one bounds the whole call.
            async with asyncio.timeout(2 * deadline_s):
                return await asyncio.get_running_loop().run_in_executor(self._threads, run)
        except TimeoutError as error:
            raise DeadlineError(f"{what}: no answer from the Kubernetes API within {2 * deadline_s:g} s") from error


def translated(
    what: str,
    error: Exception,
    conflict: type[TailraceError],
    refused: type[TailraceError] = UnavailableError,
) -> TailraceError:
    """Return our error for an exception of the client."""
    if isinstance(error, TailraceError):
        return error
    if isinstance(error, client.ApiException):
        message = f"{what}: the Kubernetes API answers {error.status} {error.reason}{_status_message(error)}"
        if error.status == 404:
            return NotFoundError(message)
        if error.status == 409:
            return conflict(message)
        if error.status in (401, 403):
            return ForbiddenError(message)
        if error.status == 429:
            return ThrottledError(message, _pause_s(error))
        return (refused if error.status in (400, 422) else UnavailableError)(message)
    if isinstance(error, urllib3.exceptions.TimeoutError):
        return DeadlineError(f"{what}: no answer from the Kubernetes API: {error}")
    return UnavailableError(f"{what}: the Kubernetes API cannot be used: {error!r}")


def _pause_s(error: client.ApiException) -> float:
    """Return for how long the API asks its client to wait, within bounds."""
    asked = str((error.headers or {}).get("Retry-After", ""))
    pause_s = float(asked) if asked.isascii() and asked.isdigit() else 0.0
    return min(max(pause_s, limits.KUBERNETES_THROTTLED_MIN_S), limits.KUBERNETES_THROTTLED_MAX_S)


def _status_message(error: client.ApiException) -> str:
    """Return the message of the reply's Status object, if it is one."""
    try:
        message = json.loads(error.body or "")["message"]
    except (TypeError, ValueError, KeyError):
        return ""
    return f": {message}" if isinstance(message, str) else ""
