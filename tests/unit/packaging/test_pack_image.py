"""scripts/pack_image.py: the same folders give the same archive, which holds what OCI and Docker readers look for."""

import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).resolve().parents[3] / "scripts" / "pack_image.py"
NAME = "localhost/trial:1"
CONFIG = {"Entrypoint": ["/bin/program"], "User": "65532:65532"}


def run(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *map(str, arguments)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def fill(folder: Path) -> Path:
    """A small tree; two calls give the same but for times and the order of creation."""
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "program").write_bytes(b"\x7fELF")
    (folder / "bin" / "program").chmod(0o755)
    os.link(folder / "bin" / "program", folder / "bin" / "same")
    (folder / "current").symlink_to("bin/program")
    (folder / "empty").mkdir()
    return folder


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """An image of two layers."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "upper").mkdir()
    (tmp_path / "upper" / "file").write_text("upper")
    out = tmp_path / "image.tar"
    layers = (fill(tmp_path / "lower"), tmp_path / "upper")
    made = run("--name", NAME, "--out", out, "--config", tmp_path / "config.json", "--owner", "7:8", *layers)
    assert made.returncode == 0, made.stderr
    return out


def blob(tar: tarfile.TarFile, path: str) -> bytes:
    file = tar.extractfile(path)
    assert file is not None
    return file.read()


def described(tar: tarfile.TarFile, descriptor: dict[str, Any]) -> bytes:
    """A blob by its descriptor, checked against it."""
    algorithm, digest = descriptor["digest"].split(":")
    content = blob(tar, f"blobs/{algorithm}/{digest}")
    assert hashlib.new(algorithm, content).hexdigest() == digest
    assert len(content) == descriptor["size"]
    return content


def test_an_oci_reader_finds_the_image(archive: Path) -> None:
    with tarfile.open(archive) as tar:
        assert json.loads(blob(tar, "oci-layout")) == {"imageLayoutVersion": "1.0.0"}
        (found,) = json.loads(blob(tar, "index.json"))["manifests"]
        assert found["annotations"]["io.containerd.image.name"] == NAME
        manifest = json.loads(described(tar, found))
        image = json.loads(described(tar, manifest["config"]))
        layers = [described(tar, layer) for layer in manifest["layers"]]
    assert image["config"] == CONFIG
    assert image["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(layer).hexdigest()}" for layer in layers]
    with tarfile.open(fileobj=io.BytesIO(layers[0])) as layer:
        assert layer.getnames() == ["bin", "bin/program", "bin/same", "current", "empty"]
        assert {(entry.uid, entry.gid, entry.mtime, entry.uname) for entry in layer} == {(7, 8, 0, "")}
        assert layer.getmember("bin/program").mode == 0o755
        assert layer.getmember("bin/same").islnk()
        assert layer.getmember("current").linkname == "bin/program"
    with tarfile.open(fileobj=io.BytesIO(layers[1])) as layer:
        assert blob(layer, "file") == b"upper"


def test_docker_finds_the_image(archive: Path) -> None:
    with tarfile.open(archive) as tar:
        (image,) = json.loads(blob(tar, "manifest.json"))
        assert image["RepoTags"] == [NAME]
        assert json.loads(blob(tar, image["Config"]))["config"] == CONFIG
        assert [blob(tar, layer)[:3] for layer in image["Layers"]] == [b"bin", b"fil"]


def test_the_same_folder_gives_the_same_bytes(tmp_path: Path) -> None:
    digests: set[tuple[str, str]] = set()
    for name in ("one", "two"):
        fill(tmp_path / name / "root")
        os.utime(tmp_path / name / "root" / "bin", (len(digests), len(digests)))
        made = run("--name", NAME, "--out", tmp_path / name / "image.tar", tmp_path / name / "root")
        assert made.returncode == 0, made.stderr
        digests.add((made.stdout, hashlib.sha256((tmp_path / name / "image.tar").read_bytes()).hexdigest()))
    assert len(digests) == 1


def test_times_are_the_given_epoch(tmp_path: Path) -> None:
    out = tmp_path / "image.tar"
    assert run("--name", NAME, "--out", out, fill(tmp_path / "root"), SOURCE_DATE_EPOCH="86400").returncode == 0
    with tarfile.open(out) as tar:
        assert {entry.mtime for entry in tar} == {86400}


def test_what_is_no_file_is_refused_and_nothing_stays(tmp_path: Path) -> None:
    root = fill(tmp_path / "root")
    os.mkfifo(root / "pipe")
    made = run("--name", NAME, "--out", tmp_path / "image.tar", root)
    assert made.returncode == 1
    assert made.stderr.splitlines() == [
        f"pack_image: {root / 'pipe'} is neither a file nor a folder nor a symbolic link"
    ]
    assert list(tmp_path.iterdir()) == [root]


@pytest.mark.parametrize("name", ["tailrace", "localhost/tailrace", "localhost/Tailrace:1", "tailrace:1"])
def test_a_name_that_is_not_full_is_refused(tmp_path: Path, name: str) -> None:
    made = run("--name", name, "--out", tmp_path / "image.tar", fill(tmp_path / "root"))
    assert made.returncode == 1
    assert "is no full image name" in made.stderr
