"""Files of lines that grow: JSON objects as they are appended, each of them once.

Files are known by device and inode, so that a renamed one is not read again.  What is there before
the first reading belongs to the past and is passed over.  A file that shrank was truncated and is
read from its start; a line that has no end yet is read when it has.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from glob import glob
from pathlib import Path

CHUNK = 256 * 1024
MAX_LINE = 1024 * 1024
MAX_FILES = 256

FileId = tuple[int, int]


@dataclass(slots=True)
class _File:
    """How far a file has been read; ``skipping`` while a line too long for use goes on."""

    position: int
    skipping: bool = False


class FollowedFiles:
    """Follows all files that match ``pattern``; at most ``max_bytes`` are read at a time.

    ``files`` is how many matched last; of more than 256 the newest are followed.  ``malformed``
    counts lines that are no JSON objects, or longer than a mebibyte.  ``error`` is why a file could
    not be read the last time.
    """

    def __init__(self, pattern: str, max_bytes: int) -> None:
        self.files = 0
        self.malformed = 0
        self.error = ""
        self._pattern = pattern
        self._max_bytes = max_bytes
        self._known: dict[FileId, _File] = {}
        self._began = False

    def read(self) -> Iterator[dict[str, object]]:
        """Yield the objects that were appended since; blocks, and must be used up."""
        self.error = ""
        left, here = self._max_bytes, set()
        for path, status in self._matching():
            identity = (status.st_dev, status.st_ino)
            here.add(identity)
            try:
                file = self._file(identity, path, status.st_size)
                for line in self._lines(path, file, left):
                    left -= len(line)
                    yield from self._object(line)
            except OSError as error:
                self.error = f"{path} cannot be read: {error.strerror}"
        self._known = {identity: self._known[identity] for identity in here & self._known.keys()}
        self._began = True

    def _matching(self) -> list[tuple[Path, os.stat_result]]:
        """Return the regular files that match, the newest last."""
        files = []
        for path in map(Path, glob(self._pattern)):  # noqa: PTH207 - the pattern may be absolute
            try:
                status = path.stat()
            except OSError:  # gone in the meantime
                continue
            if stat.S_ISREG(status.st_mode):
                files.append((path, status))
        files.sort(key=lambda file: (file[1].st_mtime_ns, file[0]))
        self.files = len(files)
        return files[-MAX_FILES:]

    def _file(self, identity: FileId, path: Path, size: int) -> _File:
        file = self._known.get(identity)
        if file is None:
            file = _File(0 if self._began else _end_of_lines(path, size))
        elif size < file.position:
            file = _File(0)
        self._known[identity] = file
        return file

    def _lines(self, path: Path, file: _File, most: int) -> Iterator[bytes]:
        """Yield whole lines, and move on past them."""
        with path.open("rb") as stream:
            stream.seek(file.position)
            while most > 0 and (piece := stream.readline(MAX_LINE)):
                ends = piece.endswith(b"\n")
                if not ends and len(piece) < MAX_LINE:
                    return
                file.position += len(piece)
                most -= len(piece)
                if ends and not file.skipping:
                    yield piece
                elif not file.skipping:
                    self.malformed += 1
                file.skipping = not ends

    def _object(self, line: bytes) -> Iterator[dict[str, object]]:
        if not line.strip():
            return
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, dict):
            yield value
        else:
            self.malformed += 1


def _end_of_lines(path: Path, size: int) -> int:
    """Return where the last whole line ends."""
    with path.open("rb") as stream:
        end = size
        while end > 0:
            start = max(0, end - CHUNK)
            stream.seek(start)
            found = stream.read(end - start).rfind(b"\n")
            if found >= 0:
                return start + found + 1
            end = start
    return 0
