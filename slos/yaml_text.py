"""Write plain values as YAML: keys in the given order, long texts as blocks.

The format does not change with the version of a library, and takes a fraction of the time of
PyYAML's emitter.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from functools import lru_cache

from promql.expr import decimal_text

# Plain scalars that every YAML reader reads as text.
_PLAIN = re.compile(
    r"(?!(?:true|false|yes|no|on|off|null|y|n)$)[a-z_](?:[^\s:#]++|:(?=\S)| (?=[^\s#])|(?<=\S)#)*+"
    r"|(?:[0-9]+(?:ms|[smhdw]))+",
    re.IGNORECASE,
)
# Plain scalars inside of a flow mapping.
_FLOW = re.compile(r"[^,\[\]{}?]+")
_NUMBERS = (int, Decimal)
# Lines that can stand as a literal block.
_LINES = re.compile(r"\S[^\n]*(?:\n[^\n]*\S)+")


class Inline(dict[str, str]):
    """A mapping on one line: ``{service: chat, slo: first-token}``."""


class Commented(dict[str, object]):
    """A mapping in a list, with a comment on the line before it."""

    def __init__(self, comment: str, items: Mapping[str, object]) -> None:
        super().__init__(items)
        self.comment = " ".join(comment.split())


def block(value: object, indent: str = "") -> list[str]:
    """Return the lines of a mapping or a list, each after ``indent``."""
    lines: list[str] = []
    _write(lines, value, indent)
    return lines


def entry(key: str, value: object, indent: str = "") -> list[str]:
    """Return the lines of one key of a mapping."""
    lines: list[str] = []
    _write_entry(lines, key, value, indent)
    return lines


def indented(lines: Iterable[str]) -> Iterator[str]:
    """Yield lines one level deeper."""
    return (f"  {line}" for line in lines)


def _write(lines: list[str], value: object, indent: str) -> None:
    """Append the lines of a mapping or a list."""
    if isinstance(value, dict):
        for key, part in value.items():
            _write_entry(lines, key, part, indent)
    elif isinstance(value, Mapping):
        _write(lines, dict(value), indent)
    elif isinstance(value, Sequence):
        deeper = indent + "  "
        for item in value:
            if isinstance(item, str):
                lines.append(f"{indent}- {_text(item)}")
            elif isinstance(item, int):
                lines.append(f"{indent}- {_number(item)}")
            else:
                if isinstance(item, Commented):
                    lines.append(f"{indent}# {item.comment}")
                first = len(lines)
                _write(lines, item, deeper)
                lines[first] = f"{indent}- {lines[first].removeprefix(deeper)}"


def _write_entry(lines: list[str], key: str, value: object, indent: str) -> None:
    name = _text(key)
    if isinstance(value, str):
        if "\n" in value and _LINES.fullmatch(value) and value.replace("\n", "").isprintable():
            lines.append(f"{indent}{name}: |-")
            lines += [f"{indent}  {line}" for line in value.split("\n")]
        else:
            lines.append(f"{indent}{name}: {_text(value)}")
    elif isinstance(value, _NUMBERS):
        lines.append(f"{indent}{name}: {_number(value)}")
    elif isinstance(value, Inline):
        lines.append(f"{indent}{name}: {{{_pairs(*value.items())}}}")
    elif value == []:
        lines.append(f"{indent}{name}: []")
    else:
        lines.append(f"{indent}{name}:")
        _write(lines, value, indent + "  ")


@lru_cache(maxsize=4096)  # keys, labels and names recur
def _text(value: str) -> str:
    if not value.isprintable():
        return _double_quoted(value)
    return value if _PLAIN.fullmatch(value) else _single_quoted(value)


@lru_cache(maxsize=64)  # rules of an objective have the same labels
def _pairs(*pairs: tuple[str, str]) -> str:
    return ", ".join([f"{_inline(key)}: {_inline(text)}" for key, text in pairs])


@lru_cache(maxsize=4096)
def _inline(text: str) -> str:
    written = _text(text)
    return written if written != text or _FLOW.fullmatch(text) else _single_quoted(text)


def _double_quoted(text: str) -> str:
    """Write a text with escapes for everything that is not printable."""
    quoted = json.dumps(text, ensure_ascii=False)
    return "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in quoted)


def _single_quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _number(value: int | Decimal) -> str:
    """Write a number or a boolean."""
    return str(value).lower() if isinstance(value, bool) else decimal_text(value)
