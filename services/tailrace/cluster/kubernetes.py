"""The port to the Kubernetes API, with what ownership and placement need (docs/design.md#ownership).

Objects are JSON as dictionaries ("manifests"), as the API exchanges them. `leases` and `cluster_map` read and write
those of this room. All implementations pass tests/contract/test_kubernetes.py.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias

from tailrace.common.errors import UnavailableError

Manifest: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of namespaced objects. ``status_apart``: status has a subresource of its own."""

    group: str
    version: str
    kind: str
    plural: str
    status_apart: bool = False

    @property
    def api_version(self) -> str:
        """Return apiVersion as manifests have it; the core group has no name."""
        return f"{self.group}/{self.version}" if self.group else self.version


LEASES: Final = Kind("coordination.k8s.io", "v1", "Lease", "leases")
STREAM_CLUSTERS: Final = Kind("tailrace.io", "v1alpha1", "StreamCluster", "streamclusters", status_apart=True)


@dataclass(frozen=True, slots=True)
class Listing:
    """Objects at one resource version, sorted by name; a watch continues from that version."""

    items: tuple[Manifest, ...]
    resource_version: str


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """A change: ``kind`` is ``ADDED``, ``MODIFIED`` or ``DELETED``."""

    kind: str
    manifest: Manifest


class ForbiddenError(UnavailableError):
    """The API does not permit the request (401, 403); an administrator may grant it later."""


class ThrottledError(UnavailableError):
    """The API has too many requests and did not begin this one (429); it asks for a pause of ``pause_s``."""

    def __init__(self, message: str, pause_s: float) -> None:
        super().__init__(message)
        self.pause_s = pause_s


class KubernetesApi(Protocol):
    """One namespace of an API server.

    Every call has a deadline. A failure without a definite reply (no connection, no reply in time, 429, 5xx) is
    UnavailableError, and so is one that an administrator may resolve (401, 403: ForbiddenError). **The outcome of a
    write is unknown then**, also after 5xx. The caller may change a returned manifest.
    """

    async def get(self, kind: Kind, name: str) -> Manifest:
        """Return the current object (a linearizable read, never from a cache).

        Raises:
            NotFoundError: it does not exist. UnavailableError.
        """
        ...

    async def create(self, kind: Kind, manifest: Manifest) -> Manifest:
        """Create an object; return it with its uid and version.

        Raises:
            AlreadyExistsError: an object of that name exists. UnavailableError.
        """
        ...

    async def replace(self, kind: Kind, manifest: Manifest) -> Manifest:
        """Replace an object by compare-and-swap, except its status if that is a subresource.

        ``metadata.uid`` and ``metadata.resourceVersion`` must be those of the object that was read.

        Raises:
            WriteConflictError: it has changed, was deleted, or is another object of that name. NotFoundError: it was
            deleted. UnavailableError. ValueError: uid or version are missing.
        """
        ...

    async def replace_status(self, kind: Kind, manifest: Manifest) -> Manifest:
        """Replace an object's status; errors as of `replace`."""
        ...

    async def list(self, kind: Kind, labels: Mapping[str, str]) -> Listing:
        """Return the objects that carry the labels, usually current; callers must tolerate an older state.

        Raises:
            UnavailableError.
        """
        ...

    def watch(self, kind: Kind, labels: Mapping[str, str], resource_version: str) -> AsyncGenerator[WatchEvent, None]:
        """Yield changes after `resource_version`. They may come late, and some may be missing.

        Ends when the server ends the watch. Close the iterator after use.

        Raises:
            UnavailableError: the connection failed, or the version is too old (410): list, and watch from there.
            NotFoundError: the kind is not installed, perhaps only for a moment.
        """
        ...
