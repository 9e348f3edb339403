"""Generate a JSON Schema of SLO files for editors.

The tables of the readers generate it.  It accepts a superset of valid files.
"""

from __future__ import annotations

from documents.json_text import json_text
from slos.fields.values import API_VERSION
from slos.language import DEFINITIONS, FILE, SERVICE
from slos.schema import mapping_of

_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def text() -> str:
    """Return the schema of one document of an SLO file, as JSON."""
    schema = {
        "$schema": _DIALECT,
        "title": f"SLO file of tokenslo ({API_VERSION})",
        "description": "The objectives of a service, and the routing of its alerts.",
        "if": {"type": "object", "required": ["services"]},
        "then": mapping_of(FILE),
        "else": mapping_of(SERVICE),
        "$defs": DEFINITIONS,
    }
    return json_text(schema)
