"""Check the command-line arguments of benches."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable
from typing import NoReturn


def check_names(given: Iterable[str], known: Collection[str], kind: str) -> None:
    """Exit with code 2 unless every given name is known."""
    if unknown := sorted({*given} - {*known}):
        _fail(f"unknown {kind} {', '.join(unknown)}; choose from {', '.join(known)}")


def positive_integer(text: str, name: str) -> int:
    """Return an argument as an integer; exit with code 2 unless it is at least 1."""
    if not (text.isascii() and text.isdigit() and int(text)):
        _fail(f"{name} is {text!r}, not an integer of at least 1")
    return int(text)


def _fail(message: str) -> NoReturn:
    print(f"error: {message}", file=sys.stderr)
    sys.exit(2)
