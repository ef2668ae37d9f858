"""Encodes strings as Java's ``writeUTF`` does: u16 byte length and modified UTF-8 (docs/protocol/wire.md#field-types).

U+0000 is ``C0 80``, and supplementary characters are surrogate pairs of three bytes each. Other clients send plain
UTF-8, so the decoder also accepts four-byte characters.
"""

from __future__ import annotations

import re
from typing import Final

from tailrace.common.errors import BadRequestError, ProtocolError

STRING_MAX_BYTES: Final = 0xFFFF

_SUPPLEMENTARY: Final = re.compile("[\U00010000-\U0010ffff]")


def encode_text(text: str) -> bytes:
    """Encode `text` as modified UTF-8, without the length. Raises BadRequestError above 65535 bytes."""
    if text.isascii() and "\0" not in text:
        raw = text.encode("ascii")
    else:
        paired = _SUPPLEMENTARY.sub(_surrogate_pair, text)
        raw = paired.encode("utf-8", "surrogatepass").replace(b"\0", b"\xc0\x80")
    if len(raw) > STRING_MAX_BYTES:
        raise BadRequestError(f"a string of {len(raw)} bytes does not fit, at most {STRING_MAX_BYTES} are allowed")
    return raw


def decode_text(raw: bytes) -> str:
    """Decode modified (or plain) UTF-8. Raises ProtocolError for other bytes, lone surrogates included."""
    if raw.isascii():
        return raw.decode("ascii")
    try:
        text = raw.replace(b"\xc0\x80", b"\0").decode("utf-8", "surrogatepass")
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
    except UnicodeDecodeError as error:
        raise ProtocolError(f"a string is not valid UTF-8: {error.reason}") from None


def _surrogate_pair(match: re.Match[str]) -> str:
    code = ord(match.group()) - 0x10000
    return chr(0xD800 | code >> 10) + chr(0xDC00 | code & 0x3FF)
