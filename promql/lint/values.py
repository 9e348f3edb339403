"""Read values of a file whose types are unknown."""

from __future__ import annotations

from collections.abc import Mapping

from promql.expr import quote
from promql.lint.located_text import Value


def mapping_of(value: Value) -> Mapping[str, Value]:
    """Return a mapping, empty for anything else."""
    return value if isinstance(value, dict) else {}


def at(value: Value, *keys: str) -> Value:
    """Return the value below keys, None if there is none."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def list_of(value: Value) -> list[Value]:
    """Return a list, empty for anything else."""
    return value if isinstance(value, list) else []


def text_of(value: Value) -> str:
    """Return a text, empty for anything else."""
    return str(value) if isinstance(value, str) else ""


def texts_of(value: Value) -> Mapping[str, str]:
    """Return the entries of a mapping as texts."""
    return {key: text_of(text) for key, text in mapping_of(value).items()}


def short(text: str) -> str:
    """Return a name on one line, shortened for a message."""
    text = "".join(c if c.isprintable() else "�" for c in text)
    return text if len(text) <= 80 else f"{text[:80]}…"


def quoted(value: Value) -> str:
    """Return a text in quotes, shortened for a message."""
    return quote(short(text_of(value)))
