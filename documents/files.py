"""Read a bounded UTF-8 text from a file, a pipe or standard input."""

from __future__ import annotations

import json
import os
import select
import stat
import sys
from pathlib import Path
from typing import NamedTuple

WRITER_SECONDS = 1.0
"""Time that a named pipe has to find a writer."""


class Flaw(NamedTuple):
    """One defect of a text; ``line`` is 1-based, 0 for the text as a whole."""

    line: int
    message: str
    fix: str


class UnreadableText(ValueError):  # noqa: N818  (reads as a statement at the raise)
    """A text could not be read; ``flaws`` holds every reason."""

    def __init__(self, *flaws: Flaw) -> None:
        self.flaws = flaws
        super().__init__("; ".join(flaw.message for flaw in flaws))


def read_text(path: Path | None, max_bytes: int) -> str:
    """Read the text of a file, or of standard input for None; raises :class:`UnreadableText`."""
    try:
        if path is None:
            content, piped = _standard_input(max_bytes), False
        else:
            with open(path, "rb", opener=_open) as stream:
                content = stream.read(max_bytes + 1)
                piped = stat.S_ISFIFO(os.fstat(stream.fileno()).st_mode)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = getattr(error, "strerror", None) or str(error)
        flaw = Flaw(0, f"cannot be read: {reason}", "give the path of a file you may read")
        raise UnreadableText(flaw) from error
    if piped and not content:
        fix = "give a file, or write into the pipe"
        raise UnreadableText(Flaw(0, "is a pipe without a writer", fix))
    if len(content) > max_bytes:
        fix = "split it into several files"
        raise UnreadableText(Flaw(0, f"is larger than {max_bytes >> 20} MiB", fix))
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        flaw = Flaw(line, "is not UTF-8 text", "save the file as UTF-8")
        raise UnreadableText(flaw) from error


def _standard_input(max_bytes: int) -> bytes:
    if sys.stdin is None:
        raise ValueError("it is closed")
    return sys.stdin.buffer.read(max_bytes + 1)


def _open(path: str, flags: int) -> int:
    """Open a file; wait a moment for the writer of a named pipe."""
    file = os.open(path, flags | os.O_NONBLOCK)
    os.set_blocking(file, True)
    if stat.S_ISFIFO(os.fstat(file).st_mode):
        ready = select.poll()
        ready.register(file, select.POLLIN)
        ready.poll(WRITER_SECONDS * 1000)
    return file


def quoted(text: str, limit: int = 60) -> str:
    """Quote a part of a file for a message: one line, printable, at most ``limit`` characters."""
    cut = text if len(text) <= limit else f"{text[:limit]}…"
    return printable(json.dumps(cut, ensure_ascii=False))


def printable(text: str) -> str:
    """Escape the characters that a terminal would interpret."""
    return "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in text)
