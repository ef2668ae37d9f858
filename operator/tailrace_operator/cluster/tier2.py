"""The object store of a StreamCluster as the operator looks at it, with `minio` (design §5, §11).

Nothing is written but a missing bucket. One question tells most: reading ``cluster.json`` shows whether the endpoint
answers, whether the credentials are right, whether the bucket is there, and whose it is.
"""

from __future__ import annotations

import asyncio
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol
from urllib.parse import urlsplit
from xml.etree import ElementTree

import minio
import urllib3
from minio.error import InvalidResponseError, MinioException, S3Error, ServerError

from tailrace.cluster.cluster_identity import CLUSTER_KEY, ClusterIdentity, parse_identity
from tailrace.common import limits
from tailrace.common.errors import StartError, TailraceError
from tailrace_operator.cluster.bounded_http import BoundedHttp

if TYPE_CHECKING:
    from tailrace_operator.schema.specs import Tier2Spec

_WRONG_CREDENTIALS: Final = {
    "InvalidAccessKeyId",
    "SignatureDoesNotMatch",
    "AuthorizationHeaderMalformed",
    "InvalidTokenId",
    "ExpiredToken",
}


@dataclass(frozen=True, slots=True)
class Credentials:
    """Of the object store; never shown."""

    access_key: str
    secret_key: str

    def __repr__(self) -> str:
        return "Credentials(…)"


class Tier2Error(TailraceError):
    """Tier 2 cannot be used as it is asked for. ``reason``: CamelCase; the message names the field and the fix.

    ``passing``: it may well be over by itself.
    """

    def __init__(self, reason: str, message: str, *, transient: bool = False) -> None:
        super().__init__(message)
        self.reason = reason
        self.transient = transient


class Tier2Probe(Protocol):
    """Looks at object stores."""

    async def look(self, tier2: Tier2Spec, credentials: Credentials) -> ClusterIdentity | None:
        """Whose bucket and prefix it is, None: nobody's yet. A bucket that is missing is made.

        Raises:
            Tier2Error: it cannot be used, for whichever reason.
        """
        ...


class MinioProbe:
    """Implements Tier2Probe. The client blocks, so it runs in a few threads; every question has a deadline."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(limits.TIER2_CHECK_THREADS, thread_name_prefix="tailrace-tier2")

    def close(self) -> None:
        """Look no more; questions under way end by themselves."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def look(self, tier2: Tier2Spec, credentials: Credentials) -> ClusterIdentity | None:
        """See Tier2Probe.look."""
        try:
            # The thread's deadlines are of single waits; this one is of the whole, waiting for a thread included.
            async with asyncio.timeout(2 * limits.TIER2_CHECK_DEADLINE_S):
                return await asyncio.get_running_loop().run_in_executor(self._threads, _look, tier2, credentials)
        except TimeoutError as error:
            raise _unreachable(tier2, f"no answer within {2 * limits.TIER2_CHECK_DEADLINE_S:g} s") from error


def _look(tier2: Tier2Spec, credentials: Credentials) -> ClusterIdentity | None:
    pool = BoundedHttp(limits.TIER2_CHECK_DEADLINE_S, limits.CLUSTER_IDENTITY_MAX_BYTES)
    try:
        return _ask(_client(tier2, credentials, pool), tier2)
    except Tier2Error:
        raise
    except StartError as error:  # the mark is damaged, or of a newer version
        raise Tier2Error("Unreadable", f"spec.tier2: {error}: give another bucket or prefix") from error
    except S3Error as error:
        raise _refused(tier2, error) from error
    except (ServerError, InvalidResponseError, ElementTree.ParseError, UnicodeDecodeError) as error:
        # Never what it answered: the operator may reach more than whoever made the resource.
        raise Tier2Error(
            "StoreFails",
            f"spec.tier2.endpoint: {tier2.endpoint} answers, but not as an object store{_status_of(error)}",
            transient=True,
        ) from error
    except (urllib3.exceptions.HTTPError, OSError) as error:
        raise _unreachable(tier2, _reason_of(error)) from error
    except (MinioException, ValueError) as error:
        raise Tier2Error("Invalid", f"spec.tier2: {error}") from error
    finally:
        pool.close()


def _reason_of(error: BaseException) -> str:
    """What the operating system or TLS says, without names of classes and files, nor what was answered."""
    found: BaseException | None = error
    while found is not None and not isinstance(found, OSError):
        found = found.__cause__ or found.__context__
    if found is None:
        if isinstance(error, urllib3.exceptions.ProtocolError):
            return "its answer is not HTTP, or breaks off"
        return re.sub(r"^(?:\w+\([^()]*\): )+", "", str(error))
    return re.sub(r" \(_ssl\.c:\d+\)$", "", found.strerror or str(found)) or "no answer"


def _status_of(error: Exception) -> str:
    found = re.search(r"(?:Response code: |status code )(\d{3})\b", str(error))
    return f": status {found[1]}" if found else ""


def _code(error: S3Error) -> str:
    """What the object store calls its error, if that is a word."""
    code = error.code or ""
    return code if re.fullmatch(r"[A-Za-z0-9.]{1,64}", code) else "an error without a name"


def _client(tier2: Tier2Spec, credentials: Credentials, pool: BoundedHttp) -> minio.Minio:
    url = urlsplit(tier2.endpoint)
    return minio.Minio(
        url.netloc,
        credentials.access_key,
        credentials.secret_key,
        secure=url.scheme == "https",
        region=tier2.region or "us-east-1",  # as the segment stores sign, and without a question about it
        http_client=pool,
    )


def _ask(client: minio.Minio, tier2: Tier2Spec) -> ClusterIdentity | None:
    key = f"{tier2.prefix}/{CLUSTER_KEY}" if tier2.prefix else CLUSTER_KEY
    try:
        answer = client.get_object(tier2.bucket, key)
    except S3Error as error:
        if error.code == "NoSuchKey":
            return None
        if error.code == "NoSuchBucket":
            _make(client, tier2)
            return None
        raise
    try:
        text = answer.read(limits.CLUSTER_IDENTITY_MAX_BYTES)
    finally:
        answer.close()
    return parse_identity(text, f"{tier2.url}/{CLUSTER_KEY}")


def _make(client: minio.Minio, tier2: Tier2Spec) -> None:
    try:
        client.make_bucket(tier2.bucket)
    except S3Error as error:
        if error.code == "BucketAlreadyOwnedByYou":  # somebody was faster
            return
        raise Tier2Error(
            "BucketMissing",
            f"spec.tier2.bucket: bucket {tier2.bucket} does not exist and cannot be made with the credentials of "
            f"Secret {tier2.credentials_secret} ({_code(error)}): make it, or let them make it",
        ) from error


def _refused(tier2: Tier2Spec, error: S3Error) -> Tier2Error:
    secret = tier2.credentials_secret
    if error.code in _WRONG_CREDENTIALS:
        return Tier2Error(
            "CredentialsWrong",
            f"spec.tier2.credentialsSecret: {tier2.endpoint} does not take the credentials of Secret {secret} "
            f"({_code(error)}): correct its accessKey and secretKey",
        )
    if error.code in ("AccessDenied", "AllAccessDisabled"):
        return Tier2Error(
            "AccessDenied",
            f"spec.tier2.credentialsSecret: the credentials of Secret {secret} may not read {tier2.url}: let them "
            "read, write, list and delete there",
        )
    if error.code in ("NoSuchBucket", "InvalidBucketName"):
        return Tier2Error("BucketMissing", f"spec.tier2.bucket: bucket {tier2.bucket} cannot be used: {_code(error)}")
    return Tier2Error(
        "StoreFails",
        f"spec.tier2.endpoint: {tier2.endpoint} answers {_code(error)}: see to the object store",
        transient=True,
    )


def _unreachable(tier2: Tier2Spec, why: str) -> Tier2Error:
    return Tier2Error(
        "EndpointUnreachable",
        f"spec.tier2.endpoint: {tier2.endpoint} cannot be reached: correct it, or see to the object store "
        f"({why[:200]})",
        transient=True,
    )
