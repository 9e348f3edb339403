"""Tail JSON Lines files through rotation: each appended object is read once.

A file is identified by device, inode and a fingerprint: its first bytes and the bytes before the
read position.  The fingerprint detects a truncated file and a reused inode, and recognizes a file
that was copied or whose folder was mounted anew.  Positions are kept while a file is away.  The
files that grew last are held open, so a renamed or deleted file is read to its end.

Lines that a file holds at the first read are skipped.  An incomplete last line is read once it
ends.
"""

from __future__ import annotations

import json
import os
import stat
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from glob import glob
from pathlib import Path

CHUNK = 256 * 1024
MAX_LINE = 1024 * 1024
MAX_FILES = 4096
MAX_OPEN = 64
HEAD, TAIL = 256, 64

SHORTEST_COPY = 32
"""A file that begins with this many bytes of another one, or more, may be a copy of it."""

READS_AFTER_REMOVAL = 10
"""Reads without growth after which a removed file is closed."""

FileId = tuple[int, int]
"""Device and inode."""


@dataclass(slots=True)
class TailedFile:
    """The state of one file; ``skipping`` while the rest of an overlong line is skipped.

    ``head`` and ``tail`` are the fingerprint.  ``size`` and ``changed`` (nanoseconds) are those of
    the last read; ``missed`` counts the reads that have not found the file since.  ``original`` is
    the file that this one is a copy of.
    """

    path: Path
    fd: int | None = None
    position: int = 0
    skipping: bool = False
    head: bytes = b""
    tail: bytes = b""
    size: int = -1
    changed: int = 0
    missed: int = 0
    original: TailedFile | None = None

    def advance(self, data: bytes) -> None:
        """Move the position behind ``data``."""
        self.position += len(data)
        if len(self.head) < HEAD:
            self.head = (self.head + data[:HEAD])[:HEAD]
        self.tail = (self.tail + data[-TAIL:])[-TAIL:]

    def is_covered(self, size: int) -> bool:
        """Return whether this is a copy whose ``size`` bytes are all in its original."""
        original = self.original
        if original is None:
            return False
        return size < original.position or (not original.missed and size <= original.size)

    def copy_position(self, other: TailedFile) -> None:
        """Take over the position of another file with the same content."""
        self.position, self.skipping = other.position, other.skipping
        self.head, self.tail = other.head, other.tail


class FileTailer:
    """Tails all files that match ``pattern``; one read takes about ``max_bytes`` at most.

    ``files`` is the number of matching files.  ``malformed`` counts lines that are not JSON objects
    or exceed 1 MiB, ``lossy`` files that were truncated, replaced or removed before their end was
    read.  ``error`` is the reason why the last read skipped a file.
    """

    def __init__(self, pattern: str, max_bytes: int) -> None:
        self.files = 0
        self.malformed = 0
        self.lossy = 0
        self.error = ""
        self._pattern = pattern
        self._max_bytes = max_bytes
        self._known: dict[FileId, TailedFile] = {}
        self._replaced: deque[tuple[FileId, TailedFile]] = deque(maxlen=MAX_OPEN)
        self._open: dict[FileId, TailedFile] = {}  # the one that was used last is last
        self._reported = 0
        self._began = False
        self._horizon = -1

    def read(self) -> Iterator[dict[str, object]]:
        """Yield the objects appended since the last read; blocks, and must be exhausted."""
        self.error = ""
        left = self._max_bytes
        matching = self._matching()
        for identity in self._known.keys() - matching.keys():
            for line in self._removed(identity, left):
                left -= len(line)
                yield from self._object(line)
        for identity, (path, status) in matching.items():
            try:
                file = self._file(identity, path, status)
                for line in self._appended(identity, file, left) if file else ():
                    left -= len(line)
                    yield from self._object(line)
            except OSError as error:
                self.error = f"{path} cannot be read: {error.strerror}"
        self._began = True

    def new_losses(self) -> str:
        """Describe the losses since the last call; empty if there are none."""
        lost, self._reported = self.lossy - self._reported, self.lossy
        if not lost:
            return ""
        return (
            f"{lost} of the files {'was' if lost == 1 else 'were'} truncated or replaced before "
            f"{'its' if lost == 1 else 'their'} end was read: rotate by renaming, and keep rotated "
            "files for a minute"
        )

    def close(self) -> None:
        """Close all files; their positions are kept."""
        for identity in list(self._open):
            self._close(identity)

    def _matching(self) -> dict[FileId, tuple[Path, os.stat_result]]:
        """Return the regular files that match: copies last, else by the time of change."""
        files = []
        for path in map(Path, glob(self._pattern)):  # noqa: PTH207 - the pattern may be absolute
            try:
                status = path.stat()
            except OSError:  # removed in the meantime
                continue
            if stat.S_ISREG(status.st_mode):
                files.append((path, status))
        files.sort(key=lambda file: (file[1].st_mtime_ns, file[0]))
        self.files = len(files)
        if not self._began and len(files) > MAX_FILES:
            # Files beyond the limit are skipped: their lines are older than the first read.
            self._horizon = files[-MAX_FILES - 1][1].st_mtime_ns
        found = {
            (status.st_dev, status.st_ino): (path, status)
            for path, status in files
            if status.st_mtime_ns > self._horizon
        }
        return dict(sorted(found.items(), key=lambda item: self._is_copy(item[0])))

    def _is_copy(self, identity: FileId) -> bool:
        file = self._known.get(identity)
        return file is not None and file.original is not None

    def _file(self, identity: FileId, path: Path, status: os.stat_result) -> TailedFile | None:
        """Return the state of a file, None if there is nothing to read now; raises OSError."""
        size, changed = status.st_size, status.st_mtime_ns
        file = self._known.get(identity)
        if file and not file.original and (file.size, file.changed) == (size, changed):
            file.path, file.missed = path, 0
            return file
        if file is not None and not self._is_same(identity, file, path, size):
            self._close(identity)
            self._replaced.append((identity, self._known.pop(identity)))
            # A file that was missing in between is another file with the same inode.
            self.lossy += not file.missed
            file.missed += 1
            file = None
        if file is None:
            if len(self._known) >= MAX_FILES and not self._forget():
                self.error = (
                    f"{self.files} files match {self._pattern} and only {MAX_FILES} can be tailed: "
                    "remove old files"
                )
                return None
            file = self._known[identity] = self._new_file(identity, path, size)
            if file.original and not file.original.missed:
                file.size = size
                return None  # the original is read first
        file.path, file.size, file.changed, file.missed = path, size, changed, 0
        return None if file.is_covered(size) else file

    def _is_same(self, identity: FileId, file: TailedFile, path: Path, size: int) -> bool:
        """Return whether a file still holds the bytes read from it; a copy follows its original."""
        fd = self._opened(identity, file, path)
        if size < file.size:
            file.original = None
        original = file.original
        if original and size < original.position:
            return True
        if original and original.position > file.position:
            if _holds(fd, original):
                file.copy_position(original)
                return True
            file.original = None
        return size >= file.position and _holds(fd, file)

    def _new_file(self, identity: FileId, path: Path, size: int) -> TailedFile:
        """Return the state of a new file."""
        file = TailedFile(path)
        fd = self._opened(identity, file, path)
        if not self._began:
            _skip_to(fd, file, _end_of_lines(fd, size))
        elif original := self._original(identity, fd, size):
            file.original = original.original or original
            file.copy_position(original)
        return file

    def _original(self, identity: FileId, fd: int, size: int) -> TailedFile | None:
        """Return the file with the same content that was read furthest; None for a new file."""
        head = os.pread(fd, HEAD, 0)
        if len(head) < SHORTEST_COPY:
            return None
        found = [
            file
            for other, file in (*self._known.items(), *self._replaced)
            if other != identity
            and file.position >= SHORTEST_COPY
            and (head.startswith(file.head) or file.head.startswith(head))
            and (_holds(fd, file) if size >= file.position else _begins(fd, size, file))
        ]
        return max(found, key=lambda file: file.position, default=None)

    def _appended(self, identity: FileId, file: TailedFile, most: int) -> Iterator[bytes]:
        if file.position < file.size:
            yield from self._lines(self._opened(identity, file, file.path), file, most)

    def _removed(self, identity: FileId, most: int) -> Iterator[bytes]:
        """Yield what was appended to a file that was renamed or deleted, while it is open."""
        file = self._known[identity]
        file.missed += 1
        fd = file.fd
        if fd is None:
            self.lossy += file.missed == 1 and file.position < file.size
            return
        if not self._is_same(identity, file, file.path, os.fstat(fd).st_size):
            self._replaced.append((identity, file))
            self.lossy += 1
            file = TailedFile(file.path, fd, missed=file.missed)
            self._known[identity] = self._open[identity] = file
        before = file.position
        if not file.is_covered(os.fstat(fd).st_size):
            yield from self._lines(fd, file, most)
        if file.position > before:
            file.missed = 1
        elif file.missed > READS_AFTER_REMOVAL:
            self._close(identity)

    def _lines(self, fd: int, file: TailedFile, most: int) -> Iterator[bytes]:
        """Yield whole lines and advance the position."""
        if most <= 0:
            return
        with open(fd, "rb", CHUNK, closefd=False) as stream:
            stream.seek(file.position)
            while most > 0 and (line := stream.readline(MAX_LINE)):
                ends = line.endswith(b"\n")
                if not ends and len(line) < MAX_LINE:
                    return
                file.advance(line)
                most -= len(line)
                if ends and not file.skipping:
                    yield line
                elif not file.skipping:
                    self.malformed += 1
                file.skipping = not ends

    def _opened(self, identity: FileId, file: TailedFile, path: Path) -> int:
        """Return the descriptor of a file; closes the one that was used least recently."""
        fd = file.fd
        if fd is None:
            fd = file.fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self._open.pop(identity, None)
        self._open[identity] = file
        if len(self._open) > MAX_OPEN:
            self._close(next(iter(self._open)))
        return fd

    def _close(self, identity: FileId) -> None:
        file = self._open.pop(identity, None)
        if file is not None and file.fd is not None:
            os.close(file.fd)
            file.fd = None

    def _forget(self) -> bool:
        """Drop the file that has been missing for longest; return False if none is missing."""
        identity = max(self._known, key=lambda identity: self._known[identity].missed)
        if not self._known[identity].missed:
            return False
        self._close(identity)
        del self._known[identity]
        return True

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


def _holds(fd: int, file: TailedFile) -> bool:
    """Return whether a descriptor's file begins with the bytes read from ``file``."""
    start = file.position - len(file.tail)
    head, tail = os.pread(fd, len(file.head), 0), os.pread(fd, len(file.tail), start)
    return (head, tail) == (file.head, file.tail)


def _begins(fd: int, size: int, file: TailedFile) -> bool:
    """Return whether a descriptor's ``size`` bytes are the beginning of ``file``.

    If ``file`` is no longer readable, its first bytes decide.
    """
    start = max(0, size - TAIL)
    try:
        other = os.open(file.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return True
    try:
        if not _holds(other, file):
            return True
        return os.pread(other, size - start, start) == os.pread(fd, size - start, start)
    finally:
        os.close(other)


def _skip_to(fd: int, file: TailedFile, position: int) -> None:
    file.position = position
    file.head = os.pread(fd, min(position, HEAD), 0)
    start = max(0, position - TAIL)
    file.tail = os.pread(fd, position - start, start)


def _end_of_lines(fd: int, size: int) -> int:
    """Return the position after the last whole line."""
    end = size
    while end > 0:
        start = max(0, end - CHUNK)
        found = os.pread(fd, end - start, start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0
