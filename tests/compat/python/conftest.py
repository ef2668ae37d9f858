"""What the checks of the published Python client share."""

from __future__ import annotations

import pytest

from harness import daily

OF_FILE, OF_OBJECT = (
    tuple(
        f"compat/python/test_python_client.py::{test}[{log}-"
        for test in ("test_python_client", "test_python_client_after_its_retries")
    )
    for log in ("file", "object")
)
DAILY = (OF_FILE, OF_OBJECT)
"""The client's checks over each kind of log: CI runs one of them each day, all other runs both."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the kind of log that has its turn on another day."""
    daily.leave_out(config, items, DAILY, 1)
