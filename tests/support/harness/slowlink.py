"""A way to the object store that is slow, and that all who send at a time share fairly. Only in virtual time."""

from __future__ import annotations

import asyncio

_STEP_S = 0.1


class SlowLink:
    """Carries so many bytes a second."""

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._rest: dict[asyncio.Future[None], float] = {}
        """Bytes that each sender has still to send."""

    async def carry(self, length_bytes: int) -> None:
        """Return when so many bytes are carried."""
        sent: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._rest[sent] = length_bytes
        try:
            await sent
        finally:
            self._rest.pop(sent, None)

    async def run(self) -> None:
        """Move bytes until cancelled."""
        while True:
            await asyncio.sleep(_STEP_S)
            share = self._bytes_per_s * _STEP_S / max(1, len(self._rest))
            for sent in self._rest:
                self._rest[sent] -= share
                if self._rest[sent] <= 0 and not sent.done():
                    sent.set_result(None)
