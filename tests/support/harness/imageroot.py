"""The files of an image, unpacked, and its programs, run as a container runs them: no engine is needed."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

COMMAND_LIMIT_S = 600.0
"""Ends a command that hangs: a first start of Spark beside other suites took longer than a minute."""

# A container in small: a mount and a process namespace of its own, a read-only root, no rights, nothing inherited.
# Usage: ROOT SCRATCH USER COMMAND...; the environment is the program's.
_START = """
set -eu
PATH=/usr/sbin:/usr/bin:/sbin:/bin
root=$1 scratch=$2 user=$3
shift 3
mount --bind "$root" "$root"
mount -o remount,bind,ro "$root"
mount --bind "$scratch" "$root/tmp"
mount -t proc proc "$root/proc"
mount -t tmpfs tmpfs "$root/dev"
for device in null zero random urandom; do
    touch "$root/dev/$device"
    mount --bind "/dev/$device" "$root/dev/$device"
done
exec env -i "$@"
"""


class ImageRoot:
    """An image in a folder. ``scratch`` is the /tmp of its programs, the only place where they can write."""

    def __init__(self, archive: Path, folder: Path) -> None:
        self.root = folder / "root"
        self.scratch = folder / "tmp"
        self.root.mkdir(parents=True)
        self.scratch.mkdir()
        self.scratch.chmod(0o1777)
        with tarfile.open(archive) as tar:
            (manifest,) = json.loads(_read(tar, "manifest.json"))
            self.name: str = manifest["RepoTags"][0]
            self.config: dict[str, Any] = json.loads(_read(tar, manifest["Config"]))["config"]
            self.layers: list[str] = manifest["Layers"]
            for layer in self.layers:
                with tarfile.open(fileobj=tar.extractfile(layer)) as files:
                    files.extractall(self.root, filter="fully_trusted")  # absolute links, too

    def command(self, *arguments: str) -> list[str]:
        """The command line that runs these arguments in the image, by the user and in the environment it names."""
        start = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--propagation", "private"]
        start += ["sh", "-c", _START]
        place = ["start", str(self.root), str(self.scratch), self.config["User"]]
        enter = ["/usr/bin/setpriv", "--no-new-privs", "--bounding-set=-all,+sys_chroot,+setuid,+setgid"]
        enter += ["/usr/sbin/chroot", f"--userspec={self.config['User']}", "--groups=", str(self.root)]
        return [*start, *place, *self.config["Env"], *enter, *arguments]

    def run(self, *arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
        """Run to the end. Raises RuntimeError where that is not permitted, and when the program fails."""
        done = subprocess.run(
            self.command(*arguments), input=text, capture_output=True, text=True, check=False, timeout=COMMAND_LIMIT_S
        )
        if done.returncode != 0:
            reason = " (it needs root, for mounts)" if "unshare failed" in done.stderr else ""
            raise RuntimeError(f"{arguments[0]} ended with {done.returncode}{reason}: {done.stderr}{done.stdout}")
        return done

    def files(self) -> list[Path]:
        """All files and links, relative to the root."""
        return [path.relative_to(self.root) for path in self.root.rglob("*") if path.is_symlink() or not path.is_dir()]


def end(started: subprocess.Popen[bytes]) -> None:
    """End a program that was started by `ImageRoot.command`, with all that it started.

    Its first process has changed its user, so that the end of the one that waits for it does not end it.
    """
    if started.poll() is not None:
        return
    for program in psutil.Process(started.pid).children():
        program.kill()  # the first process of its namespace takes all others along
    started.kill()


def make_images(names: Sequence[str], repository: Path, limit_s: float = 900.0) -> dict[str, Path]:
    """Image → its archive, made of what the repository holds now."""
    script = [sys.executable, str(repository / "scripts/make_images.py"), *names]
    done = subprocess.run(script, stdout=subprocess.PIPE, text=True, check=True, timeout=limit_s)
    lines = (line.split() for line in done.stdout.splitlines())
    return {tag.rpartition("/")[2].partition(":")[0]: repository / archive for tag, archive, *_ in lines}


def _read(tar: tarfile.TarFile, name: str) -> bytes:
    file = tar.extractfile(name)
    assert file is not None
    return file.read()
