from typing_extensions import Buffer

from tailrace.kernel._records_common import AppendRun

class LastAttributes:
    def __init__(self) -> None: ...
    def __len__(self) -> int: ...
    def take(self) -> tuple[dict[bytes, int], dict[bytes, int]]: ...

def skip_records(payload: Buffer, start: int, kind: int) -> int: ...
def scan_appends(
    payload: Buffer,
    start: int,
    sequence: int,
    max_count: int,
    attributes: dict[int, LastAttributes] | None = None,
) -> tuple[int, int, list[AppendRun]]: ...
