"""Files of a job, wherever Spark writes: a folder of this machine, or an object store."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final, Protocol

from tailrace.common.durable_folder import sync_folder
from tailrace.common.errors import CorruptionError
from tailrace.pipelines.jobs.session import file_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PART = ".part"
WHOLE: Final = {"ignoreCorruptFiles": "false", "ignoreMissingFiles": "false"}
"""Options of readers: what cannot be read is an error, whatever the session's settings say."""


class JobFiles(Protocol):
    """What jobs need of a file system. Paths are URLs or local paths. Errors are those of the file system."""

    def folders(self, path: str) -> list[str]:
        """Return the names of the folders in a folder; none when it is missing."""
        ...

    def files(self, path: str) -> dict[str, int]:
        """Return the files below a folder, by their path in it, with their length in bytes; none when it is missing."""
        ...

    def read(self, path: str, length_max_bytes: int) -> bytes | None:
        """Return the content of a file; None when there is none. Raises CorruptionError: it is longer."""
        ...

    def write(self, path: str, content: bytes) -> None:
        """Write a file, which is there whole or not at all."""
        ...

    def move(self, source: str, target: str) -> None:
        """Move a file. When this breaks off, one of the two is whole; when it was done before, nothing is changed.

        A file of the same length at the target counts as what was moved. Raises OSError: there is no such file.
        """
        ...

    def delete(self, path: str) -> None:
        """Delete a file, or a folder with all that is in it; nothing when it is missing."""
        ...

    def sync(self, path: str) -> None:
        """Write a file, or a folder and all that is in it, to the disk. Object stores have done so."""
        ...


class SparkFiles:
    """The file systems of Hadoop, which Spark uses."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def folders(self, path: str) -> list[str]:
        """See JobFiles.folders."""
        files, place = file_of(self._spark, path)
        if not files.exists(place):
            return []
        return [str(each.getPath().getName()) for each in files.listStatus(place) if each.isDirectory()]

    def files(self, path: str) -> dict[str, int]:
        """See JobFiles.files."""
        files, place = file_of(self._spark, path)
        if not files.exists(place):
            return {}
        start = len(str(files.makeQualified(place).toUri().getPath()).rstrip("/")) + 1
        found, each = {}, files.listFiles(place, True)
        while each.hasNext():
            status = each.next()
            found[str(status.getPath().toUri().getPath())[start:]] = int(status.getLen())
        return found

    def read(self, path: str, length_max_bytes: int) -> bytes | None:
        """See JobFiles.read."""
        files, place = file_of(self._spark, path)
        if not files.exists(place):
            return None
        length_bytes = int(files.getFileStatus(place).getLen())
        if length_bytes > length_max_bytes:
            raise CorruptionError(path, f"it has {length_bytes} bytes, at most {length_max_bytes} are expected")
        stream = files.open(place)
        try:
            return bytes(stream.readAllBytes())
        finally:
            stream.close()

    def write(self, path: str, content: bytes) -> None:
        """See JobFiles.write. An object appears when it is whole; a file gets its name then."""
        files, place = file_of(self._spark, path + _PART)
        stream = files.create(place, True)
        try:
            stream.write(content)
        finally:
            stream.close()
        if self._is_local(files):
            _sync_file(_local(place))
        _, wanted = file_of(self._spark, path)
        files.delete(wanted, False)
        if not files.rename(place, wanted):
            raise OSError(f"{path} cannot be written")

    def move(self, source: str, target: str) -> None:
        """See JobFiles.move. It never deletes the target: another process may just have moved the only copy there."""
        files, place = file_of(self._spark, source)
        _, wanted = file_of(self._spark, target)
        is_left = bool(files.exists(place))
        if files.exists(wanted):
            moved_bytes = int(files.getFileStatus(wanted).getLen())
            if is_left and moved_bytes != int(files.getFileStatus(place).getLen()):
                raise OSError(f"{source} cannot be moved to {target}: there is another file")
            files.delete(place, False)
            return
        files.mkdirs(wanted.getParent())
        if not is_left or not files.rename(place, wanted):
            raise OSError(f"{source} cannot be moved to {target}")

    def delete(self, path: str) -> None:
        """See JobFiles.delete."""
        files, place = file_of(self._spark, path)
        if not files.delete(place, True) and files.exists(place):
            raise OSError(f"{path} cannot be deleted")

    def sync(self, path: str) -> None:
        """See JobFiles.sync."""
        files, place = file_of(self._spark, path)
        if not self._is_local(files) or not files.exists(place):
            return
        if os.path.isfile(_local(place)):
            _sync_file(_local(place))
        for folder, _, names in os.walk(_local(place)):
            for name in names:
                _sync_file(os.path.join(folder, name))
            sync_folder(folder)
        sync_folder(os.path.dirname(_local(place)))

    @staticmethod
    def _is_local(files: Any) -> bool:
        return str(files.getScheme()) == "file"


def _local(place: Any) -> str:
    return os.path.abspath(str(place.toUri().getPath()))


def _sync_file(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
