#!/usr/bin/env python3
"""Packs folders into a container image archive, without a container engine.

    pack_image.py --name localhost/app:1 --out app.tar [--config config.json] [--owner UID:GID] LAYER...

Every LAYER is a folder and becomes one layer, the first lowest. The archive is an OCI image layout that `docker load`
takes too (it has Docker's manifest.json beside index.json), so `ctr images import`, `podman load` and
`kind load image-archive` read it. The configuration is the `config` object of an OCI image (Entrypoint, Env, User...)

The same folders and configuration give the same bytes: entries are sorted, times are SOURCE_DATE_EPOCH (0 when unset),
owners are --owner (0:0), names of owners and extended attributes are left out. Hard links stay links. Devices, sockets
and pipes are refused. The digest of the image's manifest is printed.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import platform
import re
import stat
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
NAME = re.compile(r"[a-z0-9][a-z0-9.:_/-]*/[a-z0-9._/-]+:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
BLOCK_BYTES = 1 << 20
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"


class PackError(Exception):
    """The image cannot be made; the message says why in one line."""


@dataclass(frozen=True)
class Blob:
    """Content that is named by its digest: bytes at hand, or a file."""

    digest: str
    length_bytes: int
    content: bytes | BinaryIO

    @classmethod
    def of(cls, data: bytes) -> Blob:
        """The blob of these bytes."""
        return cls(hashlib.sha256(data).hexdigest(), len(data), data)

    @property
    def path(self) -> str:
        """Where it lies in the archive."""
        return f"blobs/sha256/{self.digest}"

    def descriptor(self, media_type: str) -> dict[str, Any]:
        """How another blob refers to it."""
        return {"mediaType": media_type, "digest": f"sha256:{self.digest}", "size": self.length_bytes}


def pack(
    name: str,
    layers: Sequence[Path],
    out: Path,
    config: dict[str, Any] | None = None,
    owner: tuple[int, int] = (0, 0),
    epoch_s: int = 0,
) -> str:
    """Write the image to ``out``, replacing it atomically; returns the digest of its manifest (``sha256:…``)."""
    if not NAME.fullmatch(name):
        raise PackError(f"{name!r} is no full image name: HOST/NAME:TAG, such as localhost/tailrace:1")
    with ExitStack() as stack:
        packed = [_layer(root, stack.enter_context(_temporary(out)), owner, epoch_s) for root in layers]
        image = Blob.of(_json(_image_config(packed, config or {}, epoch_s)))
        manifest = Blob.of(_json(_manifest(image, packed)))
        archive = stack.enter_context(_temporary(out))
        _write_archive(archive, name, manifest, image, packed, epoch_s)
        archive.flush()
        os.chmod(archive.name, 0o644)
        os.replace(archive.name, out)
    return f"sha256:{manifest.digest}"


class _temporary:
    """A file beside ``out`` that is gone in the end, unless it was renamed."""

    def __init__(self, out: Path) -> None:
        self._out = out

    def __enter__(self) -> Any:
        self._file = tempfile.NamedTemporaryFile(dir=self._out.parent, prefix=f".{self._out.name}.", delete=False)
        return self._file

    def __exit__(self, *_: object) -> None:
        self._file.close()
        Path(self._file.name).unlink(missing_ok=True)


def _layer(root: Path, file: Any, owner: tuple[int, int], epoch_s: int) -> Blob:
    if not root.is_dir():
        raise PackError(f"{root} is not a folder")
    first_names: dict[tuple[int, int], str] = {}
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in _walk(root):
            entry = _entry(path, path.relative_to(root).as_posix(), first_names, owner, epoch_s)
            if entry.isreg():
                with path.open("rb") as content:
                    tar.addfile(entry, content)
            else:
                tar.addfile(entry)
    file.flush()
    file.seek(0)
    digest = hashlib.file_digest(file, "sha256").hexdigest()
    return Blob(digest, os.fstat(file.fileno()).st_size, file)


def _walk(folder: Path) -> Iterator[Path]:
    """Everything below a folder, sorted; a folder comes before what is in it."""
    for path in sorted(folder.iterdir(), key=lambda path: os.fsencode(path.name)):
        yield path
        if path.is_dir() and not path.is_symlink():
            yield from _walk(path)


def _entry(
    path: Path, name: str, first_names: dict[tuple[int, int], str], owner: tuple[int, int], epoch_s: int
) -> tarfile.TarInfo:
    status = path.lstat()
    entry = tarfile.TarInfo(name)
    entry.mode = stat.S_IMODE(status.st_mode)
    entry.uid, entry.gid = owner
    entry.mtime = epoch_s
    if stat.S_ISLNK(status.st_mode):
        entry.type, entry.linkname, entry.mode = tarfile.SYMTYPE, os.readlink(path), 0o777
    elif stat.S_ISDIR(status.st_mode):
        entry.type = tarfile.DIRTYPE
    elif stat.S_ISREG(status.st_mode):
        identity = (status.st_dev, status.st_ino)
        first = first_names.setdefault(identity, name)
        if first != name:
            entry.type, entry.linkname = tarfile.LNKTYPE, first
        else:
            entry.size = status.st_size
    else:
        raise PackError(f"{path} is neither a file nor a folder nor a symbolic link")
    return entry


def _image_config(layers: Sequence[Blob], config: dict[str, Any], epoch_s: int) -> dict[str, Any]:
    created = datetime.fromtimestamp(epoch_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    machine = platform.machine()
    return {
        "architecture": ARCHITECTURES.get(machine, machine),
        "os": "linux",
        "created": created,
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer.digest}" for layer in layers]},
        "history": [{"created": created, "created_by": "pack_image"} for _ in layers],
    }


def _manifest(image: Blob, layers: Sequence[Blob]) -> dict[str, Any]:
    return {
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "config": image.descriptor("application/vnd.oci.image.config.v1+json"),
        "layers": [layer.descriptor("application/vnd.oci.image.layer.v1.tar") for layer in layers],
    }


def _write_archive(file: Any, name: str, manifest: Blob, image: Blob, layers: Sequence[Blob], epoch_s: int) -> None:
    tag = name.rpartition(":")[2]
    annotations = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": tag}
    index = {"schemaVersion": 2, "manifests": [manifest.descriptor(MANIFEST_TYPE) | {"annotations": annotations}]}
    for_docker = [{"Config": image.path, "RepoTags": [name], "Layers": [layer.path for layer in layers]}]
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:

        def add(path: str, blob: Blob) -> None:
            entry = tarfile.TarInfo(path)
            entry.size, entry.mtime = blob.length_bytes, epoch_s
            if isinstance(blob.content, bytes):
                tar.addfile(entry, io.BytesIO(blob.content))
            else:
                blob.content.seek(0)
                tar.addfile(entry, blob.content)

        add("oci-layout", Blob.of(_json({"imageLayoutVersion": "1.0.0"})))
        add("index.json", Blob.of(_json(index)))
        add("manifest.json", Blob.of(_json(for_docker)))
        for blob in {blob.path: blob for blob in (manifest, image, *layers)}.values():
            add(blob.path, blob)


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _owner(text: str) -> tuple[int, int]:
    uid, separator, gid = text.partition(":")
    if not (separator and uid.isdecimal() and gid.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r} is not UID:GID")
    return int(uid), int(gid)


def main() -> int:
    """Exit code 1 and one line on standard error when the image cannot be made."""
    parser = argparse.ArgumentParser(description="Packs folders into a container image archive.")
    parser.add_argument("--name", required=True, help="full name with tag, such as localhost/tailrace:1")
    parser.add_argument("--out", required=True, type=Path, help="the archive to write")
    parser.add_argument("--config", type=Path, help="a JSON file: Entrypoint, Cmd, Env, User...")
    parser.add_argument("--owner", type=_owner, default=(0, 0), help="UID:GID of every file (0:0)")
    parser.add_argument("layers", metavar="LAYER", nargs="+", type=Path, help="a folder; the first is the lowest layer")
    options = parser.parse_args()
    try:
        config = json.loads(options.config.read_text()) if options.config else {}
        if not isinstance(config, dict):
            raise PackError(f"{options.config} does not hold a JSON object")
        epoch_s = int(os.environ.get("SOURCE_DATE_EPOCH") or 0)
        print(pack(options.name, options.layers, options.out, config, options.owner, epoch_s))
    except (PackError, OSError, ValueError) as error:
        print(f"pack_image: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
