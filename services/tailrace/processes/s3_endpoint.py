"""Checks the options with which a server reaches an object store of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tailrace.common.errors import StartError

if TYPE_CHECKING:
    from collections.abc import Mapping

_S3_CREDENTIALS: Final = (
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
"""Any of these gives the S3 client its credentials."""


def check_s3_endpoint(tier2: str, endpoint: str | None, environment: Mapping[str, str]) -> None:
    """Raise StartError for an endpoint without credentials: the S3 client would search for them elsewhere."""
    if endpoint is None:
        return
    if not tier2 or tier2.startswith("file:"):
        raise StartError("--s3-endpoint needs --tier2 s3://BUCKET/PREFIX")
    if not endpoint.startswith(("http://", "https://")):
        raise StartError(f"--s3-endpoint {endpoint!r} is not of the form http://HOST:PORT")
    if not any(environment.get(name) for name in _S3_CREDENTIALS):
        raise StartError("--s3-endpoint needs AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment")
