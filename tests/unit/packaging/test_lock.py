"""The lock files hold all that pyproject.toml names, in versions that it allows, with hashes and no addresses."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

REPOSITORY = Path(__file__).resolve().parents[3]
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
DEPENDENCIES = PROJECT["project"]["dependencies"]
EXTRAS = PROJECT["project"]["optional-dependencies"]
BUILD = PROJECT["build-system"]["requires"] + ["pip", "wheel"]
FUZZ = [line for line in (REPOSITORY / "requirements/fuzz.in").read_text().splitlines() if not line.startswith("#")]
LOCKS = {
    "build.lock": BUILD,
    "runtime.lock": DEPENDENCIES + BUILD,
    "image.lock": DEPENDENCIES + EXTRAS["operator"],
    "dev.lock": DEPENDENCIES + BUILD + EXTRAS["dev"] + FUZZ,
}


def entries(lock: str) -> dict[str, tuple[str, int]]:
    """Name → (version, number of hashes)."""
    text = (REPOSITORY / "requirements" / lock).read_text().replace("\\\n", " ")
    found: dict[str, tuple[str, int]] = {}
    for line in text.splitlines():
        if line and not line.startswith((" ", "#")):
            pinned = re.match(r"([A-Za-z0-9._-]+)(?:\[[^]]*\])?==(\S+)", line)
            assert pinned, f"{lock}: not pinned: {line}"
            found[canonicalize_name(pinned[1])] = (pinned[2], line.count("--hash=sha256:"))
    return found


@pytest.mark.parametrize("lock", LOCKS)
def test_every_requirement_is_locked_in_an_allowed_version(lock: str) -> None:
    locked = entries(lock)
    for text in LOCKS[lock]:
        requirement = Requirement(text)
        version, _ = locked[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version, prereleases=True), f"{lock}: {text} is locked at {version}"


@pytest.mark.parametrize("lock", LOCKS)
def test_every_entry_has_a_hash(lock: str) -> None:
    assert [name for name, (_, hashes) in entries(lock).items() if hashes == 0] == []


@pytest.mark.parametrize("lock", LOCKS)
def test_no_addresses(lock: str) -> None:
    text = (REPOSITORY / "requirements" / lock).read_text()
    assert "://" not in text
    assert "--index-url" not in text
    assert "--find-links" not in text


@pytest.mark.parametrize("lock", sorted(LOCKS.keys() - {"dev.lock"}))
def test_what_is_tested_is_what_is_shipped(lock: str) -> None:
    development = entries("dev.lock")
    assert {name: entry[0] for name, entry in entries(lock).items()}.items() <= {
        name: entry[0] for name, entry in development.items()
    }.items()


def test_the_image_holds_nothing_that_builds() -> None:
    assert entries("image.lock").keys() & {"cython", "pip", "setuptools", "wheel"} == set()
