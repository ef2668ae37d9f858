"""Headers behind a torn frame count only when the owner wrote them: a payload may hold what looks like one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.common.errors import DataLossError, FormatVersionError
from tailrace.kernel import crc32c
from tailrace.log import frames
from tailrace.log.disk import RealDisk
from tailrace.log.file import FileLog
from tailrace.log.frames import SECTOR_BYTES, FrameIdentity, FrameKind
from tailrace.log.scan import file_name

KIB = 1024
CONTAINER = 3
NONCE = b"n" * 16
PAYLOAD_BYTES = 12 * KIB
FORGED_SEQUENCE = 10**6


def new_log(disk: RealDisk, folder: Path) -> FileLog:
    return FileLog(disk, str(folder), CONTAINER, file_bytes=128 * KIB, max_frame_bytes=16 * KIB, reserve_bytes=16 * KIB)


def forged_header(offset: int, *, epoch: int = 1, version: int = 1, kind: FrameKind = FrameKind.MARK) -> bytes:
    """A valid header with a nonce that its writer guessed."""
    buffers, _ = frames.encode_frame(
        FrameIdentity(CONTAINER, epoch, b"?" * 16), kind, [], sequence=5,
        acknowledged_through=FORGED_SEQUENCE, log_start=0, offset=offset,
    )  # fmt: skip
    header = bytearray(buffers[0])
    header[8:10] = version.to_bytes(2, "big")
    header[120:124] = crc32c(header[:120]).to_bytes(4, "big")
    return bytes(header)


def forged_payload(position: int, *, epoch: int = 1, version: int = 1) -> bytes:
    """What a client sends that knows where its frame will be stored: a header in each sector after the first."""
    payload = bytearray(b"z" * PAYLOAD_BYTES)
    for sector in range(1, PAYLOAD_BYTES // SECTOR_BYTES):
        at = sector * SECTOR_BYTES - frames.HEADER_BYTES
        payload[at : at + frames.HEADER_BYTES] = forged_header(
            position + sector * SECTOR_BYTES, epoch=epoch, version=version
        )
    return bytes(payload)


class Written:
    """A log, and where each of its frames is."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.places: list[tuple[Path, int]] = []

    async def epoch(self, epoch: int, *payloads: bytes | str) -> None:
        """Write frames as the owner of an epoch; "forged": a payload with headers for the place where it will be."""
        disk = RealDisk()
        log = new_log(disk, self.folder)
        await log.open(epoch, NONCE)
        for payload in payloads:
            assert log._current is not None
            if isinstance(payload, str):
                version = 2 if payload == "forged newer" else 1
                payload = forged_payload(log._current.position, epoch=epoch, version=version)
            await log.append([payload])
            file = log._current
            self.places.append((Path(file.path), file.sectors[-1] * SECTOR_BYTES))
        await log.close()
        disk.close()

    def lose(self, number: int, first: int = 0, count: int = 1) -> None:
        """Lose sectors of a frame, as a power cut does; negative ones count from its end."""
        path, offset = self.places[number]
        length = frames.frame_length(PAYLOAD_BYTES, 0) if first < 0 else 0
        zero(path, offset + length + first * SECTOR_BYTES, count)

    async def opened(self, epoch: int) -> list[bytes]:
        """What a new owner recovers."""
        disk = RealDisk()
        log = new_log(disk, self.folder)
        try:
            await log.open(epoch, b"m" * 16)
            return [bytes(frame.payload) async for frame in log.recover()]
        finally:
            await log.close()
            disk.close()


def zero(path: Path, offset: int, sectors: int = 1) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(bytes(sectors * SECTOR_BYTES))


@pytest.fixture
def written(tmp_path: Path) -> Written:
    return Written(tmp_path / "log")


LARGE = [bytes([number]) * PAYLOAD_BYTES for number in range(1, 16)]
"""Frames that fill more than one file."""


@pytest.mark.parametrize("kind", ["forged", "forged newer"])
@pytest.mark.parametrize("lost", [0, -1])
async def test_a_torn_last_frame_may_hold_headers(written: Written, kind: str, lost: int) -> None:
    await written.epoch(1, b"a", b"b", kind)
    written.lose(2, lost)
    assert await written.opened(2) == [b"a", b"b"]


async def test_later_frames_of_the_owner_count_beside_forged_ones(written: Written) -> None:
    await written.epoch(1, b"a", "forged", b"c", b"d")
    written.lose(1, -1)
    with pytest.raises(DataLossError, match=r"log frame 1 is missing .* but frames through 2 were durable"):
        await written.opened(2)


@pytest.mark.parametrize("lost", [1, 13])
async def test_frames_count_whose_file_has_lost_its_start(written: Written, lost: int) -> None:
    """START of another file of the epoch, an earlier or a later one, shows the owner."""
    await written.epoch(1, *LARGE)
    (first, _), (second, _) = written.places[0], written.places[-1]
    assert first != second, "two files"
    zero(first if lost == 1 else second, 0)
    with pytest.raises(DataLossError, match=r"is missing .* but frames through 13 were durable"):
        await written.opened(2)


async def test_the_last_file_shows_what_was_acknowledged_without_its_start(written: Written) -> None:
    """Only headers behind a lost START have it."""
    await written.epoch(1, *LARGE[:12])
    second = written.places[-1][0]
    in_second = [number for number, (path, _) in enumerate(written.places) if path == second]
    assert 2 <= len(in_second) < 12
    zero(second, 0)
    with pytest.raises(DataLossError, match=rf"log frame {in_second[0]} is missing .* through 10 were durable"):
        await written.opened(2)


async def test_forged_headers_of_a_file_without_a_start_do_not_count(written: Written) -> None:
    """A new file's first frames were lost with its START; a part of the payload was not."""
    in_first = 9
    await written.epoch(1, *LARGE[:in_first], "next file")
    path, offset = written.places[-1]
    assert path != written.places[-2][0]
    with path.open("r+b") as file:
        file.seek(offset + frames.HEADER_BYTES)
        file.write(forged_payload(offset))
    zero(path, 0)
    written.lose(in_first, 0)
    written.lose(in_first, -1)
    assert await written.opened(2) == LARGE[:in_first]


async def many_epochs(written: Written) -> int:
    """Write epochs until START needs a second sector; return the next one."""
    for epoch in range(1, 31):
        await written.epoch(epoch, b"x")
    return 31


@pytest.mark.parametrize("torn", ["the header is whole", "the header is lost"])
async def test_frames_behind_the_only_start_of_an_epoch_count(written: Written, torn: str) -> None:
    epoch = await many_epochs(written)
    await written.epoch(epoch, b"a", b"b")
    path, offset = written.places[-2]
    assert offset > SECTOR_BYTES
    zero(path, SECTOR_BYTES if torn == "the header is whole" else 0)
    with pytest.raises(DataLossError, match="frames of epoch 31 exist, but the START frame is missing"):
        await written.opened(epoch + 1)


async def test_the_header_of_a_torn_start_shows_the_owner(written: Written) -> None:
    """No frame of the epoch was durable, so it never began."""
    epoch = await many_epochs(written)
    await written.epoch(epoch, "forged")
    path, _ = written.places[-1]
    zero(path, SECTOR_BYTES)
    written.lose(-1, 0)
    assert await written.opened(epoch + 1) == [b"x"] * 30


async def test_a_newer_version_is_refused_while_the_owner_is_unknown(written: Written) -> None:
    await written.epoch(1, "forged newer")
    path, _ = written.places[0]
    zero(path, 0)
    with pytest.raises(FormatVersionError):
        await written.opened(2)


async def test_an_empty_file_holds_nothing(written: Written) -> None:
    await written.epoch(1, b"a")
    (written.folder / file_name(1, 1)).touch()
    assert await written.opened(2) == [b"a"]
