"""Libraries are there all or none, each as its SHA-256 says (docs/spark-jobs.md#s3)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pyspark
import pytest

from harness.mavenrepository import CONTENTS, Repository, send, serving
from tailrace.cli.main import run
from tailrace.common import limits
from tailrace.common.errors import BadRequestError, StartError
from tailrace.pipelines.s3.install import install
from tailrace.pipelines.s3.libraries import Library, are_installed, folder_of, locked, read_list

DEADLINE_S = 120.0


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LIBRARY_PAUSES_S", (0.0, 0.0))


@pytest.fixture
def repository() -> Iterator[Repository]:
    """A repository that serves."""
    with serving() as served:
        yield served


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "parent" / "libraries"


def content_of(folder: Path) -> dict[str, bytes]:
    """Files by name."""
    return {file.name: file.read_bytes() for file in folder.iterdir()}


EXPECTED = {path.rpartition("/")[2]: content for path, content in CONTENTS.items()}


async def test_all_are_there_and_a_second_time_nothing_is_asked(repository: Repository, folder: Path) -> None:
    steps: list[int] = []
    assert not are_installed(repository.libraries, folder)
    assert await install(repository.libraries, folder, repository.url + "/", lambda: steps.append(1)) == 3
    assert content_of(folder) == EXPECTED
    assert are_installed(repository.libraries, folder)
    assert await install(repository.libraries, folder, repository.url, lambda: steps.append(1)) == 0
    assert len(repository.asked) == 3
    assert len(steps) == 6
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


async def test_another_content_is_refused_and_nothing_stays(repository: Repository, folder: Path) -> None:
    repository.special[repository.libraries[2].path] = lambda handler: send(handler, b"another")
    with pytest.raises(StartError, match=r"third-1\.0\.jar has another SHA-256 than the locked library"):
        await install(repository.libraries, folder, repository.url)
    assert list(folder.parent.iterdir()) == []
    assert repository.times(2) == 1


async def test_a_download_that_breaks_off_is_tried_again_and_leaves_nothing(
    repository: Repository, folder: Path
) -> None:
    path = repository.libraries[1].path
    repository.special[path] = lambda handler: send(handler, CONTENTS[path][:100], length=len(CONTENTS[path]))
    with pytest.raises(StartError, match=r"second-1\.0\.jar: peer closed connection"):
        await install(repository.libraries, folder, repository.url)
    assert list(folder.parent.iterdir()) == []
    assert repository.times(1) == 1 + len(limits.LIBRARY_PAUSES_S)


async def test_a_busy_repository_is_asked_again(repository: Repository, folder: Path) -> None:
    path = repository.libraries[0].path

    def first_busy(handler: BaseHTTPRequestHandler) -> None:
        if repository.times(0) == 1:
            send(handler, b"", 503)
        else:
            send(handler, CONTENTS[path])

    repository.special[path] = first_busy
    assert await install(repository.libraries, folder, repository.url) == 3
    assert content_of(folder) == EXPECTED


async def test_what_is_damaged_or_missing_is_replaced_and_the_rest_kept(repository: Repository, folder: Path) -> None:
    await install(repository.libraries, folder, repository.url)
    names = [each.name for each in repository.libraries]
    (folder / names[0]).write_bytes(b"damaged")
    (folder / names[1]).unlink()
    assert not are_installed(repository.libraries, folder)
    repository.asked.clear()
    assert await install(repository.libraries, folder, repository.url) == 2
    assert repository.asked == [each.path for each in repository.libraries[:2]]
    assert content_of(folder) == EXPECTED
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


async def test_an_installation_that_is_ended_changes_nothing(repository: Repository, folder: Path) -> None:
    await install(repository.libraries, folder, repository.url)
    (folder / repository.libraries[0].name).write_bytes(b"damaged")
    before = content_of(folder)
    asked, go_on = threading.Event(), threading.Event()

    def wait(handler: BaseHTTPRequestHandler) -> None:
        asked.set()
        go_on.wait(DEADLINE_S)

    repository.special[repository.libraries[0].path] = wait
    task = asyncio.create_task(install(repository.libraries, folder, repository.url))
    try:
        assert await asyncio.to_thread(asked.wait, DEADLINE_S)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    finally:
        go_on.set()
    assert content_of(folder) == before
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


async def test_a_library_of_no_end_is_not_kept_in_memory(
    repository: Repository, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "LIBRARY_MAX_BYTES", 100)
    with pytest.raises(StartError, match="has more than 100 bytes"):
        await install(repository.libraries, folder, repository.url)


async def test_a_folder_that_cannot_be_made_is_named(repository: Repository, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StartError, match=r"file/libraries cannot be written: (Not a directory|File exists)"):
        await install(repository.libraries, tmp_path / "file" / "libraries", repository.url)


def test_the_command_names_what_it_cannot_get(
    repository: Repository, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code = run(["pipeline", "install-s3", str(tmp_path / "here"), "--repository", repository.url])
    said = capfd.readouterr()
    assert (code, said.out) == (1, "")
    assert said.err == f"tailrace: {repository.url}/{locked()[0].path}: status 404\n"
    assert list((tmp_path / "here").iterdir()) == []


def test_the_list_that_is_shipped_fits_the_spark_that_is_locked() -> None:
    libraries = locked()
    assert len({each.name for each in libraries}) == len(libraries) > 30
    (connector,) = [each.name for each in libraries if each.name.startswith("hadoop-aws-")]
    version = connector.removeprefix("hadoop-aws-")
    assert (Path(pyspark.__file__).parent / "jars" / f"hadoop-client-api-{version}").is_file()


def test_a_line_of_a_list_is_a_digest_and_a_path() -> None:
    digest = "0123456789abcdef" * 4
    assert read_list(f"# all\n\n{digest}  a/b-1.jar\n") == [Library(digest, "a/b-1.jar")]
    for line in (f"{digest} a/b.jar", f"{digest[1:]}  a/b.jar", f"{digest}  b.jar", f"{digest}  a/b.txt"):
        with pytest.raises(BadRequestError, match="no SHA-256 and path of a library"):
            read_list(line)


def test_the_folder_depends_on_the_list_and_on_who_asks(repository: Repository, tmp_path: Path) -> None:
    first, fewer = repository.libraries, repository.libraries[:2]
    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    place = folder_of(first, cache)
    assert place.parent == tmp_path / "cache" / "tailrace"
    assert folder_of(fewer, cache) != place
    chosen = cache | {"TAILRACE_S3_LIBRARIES": str(tmp_path / "chosen")}
    assert folder_of(first, chosen) == tmp_path / "chosen" / place.name
    assert folder_of(first, chosen, tmp_path / "given") == tmp_path / "given" / place.name
