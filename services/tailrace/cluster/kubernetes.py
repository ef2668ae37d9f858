"""The port to the Kubernetes API: what ownership and placement need of it (design §9).

Objects are what the API exchanges, JSON as dictionaries ("manifests"); `leases` and `clustermap` read and write the
ones that this room knows. All implementations are held by tests/contract/test_kubernetes.py.
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
        """As in manifests; the core group has no name."""
        return f"{self.group}/{self.version}" if self.group else self.version


LEASES: Final = Kind("coordination.k8s.io", "v1", "Lease", "leases")
STREAM_CLUSTERS: Final = Kind("tailrace.io", "v1alpha1", "StreamCluster", "streamclusters", status_apart=True)


@dataclass(frozen=True, slots=True)
class Listing:
    """Objects of one moment, by name, and that moment: where a watch goes on."""

    items: tuple[Manifest, ...]
    resource_version: str


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """A change: ``kind`` is ``ADDED``, ``MODIFIED`` or ``DELETED``."""

    kind: str
    manifest: Manifest


class ForbiddenError(UnavailableError):
    """The API does not let this process do it (401, 403); whoever runs the cluster may mend that."""


class KubernetesApi(Protocol):
    """One namespace of an API server.

    Every call has a deadline. Whatever fails without a definite answer (no connection, no answer in time, 429, 5xx) or
    may be mended by whoever runs the cluster (401, 403: ForbiddenError) is UnavailableError; **the outcome of a write
    is unknown then**, also after 5xx. A manifest that is returned is the caller's.
    """

    async def get(self, kind: Kind, name: str) -> Manifest:
        """The object as it is now (a linearizable read: never from a cache).

        Raises:
            NotFoundError: there is none. UnavailableError.
        """
        ...

    async def create(self, kind: Kind, manifest: Manifest) -> Manifest:
        """Create an object; the answer has its uid and version.

        Raises:
            AlreadyExistsError: there is one of that name. UnavailableError.
        """
        ...

    async def replace(self, kind: Kind, manifest: Manifest) -> Manifest:
        """Replace an object (its status excepted, if that is apart): a compare-and-swap.

        ``metadata.uid`` and ``metadata.resourceVersion`` must be those of the object that was read.

        Raises:
            WriteConflictError: it has changed, or it is another object of that name, or gone. NotFoundError: it is
            gone. UnavailableError. ValueError: uid or version are missing.
        """
        ...

    async def replace_status(self, kind: Kind, manifest: Manifest) -> Manifest:
        """Replace an object's status, as `replace` does all else."""
        ...

    async def list(self, kind: Kind, labels: Mapping[str, str]) -> Listing:
        """The objects that carry the labels. Fresh when it can be: a caller must bear an older state.

        Raises:
            UnavailableError.
        """
        ...

    def watch(self, kind: Kind, labels: Mapping[str, str], resource_version: str) -> AsyncGenerator[WatchEvent, None]:
        """Changes after `resource_version`; late, perhaps, and perhaps none although there are some.

        Ends when the server ends it. Close the iterator when it is not needed any more.

        Raises:
            UnavailableError: the connection failed, or the version is too old (410): list, and watch from there.
        """
        ...
