"""URLs of Tier 2: what cannot be meant is refused before anything is made."""

from __future__ import annotations

from pathlib import Path

import pytest

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


@pytest.mark.parametrize("url", ["ftp://host/folder", "s3:///prefix", "folder", "/folder"])
def test_other_kinds_are_refused(url: str) -> None:
    with pytest.raises(StartError, match=r"is neither file:///folder nor s3://bucket/prefix"):
        open_object_store(url)
