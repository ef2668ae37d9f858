"""Check stream cuts from the command line."""

from __future__ import annotations

from tailrace.client.model import StreamName
from tailrace.common.errors import BadRequestError
from tailrace.common.stream_cut import StreamCut


def check_cut_of(cut: StreamCut, stream: StreamName) -> None:
    """Raise BadRequestError unless the cut belongs to the stream."""
    if cut.scoped_name != str(stream):
        raise BadRequestError(f"the stream cut belongs to {cut.scoped_name}, not to {stream}")
