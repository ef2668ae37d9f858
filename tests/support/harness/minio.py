"""A MinIO server that a test may stop and start."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import secrets
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from minio import Minio
from minio.credentials import StaticProvider
from minio.error import MinioException
from minio.minioadmin import MinioAdmin
from urllib3 import PoolManager
from urllib3.exceptions import HTTPError

from harness.ports import free_ports

READY_DEADLINE_S = 120.0
REQUEST_DEADLINE_S = 120.0
STOP_DEADLINE_S = 120.0
ACCESS_KEY = "tailrace-tests"


@dataclass
class MinioProcess:
    """MinIO over a folder, at the same port after every start."""

    binary: Path
    folder: Path
    secret_key: str = field(default_factory=lambda: secrets.token_hex(16))
    process: subprocess.Popen[bytes] | None = None

    def __post_init__(self) -> None:
        (self.port,) = free_ports(1)

    @property
    def endpoint(self) -> str:
        """Its URL."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> Path:
        """Where its output goes."""
        return self.folder / "log"

    @property
    def credentials(self) -> dict[str, str]:
        """What a client of it finds in its environment."""
        return {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": self.secret_key, "AWS_REGION": "us-east-1"}

    def new_bucket(self) -> str:
        """An empty bucket."""
        name = f"test-{secrets.token_hex(6)}"
        self._client().make_bucket(name)
        return name

    def new_user(self, bucket: str, actions: Sequence[str]) -> tuple[str, str]:
        """Make a user with these rights on a bucket and no others; return its access key and secret key."""
        admin = MinioAdmin(
            endpoint=f"127.0.0.1:{self.port}", credentials=StaticProvider(ACCESS_KEY, self.secret_key), secure=False
        )
        name, secret = f"user-{secrets.token_hex(4)}", secrets.token_hex(16)
        resources = [f"arn:aws:s3:::{bucket}", f"arn:aws:s3:::{bucket}/*"]
        allowed = {"Effect": "Allow", "Action": [*actions], "Resource": resources}
        admin.user_add(access_key=name, secret_key=secret)
        admin.policy_add(policy_name=name, policy={"Version": "2012-10-17", "Statement": [allowed]})
        admin.policy_set(policy_name=name, user=name)
        return name, secret

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
        transport = PoolManager(timeout=REQUEST_DEADLINE_S, retries=False)
        return Minio(f"127.0.0.1:{self.port}", ACCESS_KEY, self.secret_key, secure=False, http_client=transport)

    @property
    def is_running(self) -> bool:
        """Whether its process is there."""
        return self.process is not None and self.process.poll() is None

    async def start(self) -> float:
        """Start and wait until it serves; return the loop's time of the last look that found it away."""
        return await asyncio.to_thread(self.start_blocking)

    async def stop(self) -> None:
        """End it; what it stored stays."""
        await asyncio.to_thread(self.stop_blocking)

    async def kill(self) -> None:
        """End it by SIGKILL."""
        assert self.process is not None
        self.process.kill()
        await asyncio.to_thread(self.process.wait)

    def start_blocking(self) -> float:
        """``start`` outside of a loop, whose time is the monotonic clock's."""
        self.folder.mkdir(parents=True, exist_ok=True)
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder),
            "MINIO_ROOT_USER": ACCESS_KEY,
            "MINIO_ROOT_PASSWORD": self.secret_key,
            "MINIO_BROWSER": "off",
            "MINIO_UPDATE": "off",
        }
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [str(self.binary), "server", "--address", f"127.0.0.1:{self.port}", str(self.folder / "data")],
                env=environment,
                stdout=log,
                stderr=log,
            )
        away_s = began_s = time.monotonic()
        client = self._client()
        while True:
            looked_s = time.monotonic()
            assert self.process.poll() is None, self.log.read_text()[-2000:]
            # Its health is 200 a moment before it serves; in between it answers 503 with a Retry-After of a minute.
            with contextlib.suppress(MinioException, HTTPError):
                client.list_buckets()
                return away_s
            away_s = looked_s
            assert looked_s < began_s + READY_DEADLINE_S, self.log.read_text()[-2000:]
            time.sleep(0.05)  # another process, which has no other way to say that it is ready

    def stop_blocking(self) -> None:
        """``stop`` outside of a loop."""
        assert self.process is not None
        process, self.process = self.process, None
        process.terminate()
        try:
            process.wait(STOP_DEADLINE_S)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
