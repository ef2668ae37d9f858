"""Layers of Python: the locked dependencies, and our own wheel on top, both in one environment at /opt/tailrace.

The environment is what ``python -m venv`` makes, so that the Dockerfile has the same paths with another interpreter
below. Everything is compiled beforehand by the interpreter of the image itself, run from outside by its own loader: the
root is read-only there, and bytecode that is not checked against its source loads fastest.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from configparser import ConfigParser
from pathlib import Path

from imagebuild import ImageError
from imagebuild.cache import normalise

SERIES = "3.11"
PREFIX = "opt/tailrace"
PACKAGES = f"{PREFIX}/lib/python{SERIES}/site-packages"
INSTALL_LIMIT_S = 600
COMPILE_LIMIT_S = 300

TEST_FOLDERS = ("test", "tests", "SelfTest")
UNUSED = ("kubernetes/aio",)  # a second client of the same size, for asyncio
SOURCES_OF_NATIVE_CODE = (".pyx", ".pxd", ".pyi", ".c", ".h", ".cc", ".cpp")

LAUNCHER = """#!/{prefix}/bin/python
import sys

from {module} import {function}

sys.exit({function}())
"""


def environment(base: Path, root: Path) -> None:
    """An empty environment around the interpreter of the base."""
    programs = root / PREFIX / "bin"
    programs.mkdir(parents=True)
    (programs / f"python{SERIES}").symlink_to(f"/usr/bin/python{SERIES}")
    for name in ("python", "python3"):
        (programs / name).symlink_to(f"python{SERIES}")
    version = _run_base(base, "-c", "import platform; print(platform.python_version())").strip()
    settings = f"home = /usr/bin\ninclude-system-site-packages = false\nversion = {version}\n"
    (root / PREFIX / "pyvenv.cfg").write_text(settings)


def install_locked(base: Path, lock: Path, root: Path, built: str = "") -> None:
    """Install all that a lock names below ``root``, stripped and compiled; every hash is checked.

    Nothing is built, but the package ``built``, which is published as its source only.
    """
    if sys.version_info[:2] != tuple(map(int, SERIES.split("."))):
        raise ImageError(f"needs Python {SERIES}, as the image has it, and this is {sys.version.split()[0]}")
    target = root / PACKAGES
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    command += [
        "--no-deps",
        "--no-compile",
        "--require-hashes",
        "--only-binary=:all:",
        *(["--no-binary", built, "--no-build-isolation"] if built else []),
        "--target",
        str(target),
        "-r",
        str(lock),
    ]
    _run(command, INSTALL_LIMIT_S)
    shutil.rmtree(target / "bin", ignore_errors=True)
    strip(target)
    compile_all(base, root, PACKAGES)
    normalise(root)


def strip(packages: Path) -> None:
    """Remove what no program of ours uses: above all tests, sources of native code, and types."""
    for name in UNUSED:
        shutil.rmtree(packages / name, ignore_errors=True)
    for path in sorted(packages.rglob("*")):
        if path.is_dir() and path.name in (*TEST_FOLDERS, "__pycache__"):
            shutil.rmtree(path)
        elif path.is_file() and path.suffix in SOURCES_OF_NATIVE_CODE:
            path.unlink()


def install_application(base: Path, wheel: Path, root: Path) -> None:
    """Our own wheel and its programs below ``root``, compiled."""
    target = root / PACKAGES
    target.mkdir(parents=True)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target)
    (metadata,) = target.glob("tailrace-*.dist-info")
    write_programs((metadata / "entry_points.txt").read_text(), root / PREFIX / "bin")
    compile_all(base, root, PACKAGES)
    normalise(root)


def write_programs(entry_points: str, folder: Path) -> None:
    """The programs that a wheel names, for the interpreter of the environment: no shell comes in between."""
    programs = ConfigParser()
    programs.read_string(entry_points)
    folder.mkdir(parents=True)
    for name, place in programs["console_scripts"].items():
        module, _, function = place.partition(":")
        script = folder / name
        script.write_text(LAUNCHER.format(prefix=PREFIX, module=module, function=function))
        script.chmod(0o755)


def build_wheel(repository: Path, build: Path) -> Path:
    """Build our wheel. Compile the native kernel only when its sources changed."""
    library, output = build / "lib", build / "wheel"
    kernel = {path.stem for path in (repository / "services/tailrace/kernel").glob("*.pyx")}
    forget_removed(library, kernel)
    take_built(repository / "services/tailrace/kernel", library / "tailrace/kernel", kernel)
    for folder in (output, build / "unpacked"):
        shutil.rmtree(folder, ignore_errors=True)
    command = [sys.executable, "setup.py", "--quiet", "build", "--build-lib", str(library)]
    command += ["--build-temp", str(build / "temp")]
    command += ["bdist_wheel", "--bdist-dir", str(build / "unpacked"), "--dist-dir", str(output)]
    _run(command, INSTALL_LIMIT_S, repository)
    (wheel,) = output.glob("*.whl")
    return wheel


def forget_removed(library: Path, kernel: set[str]) -> None:
    """Of an earlier build only native modules stay that the kernel still has: what left the tree leaves the wheel."""
    for path in library.rglob("*"):
        if path.is_file() and not (path.suffix == ".so" and path.name.partition(".")[0] in kernel):
            path.unlink()


def take_built(built: Path, library: Path, kernel: set[str]) -> None:
    """Copy native modules that were built in place, with their times: setup.py builds what is older than its source."""
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    library.mkdir(parents=True, exist_ok=True)
    for name in sorted(kernel):
        module, target = built / f"{name}{suffix}", library / f"{name}{suffix}"
        if module.exists() and not (target.exists() and target.stat().st_mtime >= module.stat().st_mtime):
            shutil.copy2(module, target)


def version_of(wheel: Path) -> str:
    """Return the version in a wheel's name as the tag of an image."""
    return re.sub(r"[^A-Za-z0-9_.-]", "-", wheel.name.split("-")[1])


def compile_all(base: Path, root: Path, folder: str) -> None:
    """Compile a folder of the image, given without its leading slash, by the image's own interpreter."""
    jobs = ("-j", str(len(os.sched_getaffinity(0))))
    how = ("-m", "compileall", "-q", *jobs, "--invalidation-mode", "unchecked-hash")
    _run_base(base, *how, "-s", str(root), "-p", "/", str(root / folder))


def _run_base(base: Path, *arguments: str) -> str:
    (loader,) = base.glob("usr/lib/*-linux-gnu/ld-linux-*.so.*")
    command = [str(loader), "--library-path", str(loader.parent), str(base / f"usr/bin/python{SERIES}"), "-B", "-S"]
    command += arguments
    return _run(command, COMPILE_LIMIT_S, PYTHONHOME=str(base / "usr"), PYTHONHASHSEED="0")


def _run(command: list[str], limit_s: float, folder: Path | None = None, **variables: str) -> str:
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=limit_s,
    )
    if done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}").splitlines()
        raise ImageError(f"{' '.join(map(os.path.basename, command[:4]))}: {said[-1]}")
    return done.stdout
