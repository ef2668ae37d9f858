"""What the tests of real processes share: the checks of the published Python client."""

from __future__ import annotations

from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent.parent


@pytest.fixture(scope="session")
def python_scripts() -> Path:
    """The checks of the published Python client."""
    return REPOSITORY / "tests/compat/python/scripts"
