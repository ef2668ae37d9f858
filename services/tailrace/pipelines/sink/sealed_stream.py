"""Name the reason when a stream is sealed while Spark writes it: its transactions end then."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from tailrace.common.errors import StreamSealedError, TailraceError

if TYPE_CHECKING:
    from tailrace.client.control.controller import ControllerClient
    from tailrace.client.model import StreamName


async def reason_to_report(controller: ControllerClient, stream: StreamName, error: TailraceError) -> TailraceError:
    """Return the reason why a transaction cannot be written or decided: the stream is sealed, or else `error`."""
    with contextlib.suppress(TailraceError):  # without an answer `error` is all that is known
        if (await controller.describe_stream(stream, sizes=False)).is_sealed:
            return StreamSealedError(f"stream {stream} is sealed: no more events can be written into it")
    return error
