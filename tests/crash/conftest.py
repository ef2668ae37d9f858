"""What the tests of real processes share: the checks of the published Python client."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness import daily

DAILY = (
    ("crash/test_full_disk.py",),
    ("crash/test_automatic_scaling.py", "crash/test_minio_bucket_rules.py", "crash/test_transaction_lease.py"),
    ("crash/test_corruption.py",),
    ("crash/test_damage_under_load.py",),
    ("crash/test_client_scaling.py", "crash/test_watermark_kills.py"),
    ("crash/test_restore.py",),
    ("crash/test_clients_minio.py", "crash/test_object_log_servers.py"),
)
"""Faults that CI tries in turn, some of these groups each day; all other runs try all of them."""
DAILY_COUNT = 2

REPOSITORY = Path(__file__).resolve().parent.parent.parent


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the faults that have their turn on another day."""
    daily.leave_out(config, items, DAILY, DAILY_COUNT)


@pytest.fixture(scope="session")
def python_scripts() -> Path:
    """The checks of the published Python client."""
    return REPOSITORY / "tests/compat/python/scripts"
