"""List the streams that have a retention policy, so that the job that applies policies scans no others.

See docs/controller.md#retention.

Steps of workflows add entries. Only the job removes them, under the version that it read before it found the stream
without a policy: a step that adds the entry again writes a new version.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.controller.metadata.metadata_store import RETENTION_TABLE
from tailrace.controller.metadata.ports import UNCONDITIONAL, Put
from tailrace.controller.metadata.records import RetainedStream, encode

if TYPE_CHECKING:
    from tailrace.controller.metadata.records import StreamRecord
    from tailrace.controller.metadata.stream_store import StreamKey
    from tailrace.controller.workflows.context import WorkflowContext


async def note(context: WorkflowContext, key: StreamKey, root: StreamRecord) -> None:
    """List a stream that has a policy."""
    if root.config.retention is None:
        return
    record = RetainedStream(key.scope, key.stream)
    await context.store.metadata.put(RETENTION_TABLE, [Put(key.root, encode(record), UNCONDITIONAL)])
