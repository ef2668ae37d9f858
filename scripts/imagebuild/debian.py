"""Layers from Debian packages, extracted and not installed: no maintainer script runs, no package manager comes along.

Packages come from the sources that apt has on this machine and are checked by it; no rights are needed but for
refreshing its lists where they are missing or outdated.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO

from imagebuild import ImageError
from imagebuild.cache import cache_folder

COMMAND_LIMIT_S = 300
MERGED = ("bin", "lib", "lib64", "sbin")
"""Top-level folders that are symbolic links into /usr, as on every Debian since 12."""

NOT_NEEDED = re.compile(
    r"""
    usr/share/(?!doc/|ca-certificates/|zoneinfo/|common-licenses/)   # manuals, translations, menus...
    | usr/share/doc/(?!.*/copyright$)                       # all but the licences
    | usr/share/zoneinfo/(right|posix)/                     # second and third copies
    | usr/sbin/ | usr/lib/binfmt\.d/ | var/ | etc/ca-certificates | etc/python
    | usr/lib/[^/]+/gconv/                                  # converters of iconv(3)
    | usr/lib/python3\.\d+/(
        test|pydoc_data|lib2to3|idlelib|turtle\.py|turtledemo|tkinter|ensurepip  # nothing for a server
        | sitecustomize\.py
        | sqlite3|curses|dbm/(gnu|ndbm)\.py                 # their libraries are not there
        | lib-dynload/(_sqlite3|_curses|_dbm|readline|nis|ossaudiodev|_test|_ctypes_test|_xxtestfuzz|xxlimited)
      )
    """,
    re.VERBOSE,
)


@dataclass(frozen=True)
class Wanted:
    """A line of a list of packages."""

    name: str
    paths: tuple[str, ...] = ()  # none: all of it


@dataclass(frozen=True)
class Package:
    """A package in the version that apt would install."""

    name: str
    version: str
    architecture: str
    sha256: str

    @property
    def filename(self) -> str:
        """As apt names what it downloads."""
        return f"{self.name}_{self.version.replace(':', '%3a')}_{self.architecture}.deb"


def read_list(text: str) -> list[Wanted]:
    """Parse a list of packages: ``name`` or ``name: path path``, and comments."""
    lines = [line.partition("#")[0].strip() for line in text.splitlines()]
    pairs = [line.partition(":") for line in lines if line]
    return [Wanted(name.strip(), tuple(paths.split())) for name, _, paths in pairs]


def extract_packages(wanted: Sequence[Wanted], root: Path) -> list[Package]:
    """Download what is not there yet and extract all of it below ``root``; returns what was taken."""
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise ImageError("needs Debian's apt-get and dpkg-deb; elsewhere build with the Dockerfile")
    packages = _downloaded([each.name for each in wanted])
    for name in MERGED:
        (root / "usr" / name).mkdir(parents=True, exist_ok=True)
        if not (root / name).is_symlink():
            (root / name).symlink_to(f"usr/{name}")
    for each, package in zip(wanted, packages, strict=True):
        archive = _archives() / package.filename
        extract(archive, root, partial(is_wanted, of=each))
        record = root / "var/lib/dpkg/status.d" / package.name  # where scanners look in images without dpkg
        record.parent.mkdir(parents=True, exist_ok=True)
        record.write_text(_run("dpkg-deb", "--field", str(archive)))
    return packages


def is_wanted(path: str, of: Wanted) -> bool:
    """Whether this path of the package comes along; licences always do."""
    if of.paths and not any(path == prefix or path.startswith(prefix + "/") for prefix in of.paths):
        return path == f"usr/share/doc/{of.name}/copyright"
    return bool(of.paths) or NOT_NEEDED.match(path) is None


def extract(archive: Path, root: Path, wanted: Callable[[str], bool]) -> None:
    """Extract the wanted files and links of a package; folders come into being with what is in them."""
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", str(archive)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        with tarfile.open(fileobj=process.stdout, mode="r|") as tar:
            for member in tar:
                path = merged(member.name)
                if not member.isdir() and wanted(path):
                    _write(tar, member, root / path, root)
    if process.returncode != 0:
        raise ImageError(f"{archive.name} cannot be extracted (dpkg-deb ended with {process.returncode})")


def merged(name: str) -> str:
    """Where a path of a package is in a system whose /bin, /lib... are links into /usr."""
    path = os.path.normpath(name.lstrip("/"))
    if path.startswith(".."):
        raise ImageError(f"a package holds the path {name!r}")
    return f"usr/{path}" if path.partition("/")[0] in MERGED else path


def _write(tar: tarfile.TarFile, member: tarfile.TarInfo, target: Path, root: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    if member.issym():
        target.symlink_to(member.linkname)
    elif member.islnk():
        os.link(root / merged(member.linkname), target)
    elif member.isreg():
        content: IO[bytes] | None = tar.extractfile(member)
        assert content is not None
        with target.open("wb") as file:
            shutil.copyfileobj(content, file)
        target.chmod(member.mode & 0o777)
    else:
        raise ImageError(f"a package holds {member.name}, which is neither a file nor a link")


def _archives() -> Path:
    folder = cache_folder() / "debs"
    folder.mkdir(exist_ok=True)
    return folder


def _downloaded(names: Sequence[str]) -> list[Package]:
    """These packages, all in the cache; apt's lists are refreshed once when they do not do."""
    try:
        packages = _candidates(names)
        _download(packages)
    except ImageError as first:
        if not refresh_lists():
            raise ImageError(f"{first}; apt's lists may be outdated: run apt-get update as root") from first
        packages = _candidates(names)
        _download(packages)
    return packages


def refresh_lists() -> bool:
    """Refresh the lists of apt's sources; False without the permission. A source that fails is only reported, because
    it may have nothing that is needed here."""
    if os.geteuid() != 0:
        return False
    try:
        _run("apt-get", "update", "--quiet")
    except ImageError as failure:
        print(f"make_images: {failure}", file=sys.stderr)
    return True


def _candidates(names: Sequence[str]) -> list[Package]:
    found: dict[str, Package] = {}
    for paragraph in _run("apt-cache", "show", "--no-all-versions", *names).split("\n\n"):
        fields = dict(re.findall(r"^(Package|Version|Architecture|SHA256): (.*)$", paragraph, re.MULTILINE))
        if "SHA256" in fields:  # not where apt knows a package only because it is installed
            found[fields["Package"]] = Package(
                fields["Package"], fields["Version"], fields["Architecture"], fields["SHA256"]
            )
    missing = [name for name in names if name not in found]
    if missing:
        raise ImageError(f"apt knows no package {', '.join(missing)}")
    return [found[name] for name in names]


def _download(packages: Sequence[Package]) -> None:
    folder = _archives()
    missing = [package for package in packages if not _is_whole(folder / package.filename, package.sha256)]
    if missing:
        # Files go into a folder of root's; apt would warn that it cannot give up its rights for that.
        names = [f"{package.name}={package.version}" for package in missing]
        _run("apt-get", "--quiet", "-o", "APT::Sandbox::User=root", "download", *names, folder=folder)
    for package in missing:
        if not _is_whole(folder / package.filename, package.sha256):
            raise ImageError(f"{package.filename} was downloaded with other content than apt's list says")


def _is_whole(path: Path, sha256: str) -> bool:
    return path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == sha256


def _run(*command: str, folder: Path | None = None) -> str:
    done = subprocess.run(
        command,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=COMMAND_LIMIT_S,
    )
    if done.returncode != 0:
        reason = (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]
        raise ImageError(f"{command[0]}: {reason}")
    return done.stdout
