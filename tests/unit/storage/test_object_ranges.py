"""Reading ranges of objects: what lies beyond the end is corruption, a store that does not answer never is."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.common.errors import CorruptionError, UnavailableError
from tailrace.storage.obstores import open_object_store


@pytest.mark.parametrize("kind", ["memory", "file"])
@pytest.mark.parametrize(("offset", "length"), [(5, 10), (10, 1), (20, 5)])
async def test_a_range_beyond_the_end_is_corruption(tmp_path: Path, kind: str, offset: int, length: int) -> None:
    store = open_object_store("memory://" if kind == "memory" else tmp_path.as_uri())
    await store.put("orange", [b"0123456789"])
    assert await store.get_range("orange", 3, 7) == b"3456789"
    with pytest.raises(CorruptionError, match=f"object orange at {offset}"):
        await store.get_range("orange", offset, length)


async def test_an_outage_of_a_bucket_whose_name_sounds_like_a_range(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    store = open_object_store("s3://orange/prefix", s3_endpoint="http://127.0.0.1:9")
    with pytest.raises(UnavailableError):
        await store.get_range("c7/object", 5, 10)
