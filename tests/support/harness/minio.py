"""A MinIO server that a test may stop and start."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import secrets
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from minio import Minio

from harness.ports import free_ports

READY_DEADLINE_S = 60.0
STOP_DEADLINE_S = 20.0
ACCESS_KEY = "tailrace-tests"


@dataclass
class MinioProcess:
    """MinIO over a folder, at the same port after every start."""

    binary: Path
    folder: Path
    secret_key: str = field(default_factory=lambda: secrets.token_hex(16))
    process: asyncio.subprocess.Process | None = None

    def __post_init__(self) -> None:
        (self.port,) = free_ports(1)

    @property
    def endpoint(self) -> str:
        """Its URL."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def credentials(self) -> dict[str, str]:
        """What a client of it finds in its environment."""
        return {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": self.secret_key, "AWS_REGION": "us-east-1"}

    def new_bucket(self) -> str:
        """An empty bucket."""
        name = f"test-{secrets.token_hex(6)}"
        self._client().make_bucket(name)
        return name

    def objects(self, bucket: str) -> dict[str, int]:
        """Sizes of the objects of a bucket by key."""
        return {str(item.object_name): item.size or 0 for item in self._client().list_objects(bucket, recursive=True)}

    def put(self, bucket: str, key: str, data: bytes) -> None:
        """Store an object over whatever is there."""
        self._client().put_object(bucket, key, io.BytesIO(data), len(data))

    def files_of(self, bucket: str) -> Path:
        """The folder where the files of a bucket's objects appear."""
        return self.folder / "data" / bucket

    def _client(self) -> Minio:
        return Minio(f"127.0.0.1:{self.port}", ACCESS_KEY, self.secret_key, secure=False)

    async def start(self) -> float:
        """Start and wait until it serves; return the loop's time of the last look that found it away."""
        self.folder.mkdir(parents=True, exist_ok=True)
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder),
            "MINIO_ROOT_USER": ACCESS_KEY,
            "MINIO_ROOT_PASSWORD": self.secret_key,
            "MINIO_BROWSER": "off",
            "MINIO_UPDATE": "off",
        }
        with (self.folder / "log").open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *(str(self.binary), "server", "--address", f"127.0.0.1:{self.port}", str(self.folder / "data")),
                env=environment,
                stdout=log,
                stderr=log,
            )
        async with asyncio.timeout(READY_DEADLINE_S), httpx.AsyncClient() as client:
            away_s = asyncio.get_running_loop().time()
            while True:
                looked_s = asyncio.get_running_loop().time()
                assert self.process.returncode is None, (self.folder / "log").read_text()[-2000:]
                with contextlib.suppress(httpx.HTTPError):
                    if (await client.get(f"{self.endpoint}/minio/health/ready")).status_code == 200:
                        return away_s
                away_s = looked_s
                await asyncio.sleep(0.05)

    async def stop(self) -> None:
        """End it; what it stored stays."""
        assert self.process is not None
        process, self.process = self.process, None
        process.terminate()
        try:
            async with asyncio.timeout(STOP_DEADLINE_S):
                await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    async def __aenter__(self) -> MinioProcess:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self.process is not None:
            await self.stop()
