"""URLs of Tier 2: what cannot be meant is refused before anything is made."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from harness.s3endpoint import S3Endpoint
from tailrace.common.errors import StartError
from tailrace.storage.obstores import open_object_store


@pytest.mark.parametrize("slashes", ["file://", "file:", "file://./", "file://host/"])
def test_a_folder_that_is_not_absolute_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slashes: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StartError, match=r"must be absolute, with three slashes: file:///folder$"):
        open_object_store(f"{slashes}tailrace-relative/tier2")
    assert not any(tmp_path.iterdir())
    assert not Path("/tier2").exists()


@pytest.mark.parametrize("host", ["", "localhost"])
def test_an_absolute_folder_is_made(tmp_path: Path, host: str) -> None:
    open_object_store(f"file://{host}{tmp_path}/tier2")
    assert (tmp_path / "tier2").is_dir()


def files_in(folder: Path) -> list[str]:
    return [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()]


@pytest.mark.parametrize("name", ["run#1", "what?now", "a%20b", "c;d", "e?f#g"])
async def test_a_folder_has_any_name(tmp_path: Path, name: str) -> None:
    """Nothing of a path is a query or a fragment: two folders would share a third one."""
    store = open_object_store(f"file://{tmp_path}/{name}/tier2")
    await store.put("c0/key", [b"data"])
    assert [info.key async for info in store.list("c0")] == ["c0/key"]
    assert files_in(tmp_path) == [f"{name}/tier2/c0/key"]


@pytest.mark.parametrize("url", ["s3://bucket/run#1", "s3://bucket/run?1", "s3://bucket#1", "s3://bucket/a?b#c"])
def test_a_prefix_of_a_bucket_that_would_be_cut_off_is_refused(url: str) -> None:
    with pytest.raises(StartError, match=r"contains neither \? nor #"):
        open_object_store(url, s3_endpoint="http://127.0.0.1:1")


@pytest.mark.parametrize("url", ["ftp://host/folder", "s3:///prefix", "folder", "/folder"])
def test_other_kinds_are_refused(url: str) -> None:
    with pytest.raises(StartError, match=r"is neither file:///folder nor s3://bucket/prefix"):
        open_object_store(url)


class SignedFor(S3Endpoint):
    """Takes any object, and keeps the region that its client signed the last request for."""

    def __init__(self) -> None:
        super().__init__()
        self.region = ""

    def answer(self, verb: str, path: str, fields: Mapping[str, str], body: bytes) -> tuple[str, bytes]:
        """See S3Endpoint."""
        self.region = fields["authorization"].split("/")[2]  # credential=key/date/region/s3/aws4_request
        return "200 OK", b""


@pytest.mark.parametrize(
    ("environment", "region"),
    [
        ({}, "us-east-1"),
        ({"AWS_REGION": "eu-west-1"}, "eu-west-1"),
        ({"AWS_DEFAULT_REGION": "eu-west-2"}, "eu-west-2"),
        ({"AWS_REGION": "", "AWS_DEFAULT_REGION": "eu-west-2"}, "eu-west-2"),
        ({"AWS_REGION": "eu-west-1", "AWS_DEFAULT_REGION": "eu-west-2"}, "eu-west-1"),
        ({"AWS_REGION": "", "AWS_DEFAULT_REGION": ""}, "us-east-1"),
    ],
)
async def test_the_region_of_the_environment_counts_with_an_endpoint_too(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], region: str
) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    keys = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
    for name, value in (keys | environment).items():
        monkeypatch.setenv(name, value)
    server = SignedFor()
    async with server.serving() as store:
        await store.put("k", [b"x"])
    assert server.region == region
