"""Make text from servers and files safe to print on a terminal."""

from __future__ import annotations

REPLACEMENT = "\ufffd"


def terminal_text(text: str) -> str:
    """Replace all characters but line breaks that a terminal would interpret, each by one.

    These are control characters, escape sequences among them, and those that reorder text.
    """
    if text.isascii() and text.replace("\n", "").isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else REPLACEMENT for c in text)
