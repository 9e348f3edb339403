"""How generated YAML looks: keys in the order given, long expressions as blocks, a header."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePath

from slos.yaml_text import block, entry

HEADER = "# Made by tokenslo "
"""How the line begins that tells generated files from those of people."""


def document(
    about: str,
    body: Mapping[str, object],
    *,
    source: str,
    version: str,
) -> str:
    """Return a YAML document that says what it is and where it comes from.

    The items of a list at its top stand apart.  An absolute ``source`` is cut to its name: where
    somebody keeps the file is not part of the result.
    """
    path = PurePath(source)
    name = " ".join((path.name if path.is_absolute() else source).split())
    header = f"# {about}\n{HEADER}{version} from {name}. Do not edit."
    return "\n\n".join([header, *map(_part, body, body.values())]) + "\n"


def _part(key: str, value: object) -> str:
    if isinstance(value, Sequence) and not isinstance(value, str) and value:
        items = ("\n".join(block([item], "  ")) for item in value)
        return f"{key}:\n" + "\n\n".join(items)
    return "\n".join(entry(key, value))
