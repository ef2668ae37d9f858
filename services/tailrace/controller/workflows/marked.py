"""List the streams whose writers note times, so that the job that writes watermarks scans no others.

See docs/controller.md#watermarks.

Whatever adds a writer to a stream lists the stream first. Only the job removes the entry, when the stream has no
writers and was listed longer ago than any call that adds one lasts. So a stream that has writers is listed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from tailrace.controller.metadata.changes import Change, Snapshot
from tailrace.controller.metadata.metadata_store import MARKED_TABLE
from tailrace.controller.metadata.ports import UNCONDITIONAL, Put
from tailrace.controller.metadata.records import MarkedStream, StreamRecord, encode

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tailrace.controller.metadata.stream_store import StreamKey
    from tailrace.controller.workflows.context import WorkflowContext


T = TypeVar("T")


async def change(
    context: WorkflowContext,
    key: StreamKey,
    extra_keys: Sequence[bytes],
    decide: Callable[[StreamRecord | None, Snapshot], Change[T]],
    *,
    by_memory: bool = False,
) -> T:
    """Change a stream's records as `StreamStore.change` does; list the stream first if that adds a writer to it.

    Whether it does is known only from the root that the change replaces: writers can leave at any time.

    Raises:
        WriteConflictError: too many conflicts in a row. Errors of `decide`.
    """
    is_listed = False

    def checked(now: StreamRecord | None, snapshot: Snapshot) -> Change[tuple[bool, T]]:
        decided = decide(now, snapshot)
        root = decided.puts.get(key.root)
        adds = now is not None and isinstance(root, StreamRecord) and root.writers != now.writers
        if adds and not is_listed:
            return Change((False, decided.result))
        return Change((True, decided.result), decided.puts)

    while True:
        is_done, result = await context.store.change(key, extra_keys, checked, by_memory=by_memory)
        if is_done:
            return result
        await note(context, key)
        is_listed = True


async def note(context: WorkflowContext, key: StreamKey) -> None:
    """List a stream that has writers, or is about to get one."""
    record = MarkedStream(key.scope, key.stream, context.clock.now_ms())
    await context.store.metadata.put(MARKED_TABLE, [Put(key.root, encode(record), UNCONDITIONAL)])
