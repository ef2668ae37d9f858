"""Where Tier 2 is: options, credentials that no text shows, and the cluster it must hold."""

from __future__ import annotations

import pickle
import subprocess
import sys
import traceback
import uuid
from pathlib import Path

import pytest

from tailrace.cluster.cluster_identity import bind_tier2
from tailrace.common.errors import BadRequestError, StartError
from tailrace.pipelines.direct import StoreLocation
from tailrace.storage.obstores import S3Credentials

SECRET = "very-secret"
ID = str(uuid.UUID(int=7))


def location(**options: str) -> StoreLocation:
    found = StoreLocation.from_options(options)
    assert found is not None
    return found


def test_options_name_a_folder_or_a_bucket() -> None:
    assert StoreLocation.from_options({"controller": "tcp://127.0.0.1:9090"}) is None
    assert location(tier2="/a/folder").url == "file:///a/folder"
    assert location(TIER2="file:///a/folder", tier2cluster=ID.upper()).cluster == ID
    named = location(
        tier2="s3://bucket/a/prefix",
        tier2endpoint="http://127.0.0.1:9000",
        tier2Region="eu-west-1",
        tier2AccessKeyId="key",
        tier2SecretAccessKey=SECRET,
        tier2SessionToken=SECRET,
    )
    assert (named.url, named.endpoint, named.region) == ("s3://bucket/a/prefix", "http://127.0.0.1:9000", "eu-west-1")
    assert named.credentials == S3Credentials("key", SECRET, SECRET)
    assert SECRET not in f"{named!r} {named}"
    assert pickle.loads(pickle.dumps(named)) == named


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tier2": "a/folder"}, "neither a folder's absolute path nor s3://bucket/prefix"),
        ({"tier2": "memory://"}, "neither"),
        ({"tier2": "s3:///prefix"}, "neither"),
        ({"tier2": f"s3://key:{SECRET}@bucket/prefix"}, "tier2: credentials"),
        ({"tier2": f"s3://bucket/prefix?secret={SECRET}"}, "tier2: credentials"),
        ({"tier2": f"s3://[{SECRET}"}, "tier2 is no URL"),
        ({"tier2": "s3://b/p", "tier2Endpoint": f"http://key:{SECRET}@host"}, "tier2Endpoint: credentials"),
        ({"tier2": "s3://b/p", "tier2Endpoint": "127.0.0.1:9000"}, "begins with neither http"),
        ({"tier2": "s3://b/p", "tier2SecretAccessKey": SECRET}, "must be given together"),
        ({"tier2": "s3://b/p", "tier2SessionToken": SECRET}, "belongs to"),
    ],
)
def test_a_wrong_option_is_one_line_without_a_secret(options: dict[str, str], words: str) -> None:
    with pytest.raises(BadRequestError, match=words) as raised:
        StoreLocation.from_options(options)
    assert SECRET not in "".join(traceback.format_exception(raised.value))


async def test_a_store_of_no_cluster_or_another_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="does not exist"):
        location(tier2=f"{tmp_path}/none").open()
    assert not (tmp_path / "none").exists()
    place = location(tier2=str(tmp_path))
    store = place.open()
    with pytest.raises(StartError, match=r"no cluster.json: it belongs to no cluster. Check option tier2"):
        await place.identity(store)
    await bind_tier2(store, "Tier 2", ID, 4, bound=False)
    assert (await place.identity(store)).containers == 4
    assert (await location(tier2=str(tmp_path), tier2Cluster=ID).identity(store)).cluster_id == ID
    with pytest.raises(StartError, match=rf"belongs to cluster {ID}, not to other"):
        await location(tier2=str(tmp_path), tier2Cluster="other").identity(store)


def test_it_needs_no_spark() -> None:
    program = (
        "import sys, tailrace.pipelines.direct as d; assert d.BlockingEvents;"
        "assert not {'pyspark', 'pyarrow', 'grpc'} & set(sys.modules), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
