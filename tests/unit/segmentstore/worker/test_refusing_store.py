"""A server over a folder says that the object store refuses all its requests, and serves what it can meanwhile."""

from __future__ import annotations

import asyncio
import re
import socket
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
import structlog

from harness.s3endpoint import S3Endpoint
from tailrace.common import limits
from tailrace.common.loop_stalls import LoopStalls
from tailrace.common.real_ports import SystemClock, SystemEntropy
from tailrace.segmentstore.worker.admin import create_app
from tailrace.segmentstore.worker.folder_service import StoreService, StoreSpec

NAME = "scope/stream/0.#epoch.0"
NO_KEY = b"<?xml version='1.0'?><Error><Code>NoSuchKey</Code></Error>"
REVOKED = (
    b"<?xml version='1.0'?><Error><Code>InvalidAccessKeyId</Code><Message>The key does not exist.</Message></Error>"
)


class RevokingS3(S3Endpoint):
    """As much of S3 as a server needs; ``revoked``: its key has no rights any more."""

    def __init__(self) -> None:
        super().__init__()
        self.objects: dict[str, bytes] = {}
        self.revoked = False

    def answer(self, verb: str, path: str, fields: Mapping[str, str], body: bytes) -> tuple[str, bytes]:
        """See S3Endpoint."""
        if self.revoked:
            return "403 Forbidden", REVOKED
        key = path.removeprefix("/bucket/")
        if verb == "POST":
            keys = re.findall("<Key>(.*?)</Key>", body.decode())
            for each in keys:
                self.objects.pop(each, None)
            deleted = "".join(f"<Deleted><Key>{each}</Key></Deleted>" for each in keys)
            return "200 OK", f"<DeleteResult>{deleted}</DeleteResult>".encode()
        if verb == "PUT":
            if "if-none-match" in fields and key in self.objects:
                return "412 Precondition Failed", b"<Error><Code>PreconditionFailed</Code></Error>"
            self.objects[key] = body
            return "200 OK", b""
        if "?" in path:
            prefix = parse_qs(urlsplit(path).query)["prefix"][0]
            contents = "".join(
                f"<Contents><Key>{each}</Key><Size>1</Size><LastModified>2015-10-21T07:28:00.000Z</LastModified></Contents>"
                for each in sorted(self.objects)
                if each.startswith(prefix)
            )
            return "200 OK", f"<ListBucketResult>{contents}</ListBucketResult>".encode()
        return ("200 OK", self.objects[key]) if key in self.objects else ("404 Not Found", NO_KEY)


async def ask(service: StoreService, path: str) -> httpx.Response:
    transport = httpx.ASGITransport(app=create_app(service.worker, service.server, LoopStalls()))
    async with httpx.AsyncClient(transport=transport, base_url="http://store:6061") as client:
        return await client.get(path)


async def health(service: StoreService) -> dict[str, Any]:
    answer: dict[str, Any] = (await ask(service, "/v1/health")).json()
    return answer


async def troubles(service: StoreService, expected: str) -> dict[str, Any]:
    """Wait until the first trouble begins so; no trouble: an empty text."""
    async with asyncio.timeout(120):
        while True:
            found = await health(service)
            first = next(iter(found["troubles"]), "")
            if first.startswith(expected) and bool(first) == bool(expected):
                return found
            await asyncio.sleep(0.01)


async def test_revoked_keys_are_reported_while_it_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hidden-secret")
    for name, seconds in (
        ("WORKER_STORE_PROBE_S", 0.02),
        ("WORKER_STORE_SILENT_S", 1.0),
        ("FOLDER_STORE_PROBE_S", 0.05),
    ):
        monkeypatch.setattr(limits, name, seconds)
    s3 = RevokingS3()
    data = tmp_path / "data"
    data.mkdir()
    async with s3.serving() as store:
        endpoint: str = store._store.config["endpoint"]  # type: ignore[attr-defined]
        spec = StoreSpec(str(data), "s3://bucket/p", endpoint, str(uuid.UUID(int=7)), 1, (0,), 64 * limits.MIB)
        service = StoreService(spec, SystemClock(), SystemEntropy(), 2)
        await service.start()
        try:
            await service.listen_on(socket.create_server(("127.0.0.1", 0)))
            container = service.worker.container_by_id(0)
            await container.create_segment(NAME)
            assert (await health(service))["troubles"] == []
            with structlog.testing.capture_logs() as logs:
                s3.revoked = True
                found = await troubles(service, "the object store has refused requests for ")
                assert "403 Forbidden: InvalidAccessKeyId: The key does not exist." in found["troubles"][0]
                assert "hidden" not in found["troubles"][0]
                assert found["ready"], "all servers would leave at once if that decided"
                assert [await container.append(NAME, [b"x"])], "the log is in the folder"
                lines = (await ask(service, "/metrics")).text.splitlines()
                (silent,) = [line for line in lines if line.startswith("tailrace_worker_store_silent_seconds ")]
                assert float(silent.split()[1]) >= 1.0
                s3.revoked = False
                await troubles(service, "")
                async with asyncio.timeout(120):
                    while not any(line["event"] == "object_store_serves_again" for line in logs):  # noqa: ASYNC110
                        await asyncio.sleep(0.01)
            (line,) = [line for line in logs if line["event"] == "object_store_does_not_serve"]
            assert "InvalidAccessKeyId" in line["reason"]
        finally:
            s3.revoked = False
            await service.close()
