"""Read the capacity from the file of a load report."""

from __future__ import annotations

from pathlib import Path

from admission.capacity import MAX_BYTES, MeasuredCapacity, read_capacity
from documents.files import UnreadableText, read_text
from slos.errors import InvalidFile, Problem


def load_capacity(file: str) -> MeasuredCapacity:
    """Return the capacity that ``load.json`` of ``tokenslo load`` shows; raises InvalidFile."""
    try:
        text = read_text(Path(file), MAX_BYTES)
    except UnreadableText as unreadable:
        problems = [
            Problem(file, flaw.line, "", flaw.message, flaw.fix) for flaw in unreadable.flaws
        ]
        raise InvalidFile(problems) from None
    return read_capacity(text, file)
