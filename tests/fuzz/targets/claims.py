"""Claims of the object log, behind a right checksum."""

from __future__ import annotations

from collections.abc import Iterator

from tailrace.common.errors import CorruptionError, FormatVersionError
from tailrace.kernel import crc32c
from tailrace.log.claims import Claim

DOCUMENTED = (CorruptionError, FormatVersionError)


def run(data: bytes) -> None:
    Claim.decode(data + crc32c(data).to_bytes(4, "big"), "fuzz")


def seeds() -> Iterator[bytes]:
    yield Claim(3, 4, 5, bytes(range(16))).encode()[:-4]
