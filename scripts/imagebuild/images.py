"""What each image holds and how it starts."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from imagebuild import ImageError, cache, debian, jars, python
from imagebuild.cache import kept, key, normalise
from pack_image import pack
from tailrace.pipelines.s3.libraries import list_text

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
BUILD = REPOSITORY / "build/images"
SUPPORT = REPOSITORY / "tests/support"
TOOL_LIMIT_S = 1800

USER_ID = 65532
USER = f"{USER_ID}:{USER_ID}"
JAVA_HOME = "usr/lib/jvm/java-17-openjdk"
LOCALE = "LANG=C.UTF-8"
PATHS = f"PATH=/{python.PREFIX}/bin:/usr/local/bin:/usr/bin:/bin"

APPLICATION_CONFIG: dict[str, Any] = {
    "Entrypoint": [f"/{python.PREFIX}/bin/tailrace"],
    "Env": [PATHS, LOCALE, "PYTHONDONTWRITEBYTECODE=1", "PYTHONUNBUFFERED=1"],
    "User": USER,
    "WorkingDir": "/",
    "Labels": {"org.opencontainers.image.title": "Tailrace", "org.opencontainers.image.licenses": "Apache-2.0"},
}
"""What the Dockerfile says, too."""

JAVA_CONFIG: dict[str, Any] = {
    "Entrypoint": [f"/{JAVA_HOME}/bin/java"],
    "Env": [f"PATH=/{JAVA_HOME}/bin:/usr/bin:/bin", LOCALE, "CLASSPATH=/opt/java/classes:/opt/java/lib/*"],
    "User": USER,
    "WorkingDir": "/",
}

SPARK_HOME = f"{python.PACKAGES}/pyspark"
SPARK_CONFIG: dict[str, Any] = APPLICATION_CONFIG | {
    "Entrypoint": [f"/{python.PREFIX}/bin/python", "-m", "tailrace.pipelines.pod"],
    "Env": [
        *APPLICATION_CONFIG["Env"],
        f"JAVA_HOME=/{JAVA_HOME}",
        f"SPARK_HOME=/{SPARK_HOME}",
        "SPARK_SCALA_VERSION=2.13",  # what Spark's scripts would set
        f"PYSPARK_PYTHON=/{python.PREFIX}/bin/python",
        "HOME=/tmp",
    ],
}

MINIO_CONFIG: dict[str, Any] = {
    "Entrypoint": ["/usr/bin/minio"],
    "Env": ["PATH=/usr/bin:/bin", "HOME=/tmp"],
    "User": USER,
    "WorkingDir": "/",
}

ACCOUNTS = {
    "passwd": f"root:x:0:0:root:/root:/nonexistent\ntailrace:x:{USER_ID}:{USER_ID}:tailrace:/tmp:/nonexistent\n",
    "group": f"root:x:0:\ntailrace:x:{USER_ID}:\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\nservices: files\n",
}
FOREIGN = re.compile("-(osx|windows|linux-aarch_64|linux-riscv64)")  # native libraries of other systems
MOUNT_POINTS = ("dev", "proc", "run", "sys", "tmp")


@dataclass(frozen=True)
class Made:
    """An image ready to be packed: its layers, the lowest first, and its configuration."""

    layers: tuple[Path, ...]
    config: dict[str, Any]


class Maker:
    """Makes layers; ``again`` asks once more for packages instead of taking what was kept."""

    def __init__(self, wheel: Path, again: bool = False) -> None:
        self._wheel = wheel
        self._again = again
        self._renewed: set[str] = set()

    def base(self) -> Path:
        """Debian's libraries and interpreter."""
        return self._debian("base", REPOSITORY / "images/base.packages", _finish_base)

    def dependencies(self) -> Path:
        """The environment with all that image.lock names."""
        base, lock = self.base(), REPOSITORY / "requirements/image.lock"

        def make(root: Path) -> None:
            python.environment(base, root)
            python.install_locked(base, lock, root)

        return self._kept("dependencies", self._identity(lock, base.name, "python.py"), make)

    def application(self) -> Path:
        """Build our wheel, each time."""
        root = BUILD / "application"
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir(parents=True)
        python.install_application(self.base(), self._wheel, root)
        return root

    def tailrace(self) -> Made:
        """The image of controller, segment store and operator."""
        return Made((self.base(), self.dependencies(), self.application()), APPLICATION_CONFIG)

    def test(self) -> Made:
        """The same with the published Python client, for programs of tests."""
        base, lock = self.base(), REPOSITORY / "tests/compat/python/requirements.lock"

        def make(root: Path) -> None:
            python.install_locked(base, lock, root)

        client = self._kept("python-client", self._identity(lock, base.name, "python.py"), make)
        config = APPLICATION_CONFIG | {"Entrypoint": [f"/{python.PREFIX}/bin/python"]}
        return Made((base, self.dependencies(), client, self.application()), config)

    def spark(self) -> Made:
        """The product with Spark, for the driver and the executors of pipelines."""
        base, lock = self.base(), REPOSITORY / "requirements/spark.lock"

        def make(root: Path) -> None:
            python.install_locked(base, lock, root, built="pyspark")
            jars.add_s3_libraries(root / SPARK_HOME / "jars")
            for library in (root / SPARK_HOME / "jars").glob("*.jar"):
                if FOREIGN.search(library.name):
                    library.unlink()
            normalise(root)

        identity = self._identity(lock, list_text(), base.name, "python.py", "jars.py")
        spark = self._kept("spark", identity, make)
        return Made((base, self._java(), self.dependencies(), spark, self.application()), SPARK_CONFIG)

    def _java(self) -> Path:
        return self._debian("java", REPOSITORY / "images/java.packages", _finish_java)

    def test_java(self) -> Made:
        """A Java runtime, the published Java client and the program around it."""
        runtime = self._java()
        classes, libraries = (Path(each) for each in _tool("java-client.sh").split(":"))
        root = BUILD / "java-client"
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(classes, root / "opt/java/classes")
        (root / "opt/java/lib").mkdir()
        for library in libraries.parent.glob("*.jar"):
            if FOREIGN.search(library.name):
                continue
            shutil.copyfile(library, root / "opt/java/lib" / library.name)
        normalise(root)
        return Made((self.base(), runtime, root), JAVA_CONFIG)

    def minio(self) -> Made:
        """An object store for trials and tests: one static program."""
        root = BUILD / "minio"
        shutil.rmtree(root, ignore_errors=True)
        (root / "usr/bin").mkdir(parents=True)
        shutil.copy(_tool("minio.sh"), root / "usr/bin/minio")
        _write_accounts(root)
        bundle = "etc/ssl/certs/ca-certificates.crt"
        (root / bundle).parent.mkdir(parents=True)
        shutil.copyfile(self.base() / bundle, root / bundle)
        normalise(root)
        (root / "tmp").chmod(0o1777)
        return Made((root,), MINIO_CONFIG)

    def _debian(self, name: str, listing: Path, finish: Callable[[Path], None]) -> Path:
        def make(root: Path) -> None:
            debian.extract_packages(debian.read_list(listing.read_text()), root)
            normalise(root)
            finish(root)

        return self._kept(name, self._identity(listing, "debian.py", "images.py", "python.py"), make)

    def _kept(self, name: str, identity: str, make: Callable[[Path], None]) -> Path:
        again = self._again and name not in self._renewed
        self._renewed.add(name)
        return kept(name, identity, make, again)

    @staticmethod
    def _identity(source: Path, *others: str) -> str:
        """Of what is listed in a file and how it is made: our own modules count with their content."""
        return key(source, *(HERE / other if other.endswith(".py") else other for other in others))


IMAGES: dict[str, Callable[[Maker], Made]] = {
    "tailrace": Maker.tailrace,
    "tailrace-spark": Maker.spark,
    "tailrace-test": Maker.test,
    "tailrace-test-java": Maker.test_java,
    "minio": Maker.minio,
}
"""Name → what makes it. All but the first two are for tests and trials."""


def _finish_base(root: Path) -> None:
    """What Debian's maintainer scripts would do, as far as a server needs it; and bytecode."""
    certificates = sorted((root / "usr/share/ca-certificates/mozilla").glob("*.crt"))
    bundle = root / "etc/ssl/certs/ca-certificates.crt"
    bundle.parent.mkdir(parents=True)
    bundle.write_text("".join(path.read_text() for path in certificates))
    for name, target in (("certs", "/etc/ssl/certs"), ("cert.pem", "/etc/ssl/certs/ca-certificates.crt")):
        (root / "usr/lib/ssl").mkdir(exist_ok=True)
        (root / "usr/lib/ssl" / name).symlink_to(target)  # where Debian's OpenSSL looks
    for name in ("python", "python3"):
        (root / "usr/bin" / name).symlink_to(f"python{python.SERIES}")
    _write_accounts(root)
    python.compile_all(root, root, f"usr/lib/python{python.SERIES}")
    normalise(root)
    (root / "tmp").chmod(0o1777)


def _finish_java(root: Path) -> None:
    """One path on every machine: Debian's ends with the architecture."""
    (home,) = (root / "usr/lib/jvm").glob("java-17-openjdk-*")
    (root / JAVA_HOME).symlink_to(home.name)


def _write_accounts(root: Path) -> None:
    for name in MOUNT_POINTS:
        (root / name).mkdir()
    (root / "etc").mkdir(exist_ok=True)
    for name, text in ACCOUNTS.items():
        (root / "etc" / name).write_text(text)


def _tool(script: str) -> str:
    """What a script in tests/support/ prints: where it keeps what it made."""
    done = subprocess.run(
        [str(SUPPORT / script)],
        env={"PYTHON": sys.executable, **os.environ},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        timeout=TOOL_LIMIT_S,
    )
    if done.returncode != 0:
        raise ImageError(f"{script} did not bring what it should")
    return done.stdout.strip()


def make_all(names: Sequence[str], again: bool = False) -> list[tuple[str, Path, str]]:
    """Make these images; returns name with tag, archive and digest of each."""
    made = []
    with cache.exclusive():
        BUILD.mkdir(parents=True, exist_ok=True)
        if again:
            debian.refresh_lists()
        wheel = python.build_wheel(REPOSITORY, BUILD)
        maker = Maker(wheel, again)
        for name in names:
            image = IMAGES[name](maker)
            tag = f"localhost/{name}:{python.version_of(wheel)}"
            archive = BUILD / f"{name}.tar"
            made.append((tag, archive, pack(tag, image.layers, archive, image.config)))
    return made
