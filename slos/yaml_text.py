"""Write plain values as YAML: keys in the order given, long texts as blocks.

Written out by hand, as little YAML is needed: the result does not change with a library's version
and costs a small part of what PyYAML's emitter takes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal

from promql.expr import decimal_text

# What every YAML reader takes for this very text, without quotes.
_PLAIN = re.compile(
    r"(?!(?:true|false|yes|no|on|off|null|y|n)$)[a-z_](?:[^\s:#]|:(?=\S)| (?=[^\s#])|(?<=\S)#)*"
    r"|(?:[0-9]+(?:ms|[smhdw]))+",
    re.IGNORECASE,
)
# Lines that can stand as a literal block.
_LINES = re.compile(r"\S[^\n]*(?:\n[^\n]*\S)+")


def block(value: object) -> Iterator[str]:
    """Yield the lines of a mapping or a list."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from entry(key, part)
    elif isinstance(value, Sequence):
        for item in value:
            first, *rest = [_scalar(item)] if isinstance(item, str | int) else block(item)
            yield f"- {first}"
            yield from indented(rest)


def entry(key: str, value: object) -> Iterator[str]:
    """Yield the lines of one key of a mapping."""
    name = _scalar(key)
    match value:
        case str() if _LINES.fullmatch(value):
            yield f"{name}: |-"
            yield from indented(value.split("\n"))
        case str() | int() | Decimal():
            yield f"{name}: {_scalar(value)}"
        case []:
            yield f"{name}: []"
        case _:
            yield f"{name}:"
            yield from indented(block(value))


def indented(lines: Iterable[str]) -> Iterator[str]:
    """Yield lines one level deeper."""
    return (f"  {line}" for line in lines)


def _scalar(value: str | int | Decimal) -> str:
    """Write text, which is printable but for line breaks, a number, or true or false."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | Decimal):
        return decimal_text(value)
    if _PLAIN.fullmatch(value):
        return value
    if "\n" in value:
        return json.dumps(value, ensure_ascii=False)
    return "'" + value.replace("'", "''") + "'"
