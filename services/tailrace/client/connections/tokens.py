"""Cache delegation tokens for segment stores, which the controller issues per stream.

See docs/protocol/wire.md#delegation-tokens.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from tailrace.client.model import StreamName
from tailrace.common import limits, names

if TYPE_CHECKING:
    from tailrace.common.ports import Clock

Issue = Callable[[StreamName], Awaitable[str]]
_NEVER_MS: Final = 2**63 - 1


class TokenSource:
    """Tokens by stream, requested at the first use and again shortly before they expire.

    ``issue`` None is a client without credentials: its tokens are empty and need no call.
    """

    def __init__(self, clock: Clock, issue: Issue | None) -> None:
        self._clock = clock
        self._issue = issue
        self._known: OrderedDict[StreamName, tuple[int, str]] = OrderedDict()

    async def token(self, segment: str) -> str:
        """Return the token of a segment. Raises the errors of the controller's call."""
        if self._issue is None:
            return ""
        stream = _stream_of(segment)
        known = self._known.get(stream)
        if known is not None and self._clock.now_ms() < known[0]:
            return known[1]
        token = await self._issue(stream)
        self._known.pop(stream, None)
        self._known[stream] = (self._renew_at_ms(token), token)
        if len(self._known) > limits.CLIENT_TOKENS_CACHED_MAX:
            self._known.popitem(last=False)
        return token

    def forget(self, segment: str) -> None:
        """Drop the token of the segment's stream: a segment store refused it as expired."""
        self._known.pop(_stream_of(segment), None)

    def _renew_at_ms(self, token: str) -> int:
        latest_ms = self._clock.now_ms() + int(limits.CLIENT_TOKEN_TTL_S * 1000)
        expires_ms = expiry_ms(token)
        return min(latest_ms, expires_ms - int(limits.CLIENT_TOKEN_REFRESH_BEFORE_S * 1000))


def expiry_ms(token: str) -> int:
    """Return a token's expiry from its claims; 2^63−1 for a token without expiry or that is not a JWT."""
    parts = token.split(".")
    if len(parts) != 3:
        return _NEVER_MS
    text = parts[1].replace("+", "-").replace("/", "_").rstrip("=")
    try:
        claims = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    except (binascii.Error, ValueError):
        return _NEVER_MS
    expires_s = claims.get("exp") if isinstance(claims, dict) else None
    return int(expires_s * 1000) if isinstance(expires_s, int | float) else _NEVER_MS


def _stream_of(segment: str) -> StreamName:
    name = names.parse_segment_name(segment)
    return StreamName(name.scope, name.stream)
