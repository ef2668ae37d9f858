"""What an event says of itself, ours and those of the Java program."""

from __future__ import annotations

from history import decode
from sequences import Sequences


def judge(data: bytes, sequences: Sequences) -> None:
    """Enter an event that was read; bytes that no writer wrote are a violation."""
    event = decode(data)
    if event is not None:
        sequences.see(event.key, event.number)
        return
    key, _, rest = data.decode(errors="replace").partition(":")
    number, _, filling = rest.partition(":")
    if number.isdigit() and not filling.strip("~"):
        sequences.see(key, int(number))
    else:
        sequences.violate("invented", f"{data[:80]!r} ({len(data)} bytes)")
