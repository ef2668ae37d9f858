"""Open files are shared out so that connections never take those that logs and chunks need."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.common import limits
from tailrace.common.errors import StartError
from tailrace.common.open_files import connection_limits, raise_open_files


@given(st.integers(limits.OPEN_FILES_MIN, 1 << 20))
def test_connections_leave_the_reserved_files(open_files: int) -> None:
    allowed = connection_limits(open_files)
    assert min(allowed.store, allowed.controller, allowed.http) >= 16
    # One store, one controller, REST and administration in one process.
    http = allowed.http + min(allowed.http, limits.HTTP_CONNECTIONS_RESERVED)
    taken = allowed.store + allowed.controller + 2 * http
    assert taken + limits.OPEN_FILES_RESERVED <= open_files
    assert allowed.store <= limits.CONNECTIONS_MAX


def test_too_few_files_are_said_at_start() -> None:
    with pytest.raises(StartError, match="is 511: set at least"):
        connection_limits(511)


def test_this_process_may_open_what_the_system_lets_it() -> None:
    assert raise_open_files() >= limits.OPEN_FILES_MIN
