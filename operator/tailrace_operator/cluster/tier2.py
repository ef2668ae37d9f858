"""Check the object store of a StreamCluster, with `minio` (docs/design.md#tier-2, docs/design.md#resources).

One check reads ``cluster.json``. This shows whether the endpoint answers, whether the credentials are right, whether
the bucket exists, and which cluster it belongs to; it creates a missing bucket. Another one puts, reads, lists and
deletes one small object, which shows whether the credentials may do that and whether there is space.
"""

from __future__ import annotations

import contextlib
import functools
import io
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, TypeVar
from urllib.parse import urlsplit
from xml.etree import ElementTree

import minio
import urllib3
from minio.error import InvalidResponseError, MinioException, S3Error, ServerError

from tailrace.cluster.cluster_identity import CLUSTER_KEY, ClusterIdentity, parse_identity
from tailrace.common import limits
from tailrace.common.errors import StartError, TailraceError
from tailrace_operator.cluster.bounded_http import BoundedHttp, HeaderError
from tailrace_operator.cluster.bucket_rules import BucketRules, read_rules
from tailrace_operator.cluster.check_threads import CheckThreads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tailrace_operator.schema.specs import Tier2Spec

T = TypeVar("T")

_WRONG_CREDENTIALS: Final = {
    "InvalidAccessKeyId",
    "SignatureDoesNotMatch",
    "InvalidTokenId",
    "ExpiredToken",
}
_WRONG_REGION: Final = "AuthorizationHeaderMalformed"
"""The code of a signature for another region than the bucket's, or with an access key that is none."""
_REGION: Final = "us-east-1"  # of requests where the resource names none, as in segment stores
ACCESS_DENIED: Final = "AccessDenied"
"""The reason of credentials that may not do something."""
_DENIED: Final = {"AccessDenied", "AllAccessDisabled"}


@dataclass(frozen=True, slots=True)
class Credentials:
    """Credentials of the object store; never shown."""

    access_key: str
    secret_key: str

    def __repr__(self) -> str:
        return "Credentials(…)"


class Tier2Error(TailraceError):
    """Tier 2 cannot be used as specified. ``reason``: in CamelCase; the message names the field and the fix.

    ``transient``: waiting may fix it, too.
    """

    def __init__(self, reason: str, message: str, *, transient: bool = False) -> None:
        super().__init__(message)
        self.reason = reason
        self.transient = transient


class Tier2Probe(Protocol):
    """Checks object stores."""

    async def rules(self, tier2: Tier2Spec, credentials: Credentials) -> BucketRules:
        """Return the bucket's own rules about deletions. Raises as `look`."""
        ...

    async def look(
        self, tier2: Tier2Spec, credentials: Credentials, *, creates_bucket: bool = True
    ) -> ClusterIdentity | None:
        """Return which cluster bucket and prefix belong to; None: to no cluster yet, or the bucket is missing.

        Create a missing bucket, unless `creates_bucket` is false.

        Raises:
            Tier2Error: the object store cannot be used. UnavailableError: it was not asked, because other checks last.
        """
        ...

    async def prove_rights(self, tier2: Tier2Spec, credentials: Credentials) -> None:
        """Put, read, list and delete one small object. Call it only for a place that `look` gave to this cluster.

        Raises:
            Tier2Error: the object store refuses one of these, or cannot be used. UnavailableError as `look`.
        """
        ...


class MinioProbe:
    """Implements Tier2Probe. The client blocks, so it runs in threads; every check has a deadline."""

    def __init__(self) -> None:
        self._threads = CheckThreads()
        self._proofs = 0

    def close(self) -> None:
        """Stop the threads; checks in progress end at their deadlines."""
        self._threads.close()

    async def look(
        self, tier2: Tier2Spec, credentials: Credentials, *, creates_bucket: bool = True
    ) -> ClusterIdentity | None:
        """See Tier2Probe.look."""
        return await self._run(functools.partial(_ask, creates_bucket), tier2, credentials)

    async def rules(self, tier2: Tier2Spec, credentials: Credentials) -> BucketRules:
        """See Tier2Probe.rules."""
        return await self._run(read_rules, tier2, credentials)

    async def prove_rights(self, tier2: Tier2Spec, credentials: Credentials) -> None:
        """See Tier2Probe.prove_rights."""
        self._proofs += 1
        await self._run(functools.partial(_prove_rights, self._proofs), tier2, credentials)

    async def _run(self, ask: Callable[[minio.Minio, Tier2Spec], T], tier2: Tier2Spec, credentials: Credentials) -> T:
        deadline_s = 2 * limits.TIER2_CHECK_DEADLINE_S  # names are resolved before the other one begins
        try:
            check = functools.partial(_answered, ask, tier2, credentials)
            return await self._threads.run(tier2.endpoint, check, deadline_s)
        except TimeoutError as error:
            raise _unreachable(tier2, f"no response within {deadline_s:g} s") from error


def _answered(ask: Callable[[minio.Minio, Tier2Spec], T], tier2: Tier2Spec, credentials: Credentials) -> T:
    """Ask the object store with a client of its own. Raises Tier2Error."""
    pool = BoundedHttp(limits.TIER2_CHECK_DEADLINE_S, limits.TIER2_CHECK_ANSWER_MAX_BYTES)
    try:
        return ask(_client(tier2, credentials, pool), tier2)
    except Tier2Error:
        raise
    except StartError as error:  # cluster.json is damaged, or of a newer version
        raise Tier2Error("Unreadable", f"spec.tier2: {error}: set another bucket or prefix") from error
    except S3Error as error:
        raise _refused(tier2, error) from error
    except (ServerError, InvalidResponseError, ElementTree.ParseError, UnicodeDecodeError) as error:
        # Never show the response: the operator may reach endpoints that the user who made the resource may not.
        raise Tier2Error(
            "StoreFails",
            f"spec.tier2.endpoint: {tier2.endpoint} does not respond as an object store{_status_of(error)}",
            transient=True,
        ) from error
    except (urllib3.exceptions.HTTPError, OSError) as error:
        raise _unreachable(tier2, _reason_of(error)) from error
    except HeaderError:
        raise Tier2Error(
            "SecretInvalid",
            f"spec.tier2.credentialsSecret: no request to {tier2.endpoint} can be made with the credentials of Secret "
            f"{tier2.credentials_secret}: correct its accessKey and secretKey",
        ) from None
    except (MinioException, ValueError) as error:
        raise Tier2Error("Invalid", f"spec.tier2: {error}") from error
    finally:
        pool.close()


def _reason_of(error: BaseException) -> str:
    """Return the error of the operating system or TLS, without class names, file names or the response."""
    found: BaseException | None = error
    while found is not None and not isinstance(found, OSError):
        found = found.__cause__ or found.__context__
    if found is None:
        if isinstance(error, urllib3.exceptions.ProtocolError):
            return "its response is not HTTP, or is incomplete"
        return re.sub(r"^(?:\w+\([^()]*\): )+", "", str(error))
    return re.sub(r" \(_ssl\.c:\d+\)$", "", found.strerror or str(found)) or "no response"


def _status_of(error: Exception) -> str:
    found = re.search(r"(?:Response code: |status code )(\d{3})\b", str(error))
    return f": status {found[1]}" if found else ""


def _code(error: S3Error) -> str:
    """Return the object store's error code, if it is a single word."""
    code = error.code or ""
    return code if re.fullmatch(r"[A-Za-z0-9.]{1,64}", code) else "an error without a code"


def _client(tier2: Tier2Spec, credentials: Credentials, pool: BoundedHttp) -> minio.Minio:
    url = urlsplit(tier2.endpoint)
    return minio.Minio(
        url.netloc,
        credentials.access_key,
        credentials.secret_key,
        secure=url.scheme == "https",
        region=tier2.region or _REGION,  # the region that segment stores sign with; it saves a request
        http_client=pool,
    )


def _ask(creates_bucket: bool, client: minio.Minio, tier2: Tier2Spec) -> ClusterIdentity | None:
    key = f"{tier2.prefix}/{CLUSTER_KEY}" if tier2.prefix else CLUSTER_KEY
    try:
        answer = client.get_object(tier2.bucket, key)
    except S3Error as error:
        if error.code == "NoSuchKey":
            return None
        if error.code == "NoSuchBucket":
            if creates_bucket:
                _make(client, tier2)
            return None
        raise
    try:
        text = answer.read(limits.CLUSTER_IDENTITY_MAX_BYTES)
    finally:
        answer.close()
    return parse_identity(text, f"{tier2.url}/{CLUSTER_KEY}")


def _prove_rights(number: int, client: minio.Minio, tier2: Tier2Spec) -> None:
    """Use each right that segment stores need once, on an object below ``probe/``, where left-overs do no harm.

    `number` makes the content that of this check.
    """
    folder = f"{tier2.prefix}/probe" if tier2.prefix else "probe"
    key, content = f"{folder}/operator", f"check {number} of the operator".encode()
    with _right("write", tier2):
        client.put_object(tier2.bucket, key, io.BytesIO(content), len(content))
    with _right("read", tier2):
        answer = client.get_object(tier2.bucket, key)
        try:
            found = answer.read(len(content) + 1)
        finally:
            answer.close()
    with _right("list", tier2):
        listed = any(item.object_name == key for item in client.list_objects(tier2.bucket, prefix=key))
    with _right("delete", tier2):
        client.remove_object(tier2.bucket, key)
    if found != content or not listed:
        what = "a read does not return" if found != content else "a list does not show"
        raise Tier2Error(
            "StoreFails",
            f"spec.tier2.endpoint: {tier2.endpoint}: {what} an object that was put just before: use a store with "
            "consistent reads and lists",
            transient=True,
        )


@contextlib.contextmanager
def _right(verb: str, tier2: Tier2Spec) -> Iterator[None]:
    """Name what the credentials may not do."""
    try:
        yield
    except S3Error as error:
        if error.code not in _DENIED:
            raise
        raise _denied(verb, tier2) from error


def _make(client: minio.Minio, tier2: Tier2Spec) -> None:
    try:
        client.make_bucket(tier2.bucket)
    except S3Error as error:
        if error.code == "BucketAlreadyOwnedByYou":  # another client created it at the same time
            return
        raise Tier2Error(
            "BucketMissing",
            f"spec.tier2.bucket: bucket {tier2.bucket} does not exist, and the credentials of Secret "
            f"{tier2.credentials_secret} may not create it ({_code(error)}): create it, or allow them to",
        ) from error


def _refused(tier2: Tier2Spec, error: S3Error) -> Tier2Error:
    secret = tier2.credentials_secret
    if error.code in _WRONG_CREDENTIALS:
        return Tier2Error(
            "CredentialsWrong",
            f"spec.tier2.credentialsSecret: {tier2.endpoint} rejects the credentials of Secret {secret} "
            f"({_code(error)}): correct its accessKey and secretKey",
        )
    if error.code == _WRONG_REGION:
        return Tier2Error(
            "CredentialsWrong",
            f"spec.tier2.region: {tier2.endpoint} rejects signatures for region {tier2.region or _REGION} "
            f"({_code(error)}): set it to the bucket's region, or correct the accessKey of Secret {secret}",
        )
    if error.code in _DENIED:
        return _denied("read", tier2)
    if error.code in ("NoSuchBucket", "InvalidBucketName"):
        return Tier2Error("BucketMissing", f"spec.tier2.bucket: bucket {tier2.bucket} cannot be used: {_code(error)}")
    return Tier2Error(
        "StoreFails",
        f"spec.tier2.endpoint: {tier2.endpoint} responds with {_code(error)}: check the object store",
        transient=True,
    )


def _denied(verb: str, tier2: Tier2Spec) -> Tier2Error:
    return Tier2Error(
        ACCESS_DENIED,
        f"spec.tier2.credentialsSecret: the credentials of Secret {tier2.credentials_secret} may not {verb} "
        f"{tier2.url}: allow them to read, write, list and delete there",
    )


def _unreachable(tier2: Tier2Spec, why: str) -> Tier2Error:
    return Tier2Error(
        "EndpointUnreachable",
        f"spec.tier2.endpoint: {tier2.endpoint} cannot be reached: correct it, or check the object store ({why[:200]})",
        transient=True,
    )
