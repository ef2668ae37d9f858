"""Where a cluster's Tier 2 is, as options of a Spark data source say it (docs/spark-direct.md#options)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from tailrace.cluster.cluster_identity import CLUSTER_KEY, read_identity
from tailrace.common.errors import BadRequestError, StartError

# The library of object stores is imported where it is used: workers that read from segment stores spare its memory.

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tailrace.cluster.cluster_identity import ClusterIdentity
    from tailrace.storage.obstores import S3Credentials
    from tailrace.storage.port import ObjectStore

OPTIONS: Final = (
    "tier2",
    "tier2Endpoint",
    "tier2Region",
    "tier2AccessKeyId",
    "tier2SecretAccessKey",
    "tier2SessionToken",
    "tier2Cluster",
)
"""The options that `StoreLocation.from_options` reads."""


@dataclass(frozen=True, slots=True)
class StoreLocation:
    """An object store's prefix with the Tier 2 of a cluster. It can be sent to executors; its text shows no secret.

    ``url`` is ``file:///folder`` or ``s3://bucket/prefix``. Without ``credentials`` the environment of each process has
    them (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, a role). ``cluster`` is the id that it must hold; empty: any.
    """

    url: str
    endpoint: str = ""
    region: str = ""
    credentials: S3Credentials | None = None
    cluster: str = ""

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> StoreLocation | None:
        """Return the location that options name, in any case of letters; None without the option ``tier2``.

        Raises:
            BadRequestError: an option is wrong. The text shows neither credentials nor an address that holds some.
        """
        lower = {name.lower(): value.strip() for name, value in options.items()}
        url, endpoint, region, key, secret, token, cluster = (lower.get(name.lower(), "") for name in OPTIONS)
        if not url:
            return None
        if bool(key) != bool(secret):
            raise BadRequestError("tier2AccessKeyId and tier2SecretAccessKey must be given together")
        if token and not key:
            raise BadRequestError("tier2SessionToken belongs to tier2AccessKeyId and tier2SecretAccessKey")
        if endpoint:
            _check_no_credentials("tier2Endpoint", endpoint)
            if urlsplit(endpoint).scheme not in ("http", "https"):
                raise BadRequestError(f"tier2Endpoint: {endpoint!r} begins with neither http:// nor https://")
        from tailrace.storage.obstores import S3Credentials

        credentials = S3Credentials(key, secret, token) if key else None
        return cls(_checked_url(url), endpoint, region, credentials, cluster.lower())

    def open(self) -> ObjectStore:
        """Open the store for reading. Raises StartError: there is no such folder, or the address is no store's."""
        from tailrace.storage.obstores import open_object_store

        return open_object_store(
            self.url,
            s3_endpoint=self.endpoint or None,
            s3_region=self.region or None,
            s3_credentials=self.credentials,
            create=False,
        )

    async def identity(self, store: ObjectStore) -> ClusterIdentity:
        """Return which cluster the store belongs to, and its number of containers.

        Raises:
            StartError: no cluster's, or another one's than ``cluster``. UnavailableError: the store does not answer.
        """
        found = await read_identity(store, f"Tier 2 {self.url}")
        if found is None:
            raise StartError(f"Tier 2 {self.url} has no {CLUSTER_KEY}: it belongs to no cluster. Check option tier2")
        if self.cluster and found.cluster_id.lower() != self.cluster:
            raise StartError(f"Tier 2 {self.url} belongs to cluster {found.cluster_id}, not to {self.cluster}")
        return found


def _checked_url(text: str) -> str:
    """Return a URL; a path without a scheme is a folder."""
    _check_no_credentials("tier2", text)
    if text.startswith("/"):
        return f"file://{text}"
    parts = urlsplit(text)
    if parts.scheme not in ("file", "s3") or not (parts.path if parts.scheme == "file" else parts.netloc):
        raise BadRequestError(f"tier2: {text!r} is neither a folder's absolute path nor s3://bucket/prefix")
    return text


def _check_no_credentials(option: str, text: str) -> None:
    try:
        parts = urlsplit(text)
        has_some = "@" in parts.netloc or bool(parts.query)
    except ValueError:
        raise BadRequestError(f"{option} is no URL") from None  # the text is not shown: it may hold a key
    if has_some:
        raise BadRequestError(
            f"{option}: credentials and parameters do not belong into the address; see tier2AccessKeyId"
        )
