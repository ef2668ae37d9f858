"""Download libraries of Maven Central: each is what its SHA-256 says, and all are there, or none."""

from __future__ import annotations

import asyncio
import hashlib
import os
import ssl
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import httpx

from tailrace.common import limits
from tailrace.common.durable_folder import sync_folder
from tailrace.common.errors import StartError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tailrace.pipelines.s3.libraries import Library

CENTRAL: Final = "https://repo1.maven.org/maven2"
_PASSING: Final = (httpx.RequestError, TimeoutError)
_BUSY_STATUS: Final = 429


def _ignore() -> None:
    return


async def install(
    libraries: Sequence[Library], folder: Path, repository: str = CENTRAL, advance: Callable[[], None] = _ignore
) -> int:
    """Make a folder hold the libraries, and return how many had to be downloaded.

    What the folder has already is kept if its SHA-256 is right; `advance` is called once for each library that is
    there. The folder appears, or is replaced, when all are complete and on the disk.

    Raises:
        StartError: one cannot be had, or is not what its SHA-256 says, the folder cannot be written, or the URL has
            credentials. The folder stays unchanged.
    """
    if "@" in urlsplit(repository).netloc:
        raise StartError("the URL of the repository has credentials, which messages would show: leave them out")
    try:
        kept = [each for each in libraries if _is_good(each, folder)]
        for _ in kept:
            advance()
        missing = [each for each in libraries if each not in kept]
        if not missing:
            return 0
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as staging:
            complete = _made(Path(staging, "complete"))
            await download(missing, complete, repository, advance)
            for each in kept:
                _write(complete / each.name, (folder / each.name).read_bytes())
            if not all(_is_good(each, folder) for each in libraries):  # else another process was faster
                _put_in_place(complete, folder, Path(staging, "old"))
        return len(missing)
    except OSError as error:
        raise StartError(f"{folder} cannot be written: {error.strerror or error}") from error


async def download(
    libraries: Sequence[Library], folder: Path, repository: str = CENTRAL, advance: Callable[[], None] = _ignore
) -> None:
    """Put libraries into a folder that exists.

    Raises:
        StartError: one cannot be had, or is not what its SHA-256 says. OSError: the folder cannot be written.
    """
    # The certificates that this machine trusts, as for other programs: a mirror may have one of its owner's.
    async with httpx.AsyncClient(
        verify=ssl.create_default_context(), timeout=limits.LIBRARY_SILENCE_S, follow_redirects=True
    ) as client:
        for each in libraries:
            url = f"{repository.rstrip('/')}/{each.path}"
            content = await _repeated(client, url)
            if hashlib.sha256(content).hexdigest() != each.sha256:
                raise StartError(f"{url} has another SHA-256 than the locked library")
            _write(folder / each.name, content)
            advance()


async def _repeated(client: httpx.AsyncClient, url: str) -> bytes:
    """Return the content of a URL, asked for again after errors that may pass."""
    pauses_s = iter(limits.LIBRARY_PAUSES_S)
    while True:
        try:
            async with asyncio.timeout(limits.LIBRARY_DEADLINE_S):
                return await _content(client, url)
        except _PASSING as error:
            pause_s = next(pauses_s, None)
            if pause_s is None:
                raise StartError(f"{url}: {error or type(error).__name__}") from error
        except httpx.InvalidURL as error:
            raise StartError(f"{url}: {error}") from error
        await asyncio.sleep(pause_s)


async def _content(client: httpx.AsyncClient, url: str) -> bytes:
    async with client.stream("GET", url) as answer:
        if answer.is_server_error or answer.status_code == _BUSY_STATUS:
            raise httpx.RemoteProtocolError(f"status {answer.status_code}")
        if not answer.is_success:
            raise StartError(f"{url}: status {answer.status_code}")
        content = bytearray()
        async for piece in answer.aiter_bytes():
            content += piece
            if len(content) > limits.LIBRARY_MAX_BYTES:
                raise StartError(f"{url} has more than {limits.LIBRARY_MAX_BYTES} bytes")
        return bytes(content)


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _is_good(library: Library, folder: Path) -> bool:
    try:
        content = (folder / library.name).read_bytes()
    except FileNotFoundError:
        return False
    return hashlib.sha256(content).hexdigest() == library.sha256


def _write(file: Path, content: bytes) -> None:
    """Write a file so that it is on the disk before its folder gets its name."""
    with file.open("wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())


def _put_in_place(complete: Path, folder: Path, old: Path) -> None:
    """Give a folder its final name; one that has it lacks a library, and becomes `old`."""
    sync_folder(complete)
    has_old = folder.exists()
    if has_old:
        folder.rename(old)
    try:
        complete.rename(folder)
    except OSError:
        if has_old:
            old.rename(folder)
        raise
    sync_folder(folder.parent)
