"""System calls of a real process, recorded by strace, and their replay on the simulated disk.

The recording keeps contents, so that a power cut at any instant can be tried: what a returned fdatasync or fsync
covered is durable, of everything else any subset may be.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from sim.disk import Directory, Inode, SimDisk

SYSCALLS = (
    "openat,pwritev,pwritev2,pwrite64,write,writev,sendto,sendmsg,fdatasync,fsync,rename,renameat,renameat2,"
    "unlink,unlinkat,ftruncate,fallocate,mkdir,mkdirat"
)
_LINE = re.compile(r"(\d+) +(\d+\.\d+) (.*)")
_RESUMED = re.compile(r"<\.\.\. (\w+) resumed>(.*)")
_FINISHED = re.compile(r"(\w+)\((.*)\)\s+= (-?\d+)(<[^>]*>)?.*<(\d+\.\d+)>")
_TEXT = re.compile(r'"((?:\\x[0-9a-f]{2})*)"(\.\.\.)?')
_DESCRIPTOR = re.compile(r"(\d+)<((?:\\x[0-9a-f]{2})*)>")


def strace_command(output: Path, string_bytes: int = 20_000) -> list[str]:
    """What to put before a command to record it."""
    return [
        "strace", "-f", "-ttt", "-T", "-y", "-xx", "-s", str(string_bytes), "-e", "signal=none",
        "-e", f"trace={SYSCALLS}", "-o", str(output),
    ]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Call:
    """A system call that succeeded. Times in seconds; ``path`` is that of its descriptor or its first path."""

    name: str
    started_s: float
    ended_s: float
    path: str
    texts: tuple[bytes, ...]
    cut: bool
    arguments: str
    result: int


def _text(escaped: str) -> bytes:
    return bytes.fromhex(escaped.replace("\\x", ""))


def read_calls(recording: Path) -> list[Call]:
    """The successful calls of a recording, by the time they ended."""
    unfinished: dict[tuple[str, str], tuple[float, str]] = {}
    calls = []
    with recording.open() as lines:
        for line in lines:
            parsed = _LINE.match(line)
            if parsed is None:
                continue
            thread, at, rest = parsed[1], float(parsed[2]), parsed[3]
            if rest.endswith("<unfinished ...>"):
                name = rest.partition("(")[0]
                unfinished[thread, name] = (at, rest.removesuffix("<unfinished ...>"))
                continue
            if resumed := _RESUMED.match(rest):
                at, before = unfinished.pop((thread, resumed[1]), (at, ""))
                rest = before + resumed[2]
            if (finished := _FINISHED.match(rest)) and int(finished[3]) >= 0:
                calls.append(_call(finished, at))
    return sorted(calls, key=lambda call: call.ended_s)


def _call(finished: re.Match[str], at: float) -> Call:
    name, arguments = finished[1], finished[2]
    descriptor = _DESCRIPTOR.match(arguments)
    texts = [(_text(found[1]), bool(found[2])) for found in _TEXT.finditer(arguments)]
    path = _text(descriptor[2]).decode() if descriptor else ""
    if not path and texts:
        path = texts[0][0].decode("utf-8", "replace")
    return Call(
        name,
        at,
        at + float(finished[5]),
        path,
        tuple(text for text, _ in texts),
        any(cut for _, cut in texts),
        arguments,
        int(finished[3]),
    )


@dataclass(frozen=True, slots=True)
class Event:
    """The begin (of a sync) or the effect (of anything else) of a call below the watched folder."""

    at_s: float
    call: Call
    begins: bool


def events_below(calls: Sequence[Call], folder: str) -> list[Event]:
    """What the calls did to files below a folder, in order."""
    events = []
    for call in calls:
        below = [call.path, *(os.fsdecode(text) for text in call.texts if text.startswith(folder.encode()))]
        if not any(path == folder or path.startswith(folder + "/") for path in below):
            continue
        if call.name in ("fdatasync", "fsync"):
            events.append(Event(call.started_s, call, True))
        events.append(Event(call.ended_s, call, False))
    return sorted(events, key=lambda event: event.at_s)


class Replay:
    """Carries recorded events out on the state of a simulated disk."""

    def __init__(self, disk: SimDisk) -> None:
        self._directories = disk.directories
        self._covered: dict[int, dict[int, int]] = {}
        self._changes: dict[int, int] = {}

    def apply(self, event: Event) -> None:
        """One event."""
        call = event.call
        match call.name:
            case "openat" if "O_CREAT" in call.arguments:
                self._create(call.texts[0].decode())
            case "pwritev" | "pwritev2" | "pwrite64":
                self._inode(call.path).write(_offset(call), _written(call))
            case "fdatasync" | "fsync":
                self._sync(event)
            case "rename" | "renameat" | "renameat2":
                source, target = (text.decode() for text in call.texts)
                directory, name = self._place(source)
                directory.change(name, os.path.basename(target), self._inode(source))
            case "unlink" | "unlinkat":
                directory, name = self._place(call.texts[-1].decode())
                directory.change(name, "", None)
            case "ftruncate":
                self._inode(call.path).shorten(int(call.arguments.rpartition(",")[2]))
            case "fallocate":
                inode = self._inode(call.path)
                length = int(call.arguments.rpartition(",")[2])
                if length > len(inode.seen):
                    inode.write(len(inode.seen), bytes(length - len(inode.seen)))
            case "mkdir" | "mkdirat":
                self._directories.setdefault(call.texts[-1].decode(), Directory())

    def _place(self, path: str) -> tuple[Directory, str]:
        directory, _, name = path.rpartition("/")
        return self._directories.setdefault(directory, Directory()), name

    def _inode(self, path: str) -> Inode:
        directory, name = self._place(path)
        return directory.seen[name]

    def _create(self, path: str) -> None:
        directory, name = self._place(path)
        if name not in directory.seen:
            directory.change("", name, Inode())

    def _sync(self, event: Event) -> None:
        key = id(event.call)
        if event.call.path in self._directories:
            directory = self._directories[event.call.path]
            if event.begins:
                self._changes[key] = len(directory.changes)
            else:
                directory.settle(self._changes.pop(key))
            return
        directory, name = self._place(event.call.path)
        if name not in directory.seen:
            return  # a directory above the recorded ones
        inode = directory.seen[name]
        if event.begins:
            self._covered[key] = dict(inode.dirty)
        else:
            inode.settle(self._covered.pop(key))


def _offset(call: Call) -> int:
    """The file offset of a positioned write."""
    numbers = [int(part) for part in re.findall(r", (-?\d+)", call.arguments.rpartition("]")[2] or call.arguments)]
    if call.name == "pwrite64":
        return int(call.arguments.rpartition(",")[2])
    return numbers[1]


def _written(call: Call) -> bytes:
    data = b"".join(call.texts)
    if len(data) < call.result:
        # Longer than what is recorded of a string: only zeroing writes so much at once.
        if not call.cut or any(data):
            raise ValueError(f"a write of {call.result} bytes to {call.path} was not recorded whole")
        data = bytes(call.result)
    return data[: call.result]


def sends(calls: Sequence[Call]) -> Iterator[tuple[float, bytes]]:
    """What left the process through sockets: when the call began, and the bytes."""
    for call in calls:
        if call.name in ("sendto", "sendmsg") or (call.name in ("write", "writev") and call.path.startswith("socket:")):
            yield call.started_s, b"".join(call.texts)[: call.result]
