"""List the streams whose writers note times, so that the job that writes watermarks scans no others.

See docs/controller.md#watermarks.

Whatever adds a writer to a stream lists the stream first. Only the job removes the entry, once the stream has had no
writers for longer than any call that adds one lasts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.controller.metadata.metadata_store import MARKED_TABLE
from tailrace.controller.metadata.ports import UNCONDITIONAL, Put
from tailrace.controller.metadata.records import MarkedStream, encode

if TYPE_CHECKING:
    from tailrace.controller.metadata.stream_store import StreamKey
    from tailrace.controller.workflows.context import WorkflowContext


async def note(context: WorkflowContext, key: StreamKey) -> None:
    """List a stream that is about to have another writer."""
    record = MarkedStream(key.scope, key.stream, context.clock.now_ms())
    await context.store.metadata.put(MARKED_TABLE, [Put(key.root, encode(record), UNCONDITIONAL)])
