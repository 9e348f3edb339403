"""How generated YAML looks: keys in the order given, long expressions as blocks, a header.

Written out by hand, as little YAML is needed: the result does not change with a library's version
and costs a small part of what PyYAML's emitter takes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import PurePath

# What every YAML reader takes for this very text, without quotes.
_PLAIN = re.compile(
    r"(?!(?:true|false|yes|no|on|off|null|y|n)$)[a-z_](?:[^\s:#]|:(?=\S)| (?=[^\s#])|(?<=\S)#)*"
    r"|(?:[0-9]+(?:ms|[smhdw]))+",
    re.IGNORECASE,
)
# Lines that can stand as a literal block.
_LINES = re.compile(r"\S[^\n]*(?:\n[^\n]*\S)+")


def document(
    about: str,
    body: Mapping[str, str | Sequence[object]],
    *,
    source: str,
    version: str,
) -> str:
    """Return a YAML document that says what it is and where it comes from.

    The items of each list stand apart.  An absolute ``source`` is cut to its name: where somebody
    keeps the file is not part of the result.
    """
    path = PurePath(source)
    name = " ".join((path.name if path.is_absolute() else source).split())
    header = f"# {about}\n# Made by tokenslo {version} from {name}. Do not edit."
    return "\n\n".join([header, *map(_part, body, body.values())]) + "\n"


def _part(key: str, value: str | Sequence[object]) -> str:
    if isinstance(value, str):
        return "\n".join(_entry(key, value))
    items = ("\n".join(_indented(_block([item]))) for item in value)
    return f"{key}:\n" + "\n\n".join(items)


def _block(value: object) -> Iterator[str]:
    """Write a mapping or a list."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from _entry(key, part)
    elif isinstance(value, Sequence):
        for item in value:
            first, *rest = [_scalar(item)] if isinstance(item, str | int) else _block(item)
            yield f"- {first}"
            yield from _indented(rest)


def _entry(key: str, value: object) -> Iterator[str]:
    name = _scalar(key)
    match value:
        case str() if _LINES.fullmatch(value):
            yield f"{name}: |-"
            yield from _indented(value.split("\n"))
        case str() | int():
            yield f"{name}: {_scalar(value)}"
        case []:
            yield f"{name}: []"
        case _:
            yield f"{name}:"
            yield from _indented(_block(value))


def _scalar(value: str | int) -> str:
    """Write text, which is printable but for line breaks, or a number."""
    if isinstance(value, int) or _PLAIN.fullmatch(value):
        return str(value)
    if "\n" in value:
        return json.dumps(value, ensure_ascii=False)
    return "'" + value.replace("'", "''") + "'"


def _indented(lines: Iterable[str]) -> Iterator[str]:
    return (f"  {line}" for line in lines)
