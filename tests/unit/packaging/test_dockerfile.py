"""The Dockerfile makes the same image as `make images`: it copies what exists, and starts in the same way."""

from __future__ import annotations

import fnmatch
import json
import re
import shlex
from pathlib import Path

from imagebuild import python
from imagebuild.images import APPLICATION_CONFIG

REPOSITORY = Path(__file__).resolve().parents[3]
TEXT = (REPOSITORY / "Dockerfile").read_text()
KNOWN = {"ARG", "FROM", "RUN", "WORKDIR", "COPY", "LABEL", "ENV", "USER", "ENTRYPOINT"}


def instructions() -> list[tuple[str, str]]:
    """Name and arguments of each, in order; comments are left out and lines joined."""
    lines = [line for line in TEXT.splitlines() if not line.startswith("#")]
    found = []
    for line in re.sub(r"\\\n\s*", " ", "\n".join(lines)).splitlines():
        if line.strip():
            name, _, arguments = line.partition(" ")
            assert name in KNOWN, line
            found.append((name, arguments.strip()))
    return found


def stages() -> list[tuple[str, list[tuple[str, str]]]]:
    """Name and instructions of every stage; the last one has no name."""
    found: list[tuple[str, list[tuple[str, str]]]] = []
    for name, arguments in instructions():
        if name == "FROM":
            _, _, alias = arguments.partition(" AS ")
            found.append((alias, []))
        elif found:
            found[-1][1].append((name, arguments))
    return found


def value(name: str) -> str:
    """The arguments of the one such instruction in the last stage."""
    (found,) = [arguments for each, arguments in stages()[-1][1] if each == name]
    return found


def test_every_stage_stands_on_a_known_one() -> None:
    known = {"${PYTHON}"}
    for name, arguments in instructions():
        if name == "FROM":
            base, _, alias = arguments.partition(" AS ")
            assert base in known
            known |= {alias} - {""}


def test_what_is_copied_exists() -> None:
    earlier: list[str] = []
    for name, of_stage in stages():
        for _, arguments in (each for each in of_stage if each[0] == "COPY"):
            words = arguments.split()
            if words[0].startswith("--from="):
                assert words[0].removeprefix("--from=") in earlier
            else:
                assert [source for source in words[:-1] if not (REPOSITORY / source).exists()] == []
        earlier.append(name)


def test_the_context_holds_what_is_copied_and_nothing_big() -> None:
    lines = [line for line in (REPOSITORY / ".dockerignore").read_text().splitlines() if line and line[0] != "#"]
    assert lines[0] == "*"
    allowed = {line.removeprefix("!") for line in lines if line.startswith("!")}
    copied = {
        word.split("/")[0]
        for name, arguments in instructions()
        if name == "COPY" and not arguments.startswith("--from=")
        for word in arguments.split()[:-1]
    }
    assert copied == allowed
    assert any(fnmatch.fnmatch("a/b.so", line) for line in lines), "native modules are built inside"


def test_it_starts_as_the_assembled_image_does() -> None:
    assert json.loads(value("ENTRYPOINT")) == APPLICATION_CONFIG["Entrypoint"]
    assert value("USER") == APPLICATION_CONFIG["User"]
    assert value("WORKDIR") == APPLICATION_CONFIG["WorkingDir"]
    assert shlex.split(value("ENV")) == APPLICATION_CONFIG["Env"]
    assert dict(word.split("=", 1) for word in shlex.split(value("LABEL"))) == APPLICATION_CONFIG["Labels"]


def test_it_has_the_same_python_and_leaves_out_the_same() -> None:
    assert f"ARG PYTHON=python:{python.SERIES}-slim-" in TEXT
    assert f"/{python.PACKAGES}/" in TEXT
    for name in python.TEST_FOLDERS:
        assert f"-name {name} " in TEXT
    for name in python.UNUSED:
        assert f"rm -r /{python.PACKAGES}/{name} " in TEXT


def test_only_locked_packages_are_installed() -> None:
    installations = re.findall(r"pip (?:--python \S+ )?install [^&]*", " ".join(each for _, each in instructions()))
    assert len(installations) == 3
    for command in installations:
        ours = "--no-index" in command and "/wheel/" in command
        assert ours or ("--require-hashes" in command and "--only-binary=:all:" in command), command
