"""Read and write the literals of PromQL: strings, numbers, durations."""

from __future__ import annotations

import re
from decimal import Decimal
from functools import lru_cache
from math import inf

_UNIT_MILLISECONDS = {
    "y": 31_536_000_000,
    "w": 604_800_000,
    "d": 86_400_000,
    "h": 3_600_000,
    "m": 60_000,
    "s": 1000,
    "ms": 1,
}
_DURATION = re.compile("".join(f"(?:([0-9]+){unit})?" for unit in _UNIT_MILLISECONDS))
_MAX_DURATION_LENGTH = 40
_MAX_HEX_LENGTH = 18
_OCTAL = re.compile(r"0[0-7]{1,21}")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}
_ESCAPE = re.compile(
    r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-3][0-7]{2})|(.)|$)", re.DOTALL
)

# A rule file repeats few texts and numbers in many queries.
_cached = lru_cache(maxsize=1 << 14)


class InvalidLiteral(ValueError):  # noqa: N818  (reads as a statement at the raise)
    """A literal that Prometheus refuses; ``start`` and ``end`` delimit the defect in it."""

    def __init__(self, message: str, start: int = 0, end: int | None = None) -> None:
        self.message, self.start, self.end = message, start, end
        super().__init__(message)


@_cached
def quote(text: str) -> str:
    """Render ``text`` as a double-quoted PromQL string."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def unquote(literal: str) -> str:
    """Return the text of a quoted literal, as Go reads it; raises :class:`InvalidLiteral`."""
    mark, inside = literal[0], literal[1:-1]
    if mark == "`" or "\\" not in inside:
        return inside

    def unescape(found: re.Match[str]) -> str:
        byte, short, long, octal, letter = found.groups()
        if letter is not None and (letter in _ESCAPES or letter in ("\\", mark)):
            return _ESCAPES.get(letter, letter)
        if code := short or long:
            point = int(code, 16)
            if point <= 0x10FFFF and not 0xD800 <= point < 0xE000:
                return chr(point)
        elif byte or octal:
            value = int(byte, 16) if byte else int(octal, 8)
            return chr(value) if value < 0x80 else chr(0xDC00 + value)  # a part of UTF-8
        message = f"found {found[0]}, which is no escape"
        raise InvalidLiteral(message, 1 + found.start(), 1 + found.end())

    text = _ESCAPE.sub(unescape, inside)
    try:
        return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    except UnicodeEncodeError:  # half a character, from JSON
        return text


@_cached
def decimal_text(value: Decimal | int | str) -> str:
    """Return the shortest plain decimal: no exponent, no trailing zeros."""
    value = Decimal(value)
    text = format(value, "f")
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return "0" if text in ("-0", "") else text


def number_value(literal: str) -> float:
    """Return the value of a number, or of a duration in seconds; raises :class:`InvalidLiteral`."""
    text = literal.lower()
    if text.startswith("-"):
        return -number_value(text[1:])
    if text in ("inf", "nan"):
        return float(text)
    if text[-1] in "smhdwy" and not text.startswith("0x"):
        seconds = duration(text)
        if seconds is None:
            message = "a duration has its units from the largest to the smallest, each once"
            raise InvalidLiteral(message)
        return seconds
    try:
        value = _go_number(text.replace("_", ""))
    except OverflowError:
        value = inf
    if value == inf:
        raise InvalidLiteral("the number is too large")
    return value


def _go_number(digits: str) -> float:
    """Return a number as Go reads it: 0755 is octal, 0855 is not."""
    if digits.startswith("0x"):
        return float(int(digits, 16)) if len(digits) <= _MAX_HEX_LENGTH else inf
    return float(int(digits, 8)) if _OCTAL.fullmatch(digits) else float(digits)


def duration(text: str) -> float | None:
    """Return the seconds of a duration such as ``1h30m``; None for any other text."""
    found = _DURATION.fullmatch(text) if 0 < len(text) <= _MAX_DURATION_LENGTH else None
    if not found:
        return None
    amounts = zip(found.groups("0"), _UNIT_MILLISECONDS.values(), strict=True)
    return sum(int(amount) * unit for amount, unit in amounts) / 1000
