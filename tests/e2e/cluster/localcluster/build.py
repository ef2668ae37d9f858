"""Builds the cluster's programs and images from published sources, once per content of what they are made from."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import re
import selectors
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from localcluster import configs, host
from localcluster.errors import ClusterError
from localcluster.layout import REPOSITORY, SOURCES, cache_folder
from localcluster.progress import say

GO = SOURCES / "go"
PAUSE = SOURCES / "pause" / "pause.c"
PACK_IMAGE = REPOSITORY / "scripts" / "pack_image.py"
FIND_GO = REPOSITORY / "tests" / "support" / "go.sh"
PACKAGES = ("./hyperkube", "./kubectl", "./coredns", "helm.sh/helm/v3/cmd/helm")
PROGRAMS = ("hyperkube", "kubectl", "coredns", "helm")
GO_FLAGS = "-mod=readonly -trimpath -buildvcs=false"
HYPERKUBE_NAMES = ("kube-apiserver", "kube-controller-manager", "kube-proxy", "kube-scheduler", "kubelet")
BUILD_LIMIT_S = 3600
READ_BYTES = 65536
STEP_LIMIT_S = 300
REPORT_EVERY_S = 30
UNUSED_DAYS = 14
ANY_USER = "65532:65532"


def binaries() -> Path:
    """The folder of programs and, in `images`, image archives; built first if it is not there."""
    final = cache_folder() / _inputs_digest()
    if not final.is_dir():
        _build(final)
    os.utime(final)
    return final


def _inputs_digest() -> str:
    """Names a build by what it is made from: also this file, which holds the flags."""
    digest = hashlib.sha256(platform.machine().encode())
    for path in (*_go_sources(), PAUSE, PACK_IMAGE, Path(__file__)):
        digest.update(f"{path.name}\0{path.stat().st_size}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _go_sources() -> list[Path]:
    return sorted(path for path in GO.rglob("*") if path.suffix in (".go", ".mod", ".sum"))


def _build(final: Path) -> None:
    host.check_packages()
    final.parent.mkdir(parents=True, exist_ok=True)
    with _lock(final.parent / "build.lock"):
        if final.is_dir():
            return  # by the process that held the lock
        for broken_off in final.parent.glob("building-*"):
            shutil.rmtree(broken_off)
        started = time.monotonic()
        staging = Path(tempfile.mkdtemp(dir=final.parent, prefix="building-"))
        try:
            _build_programs(staging, final.parent / "build.log")
            _build_images(staging)
            staging.chmod(0o755)
            staging.replace(final)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
        say(f"built in {time.monotonic() - started:.0f} s")
        _forget_unused(final)


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        deadline = time.monotonic() + BUILD_LIMIT_S
        reported = False
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise ClusterError(f"another build has not ended within {BUILD_LIMIT_S} s") from None
                if not reported:
                    say("waiting for another build")
                    reported = True
                time.sleep(0.2)
        yield


def _build_programs(staging: Path, log: Path) -> None:
    kubernetes, helm = _version("k8s.io/kubernetes"), _version("helm.sh/helm/v3")
    linking = _link_flags(kubernetes, helm)
    made_from = _digest_of_programs(linking)
    earlier = _with_the_same_programs(staging.parent, made_from)
    if earlier is not None:
        for name in PROGRAMS:
            os.link(earlier / name, staging / name)
    else:
        say(f"building Kubernetes {kubernetes}, CoreDNS and Helm {helm} (up to half an hour, once); output in {log}")
        environment = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": GO_FLAGS, "GOTOOLCHAIN": "local", "GOWORK": "off"}
        command = [_find_go(), "build", "-v", "-ldflags", linking, "-o", f"{staging}/", *PACKAGES]
        _run_with_progress(command, environment, log)
    for name in HYPERKUBE_NAMES:
        (staging / name).symlink_to("hyperkube")
    for command, expected in (
        (["kubelet", "--version"], kubernetes),
        (["kubectl", "version", "--client"], kubernetes),
        (["helm", "version", "--short"], helm),
    ):
        said = _run([str(staging / command[0]), *command[1:]])
        if expected not in said:
            raise ClusterError(f"{command[0]} was built, but does not say that it is {expected}: {said.strip()!r}")
    (staging / "programs.digest").write_text(made_from)


def _digest_of_programs(linking: str) -> str:
    """Names the programs alone by what they are made from, so that a change of an image does not build them again."""
    digest = hashlib.sha256(f"{GO_FLAGS}\0{linking}\0{PACKAGES}".encode())
    for path in _go_sources():
        digest.update(f"{path.relative_to(GO)}\0{path.stat().st_size}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _with_the_same_programs(builds: Path, made_from: str) -> Path | None:
    for note in sorted(builds.glob("*/programs.digest")):
        if note.read_text() == made_from and not note.parent.name.startswith("building-"):
            return note.parent
    return None


def _version(module: str) -> str:
    found = re.search(rf"^\s*(?:require )?{re.escape(module)} (v\S+)", (GO / "go.mod").read_text(), re.MULTILINE)
    if found is None:
        raise ClusterError(f"{GO / 'go.mod'} requires no {module}")
    return found[1]


def _link_flags(kubernetes: str, helm: str) -> str:
    """No symbols, and the versions that an official build would carry: components check each other's."""
    major, minor, _ = kubernetes.removeprefix("v").split(".", 2)
    values = {
        "gitVersion": kubernetes,
        "gitMajor": major,
        "gitMinor": minor,
        "gitTreeState": "clean",
        "gitCommit": "0" * 40,
        "buildDate": "1970-01-01T00:00:00Z",
    }
    packages = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
    set_values = [f"-X {package}.{name}={value}" for package in packages for name, value in values.items()]
    return " ".join(["-s -w", *set_values, f"-X helm.sh/helm/v3/internal/version.version={helm}"])


def _find_go() -> str:
    environment = {**os.environ, "PYTHON": os.environ.get("PYTHON") or sys.executable}
    done = subprocess.run(
        [str(FIND_GO)], env=environment, stdout=subprocess.PIPE, text=True, check=False, timeout=STEP_LIMIT_S
    )
    if done.returncode != 0:
        raise ClusterError("no Go compiler; the line above says why")
    return done.stdout.strip()


def _run_with_progress(command: list[str], environment: dict[str, str], log: Path) -> None:
    """Run a long build: its output goes to the log, the number of packages to the terminal every half minute."""
    started = reported = time.monotonic()
    packages, last = 0, ""
    with (
        log.open("w") as file,
        subprocess.Popen(
            ["nice", "-n", "5", *command], cwd=GO, env=environment, bufsize=0, stderr=subprocess.PIPE, stdout=file
        ) as process,
    ):
        assert process.stderr is not None
        try:
            for line in _lines(process.stderr):
                now = time.monotonic()
                if line:
                    file.write(line)
                    last = line.strip() or last
                    packages += not line.startswith(("go: ", "#", "\t"))
                if now - reported >= REPORT_EVERY_S:
                    reported = now
                    say(f"{packages} packages after {now - started:.0f} s")
                if now - started > BUILD_LIMIT_S:
                    raise ClusterError(f"the build has not ended within {BUILD_LIMIT_S} s; see {log}")
        except BaseException:
            process.kill()
            raise
    if process.returncode != 0:
        raise ClusterError(f"go build failed ({process.returncode}); see {log}: {last}")


def _lines(stream: IO[bytes]) -> Iterator[str]:
    """Lines of an unbuffered stream until its end; an empty text after each second without one."""
    pending = b""
    with selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        while True:
            if not selector.select(timeout=1):
                yield ""
                continue
            data = stream.read(READ_BYTES)
            *whole, pending = (pending + data).split(b"\n")
            for line in whole:
                yield line.decode(errors="replace") + "\n"
            if not data:
                return


def _build_images(staging: Path) -> None:
    images = staging / "images"
    images.mkdir()
    with tempfile.TemporaryDirectory(dir=staging) as scratch:
        pause = Path(scratch, "pause-root")
        pause.mkdir()
        _run(["gcc", "-static", "-Os", "-Wall", "-Wextra", "-Werror", "-o", str(pause / "pause"), str(PAUSE)])
        coredns = Path(scratch, "coredns-root")
        coredns.mkdir()
        os.link(staging / "coredns", coredns / "coredns")
        for name, root in ((configs.PAUSE_IMAGE, pause), (configs.COREDNS_IMAGE, coredns)):
            program = root.name.removesuffix("-root")
            config = Path(scratch, f"{program}.json")
            config.write_text(json.dumps({"Entrypoint": [f"/{program}"], "User": ANY_USER}))
            archive = images / f"{program}.tar"
            _run(
                [
                    sys.executable,
                    str(PACK_IMAGE),
                    "--name",
                    name,
                    "--config",
                    str(config),
                    "--out",
                    str(archive),
                    str(root),
                ]
            )


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=STEP_LIMIT_S)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or ["no message"]
        raise ClusterError(f"{Path(command[0]).name} failed: {lines[-1]}")
    return done.stdout


def _forget_unused(kept: Path) -> None:
    """Builds of other inputs that were not used for two weeks."""
    oldest = time.time() - UNUSED_DAYS * 86400
    for other in kept.parent.iterdir():
        if other != kept and other.is_dir() and other.stat().st_mtime < oldest:
            shutil.rmtree(other, ignore_errors=True)
