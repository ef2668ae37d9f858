"""Opens object stores by their URL: local folder, S3 and compatible stores, memory (docs/design.md#tier-2)."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from obstore.exceptions import PermissionDeniedError as ObjectPermissionError
from obstore.store import MemoryStore, S3Store

from tailrace.common import limits
from tailrace.common.errors import (
    AlreadyExistsError,
    NoSuchBucketError,
    NotFoundError,
    StartError,
    UnavailableError,
)
from tailrace.storage.folder_files import make_root
from tailrace.storage.folder_objects import FolderObjects
from tailrace.storage.obstore_objects import ObstoreObjects

if TYPE_CHECKING:
    from tailrace.storage.port import ObjectStore


@dataclass(frozen=True, slots=True)
class S3Credentials:
    """An access key of an S3 store; its text shows no secret. ``session_token`` is empty for a lasting key."""

    access_key_id: str
    secret_access_key: str = field(repr=False)
    session_token: str = field(default="", repr=False)


def open_object_store(
    url: str,
    *,
    s3_endpoint: str | None = None,
    s3_region: str | None = None,
    s3_credentials: S3Credentials | None = None,
    create: bool = True,
) -> ObjectStore:
    """Open an object store from ``file:///folder``, ``s3://bucket/prefix`` or ``memory://``.

    Creates a missing folder, durably, unless `create` is false. Credentials and region come from the environment
    (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY; AWS_REGION or AWS_DEFAULT_REGION); `s3_region` and `s3_credentials`
    override them. With `s3_endpoint` and no region it is us-east-1.

    Raises:
        StartError: the URL has another form, or the folder cannot be used.
    """
    scheme, host, path = _parts(url)
    if scheme == "memory":
        return ObstoreObjects(MemoryStore())
    if scheme == "file":
        if host not in ("", "localhost") or not path.startswith("/"):
            raise StartError(f"Tier 2 {url!r}: the folder must be absolute, with three slashes: file:///folder")
        folder = Path(path)
        if not create and not folder.is_dir():
            raise StartError(f"Tier 2 folder {folder} does not exist")
        if create:  # else it may be a folder that can only be read
            try:
                make_root(folder)
            except OSError as error:
                raise StartError(f"Tier 2 folder {folder} cannot be used: {error.strerror}") from error
        return FolderObjects(folder)
    if scheme == "s3" and host:
        if "?" in url or "#" in url:
            raise StartError(f"Tier 2 {url!r}: the prefix in a bucket contains neither ? nor #")
        options: dict[str, Any] = {}
        if s3_endpoint:
            options = {"endpoint": s3_endpoint, "virtual_hosted_style_request": False}
            # Stores with an endpoint of their own seldom ask for a region, but signatures need one.
            named = (os.environ.get(name) for name in ("AWS_REGION", "AWS_DEFAULT_REGION"))
            options["region"] = next(filter(None, named), "us-east-1")
        if s3_region:
            options["region"] = s3_region
        if s3_credentials:
            options["access_key_id"] = s3_credentials.access_key_id
            options["secret_access_key"] = s3_credentials.secret_access_key
        if s3_credentials and s3_credentials.session_token:
            options["session_token"] = s3_credentials.session_token
        store = S3Store(
            host,
            # Each call has a deadline of its own, which cancels its request.
            client_options={"allow_http": True, "timeout": timedelta(seconds=limits.STORAGE_CALL_DEADLINE_MAX_S)},
            retry_config={"max_retries": 3, "retry_timeout": timedelta(seconds=10)},
            **options,
        )
        return ObstoreObjects(store, path)
    raise StartError(f"Tier 2 {url!r} is neither file:///folder nor s3://bucket/prefix")


def _parts(url: str) -> tuple[str, str, str]:
    """Return scheme, host and path. Nothing is escaped: a folder's name may have any character, also ? and #."""
    scheme, _, rest = url.partition(":")
    if not rest.startswith("//"):
        return scheme.lower(), "", rest
    host, slash, path = rest[2:].partition("/")
    return scheme.lower(), host, slash + path


async def probe(store: ObjectStore, nonce: str, place: str = "Tier 2") -> None:
    """Write, read back and delete one object, to find a wrong address or credential at start.

    Raises:
        StartError: it is no store for this cluster; the text names `place` and the store's error.
        UnavailableError: it does not take objects, as a full one, or does not answer; the text says the same.
    """
    key = f"probe/{nonce}"
    try:
        try:
            await store.put(key, [nonce.encode()], if_absent=True)
        except (NoSuchBucketError, NotFoundError) as error:
            raise StartError(f"{place} does not exist: objects cannot be stored there") from error
        except AlreadyExistsError as error:  # perhaps because of an own attempt, whose reply was lost
            await _find_own(store, key, error)
        if await store.get(key) != nonce.encode():
            raise StartError(f"{place} returned other bytes than those written")
        await store.delete([key])
    except UnavailableError as error:
        raise UnavailableError(f"{place} is not available: {error}") from error
    except (NotFoundError, ObjectPermissionError) as error:
        raise StartError(f"{place} is not available: {error}") from error


async def _find_own(store: ObjectStore, key: str, denied: AlreadyExistsError) -> None:
    """Raise UnavailableError when a put-if-absent was denied, and there is no object."""
    try:
        await store.get(key)
    except NotFoundError:
        raise UnavailableError(f"put {key}: conflict with a concurrent put") from denied
