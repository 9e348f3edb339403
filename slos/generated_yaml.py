"""Write generated YAML: keys in the given order, long expressions as blocks, a header."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePath

from slos.yaml_text import block, entry

HEADER = "# Made by tokenslo "
"""The start of the line that marks generated files."""


def document(
    about: str,
    body: Mapping[str, object],
    *,
    source: str,
    version: str,
) -> str:
    """Return a YAML document with a header for its content and source.

    Empty lines separate the items of a top-level list.  An absolute ``source`` is shortened to its
    name: the result must not depend on the folder of the SLO file.
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
