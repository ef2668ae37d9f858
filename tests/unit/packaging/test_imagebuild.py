"""scripts/imagebuild: what is taken of packages, where it goes, and what is kept from one making to the next."""

from __future__ import annotations

import io
import os
import sysconfig
import tarfile
from pathlib import Path

import pytest

from imagebuild import ImageError, cache, debian, python
from imagebuild.debian import Wanted

REPOSITORY = Path(__file__).resolve().parents[3]


def test_lists_name_packages_and_the_paths_that_are_taken() -> None:
    text = "# all\n\nlibc6   # the library\nlibc-bin: usr/lib/locale/C.utf8 usr/bin/x\n"
    assert debian.read_list(text) == [Wanted("libc6"), Wanted("libc-bin", ("usr/lib/locale/C.utf8", "usr/bin/x"))]


@pytest.mark.parametrize("name", ["base", "java"])
def test_our_lists_bring_nothing_to_log_in_with(name: str) -> None:
    names = {each.name for each in debian.read_list((REPOSITORY / f"images/{name}.packages").read_text())}
    assert names
    assert not names & {"dash", "bash", "busybox", "coreutils", "dpkg", "apt", "perl-base", "login", "passwd"}


@pytest.mark.parametrize(
    ("path", "there"),
    [
        ("./lib/x86_64-linux-gnu/libc.so.6", "usr/lib/x86_64-linux-gnu/libc.so.6"),
        ("./lib64/ld-linux-x86-64.so.2", "usr/lib64/ld-linux-x86-64.so.2"),
        ("./bin/tool", "usr/bin/tool"),
        ("./usr/lib/python3.11/os.py", "usr/lib/python3.11/os.py"),
        ("./libx/file", "libx/file"),
        ("/etc/passwd", "etc/passwd"),
    ],
)
def test_paths_are_those_of_a_merged_system(path: str, there: str) -> None:
    assert debian.merged(path) == there


def test_paths_that_leave_the_root_are_refused() -> None:
    with pytest.raises(ImageError, match=r"\.\./etc"):
        debian.merged("./usr/../../etc/passwd")


@pytest.mark.parametrize(
    ("path", "taken"),
    [
        ("usr/lib/python3.11/os.py", True),
        ("usr/lib/python3.11/lib-dynload/_ssl.cpython-311-x86_64-linux-gnu.so", True),
        ("usr/lib/python3.11/lib-dynload/_sqlite3.cpython-311-x86_64-linux-gnu.so", False),
        ("usr/lib/python3.11/test/support/__init__.py", False),
        ("usr/share/doc/libc6/copyright", True),
        ("usr/share/doc/libc6/NEWS.gz", False),
        ("usr/share/man/man1/python3.11.1.gz", False),
        ("usr/share/zoneinfo/Europe/Berlin", True),
        ("usr/share/zoneinfo/right/Europe/Berlin", False),
        ("usr/share/ca-certificates/mozilla/A.crt", True),
        ("usr/sbin/update-ca-certificates", False),
        ("usr/lib/x86_64-linux-gnu/gconv/EUC-JP.so", False),
        ("etc/python3.11/sitecustomize.py", False),
    ],
)
def test_what_a_server_does_not_need_stays_out(path: str, taken: bool) -> None:
    assert debian.is_wanted(path, Wanted("any")) is taken


def test_of_a_package_with_paths_only_those_and_its_licence_come() -> None:
    wanted = Wanted("libc-bin", ("usr/lib/locale/C.utf8",))
    assert debian.is_wanted("usr/lib/locale/C.utf8/LC_CTYPE", wanted)
    assert not debian.is_wanted("usr/lib/locale/C.utf8x/LC_CTYPE", wanted)
    assert not debian.is_wanted("usr/bin/ldd", wanted)
    assert debian.is_wanted("usr/share/doc/libc-bin/copyright", wanted)


def test_a_package_is_extracted_with_its_links_and_modes(tmp_path: Path) -> None:
    archive = _package(tmp_path)
    root = tmp_path / "root"
    debian.extract(archive, root, lambda path: "unwanted" not in path)
    assert (root / "usr/lib/libx.so.1.2").read_bytes() == b"\x7fELF"
    assert os.readlink(root / "usr/lib/libx.so.1") == "libx.so.1.2"
    assert (root / "usr/bin/x").stat().st_mode & 0o7777 == 0o755
    assert (root / "usr/bin/same").stat().st_ino == (root / "usr/bin/x").stat().st_ino
    assert sorted(path.name for path in root.rglob("*")) == [
        "bin",
        "lib",
        "libx.so.1",
        "libx.so.1.2",
        "same",
        "usr",
        "x",
    ]


def _package(folder: Path) -> Path:
    """A package as `dpkg-deb` makes one; its program has the set-user-id bit."""
    tree = folder / "tree"
    for path, content in {"lib/libx.so.1.2": b"\x7fELF", "usr/bin/x": b"program", "usr/share/unwanted": b""}.items():
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        (tree / path).write_bytes(content)
    (tree / "lib/libx.so.1").symlink_to("libx.so.1.2")
    (tree / "usr/bin/x").chmod(0o4755)
    os.link(tree / "usr/bin/x", tree / "usr/bin/same")
    archive = folder / "x.deb"
    data, control = io.BytesIO(), io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:xz") as tar:
        tar.add(tree, ".")
    with tarfile.open(fileobj=control, mode="w:xz") as tar:
        text = b"Package: x\nVersion: 1\nArchitecture: all\nMaintainer: x <x@example.org>\nDescription: x\n"
        entry = tarfile.TarInfo("./control")
        entry.size = len(text)
        tar.addfile(entry, io.BytesIO(text))
    with archive.open("wb") as file:  # an ar archive
        file.write(b"!<arch>\n")
        members = {"debian-binary": b"2.0\n", "control.tar.xz": control.getvalue(), "data.tar.xz": data.getvalue()}
        for name, content in members.items():
            file.write(f"{name:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(content):<10}`\n".encode() + content)
            file.write(b"\n" * (len(content) % 2))
    return archive


def test_what_was_made_is_kept_until_it_is_asked_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    made = []

    def make(folder: Path) -> None:
        made.append(folder)
        (folder / "number").write_text(str(len(made)))

    first = cache.kept("thing", cache.key("a"), make)
    assert cache.kept("thing", cache.key("a"), make) == first
    assert (first / "number").read_text() == "1"
    assert cache.kept("thing", cache.key("a"), make, again=True) == first
    assert (first / "number").read_text() == "2"
    assert first.stat().st_mode & 0o777 == 0o755


def test_a_making_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def make(folder: Path) -> None:
        (folder / "half").touch()
        raise ImageError("no")

    with pytest.raises(ImageError):
        cache.kept("thing", cache.key("a"), make)
    assert list((tmp_path / "tailrace").iterdir()) == []


def test_old_generations_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    made = []
    for number in range(cache.KEPT + 2):
        made.append(cache.kept("thing", cache.key(str(number)), lambda folder: None))
        os.utime(made[-1], (number, number))
    other = cache.kept("thing-else", cache.key("0"), lambda folder: None)
    cache.kept("thing", cache.key("last"), lambda folder: None)
    assert [path.exists() for path in made] == [False] * 3 + [True] * (cache.KEPT - 1)
    assert other.exists()


def test_keys_tell_parts_from_one_another(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("ab")
    assert cache.key("a", "b") != cache.key("ab")
    assert cache.key(tmp_path / "file") == cache.key("ab")


def test_programs_start_with_the_interpreter_of_the_image(tmp_path: Path) -> None:
    entry_points = "[console_scripts]\ntailrace = tailrace.cli.entry:main\nother = a.b:run\n"
    python.write_programs(entry_points, tmp_path / "bin")
    assert sorted(path.name for path in (tmp_path / "bin").iterdir()) == ["other", "tailrace"]
    program = tmp_path / "bin/tailrace"
    assert program.stat().st_mode & 0o777 == 0o755
    assert program.read_text().startswith("#!/opt/tailrace/bin/python\n")
    assert "from tailrace.cli.entry import main" in program.read_text()


def test_the_tag_is_the_version_without_what_a_tag_cannot_have() -> None:
    assert python.version_of(Path("tailrace-1.2.dev0+local-cp311-cp311-linux_x86_64.whl")) == "1.2.dev0-local"


def test_tests_and_sources_of_native_code_are_stripped(tmp_path: Path) -> None:
    for name in ("p/a.py", "p/a.so", "p/a.pyx", "p/a.pyi", "p/tests/b.py", "p/testing.py", "kubernetes/aio/c.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    python.strip(tmp_path)
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == ["a.py", "a.so", "testing.py"]


def test_what_left_the_tree_leaves_the_wheel(tmp_path: Path) -> None:
    for name in ("lib/tailrace/gone.py", "lib/tailrace/kernel/_gone.so", "lib/tailrace/kernel/_crc.cpython-311.so"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    python.forget_removed(tmp_path / "lib", {"_crc"})
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["_crc.cpython-311.so"]


def test_native_modules_that_were_built_in_place_are_taken_once(tmp_path: Path) -> None:
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    built, library = tmp_path / "kernel", tmp_path / "lib/tailrace/kernel"
    built.mkdir()
    for name in ("_crc", "_gone"):
        (built / f"{name}{suffix}").write_bytes(b"in place")
    os.utime(built / f"_crc{suffix}", (1000, 1000))
    python.take_built(built, library, {"_crc", "_btree"})
    taken = library / f"_crc{suffix}"
    assert [path.name for path in library.iterdir()] == [taken.name]
    assert (taken.read_bytes(), taken.stat().st_mtime) == (b"in place", 1000)
    taken.write_bytes(b"built later")
    python.take_built(built, library, {"_crc", "_btree"})
    assert taken.read_bytes() == b"built later"
