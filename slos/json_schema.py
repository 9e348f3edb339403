"""The language of SLO files as a JSON Schema, for editors that complete and check while one types.

Made from the tables that files are read by, so the two cannot say different things.  It knows less
than they do: what it refuses is refused, and what it lets pass may still be.
"""

from __future__ import annotations

import json

from slos.fields.values import API_VERSION
from slos.language import DEFINITIONS, FILE, SERVICE
from slos.schema import mapping_of

_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def text() -> str:
    """Return the schema of one document of an SLO file, as JSON."""
    schema = {
        "$schema": _DIALECT,
        "title": f"SLO file of tokenslo ({API_VERSION})",
        "description": "What a service promises, and whom its alerts tell.",
        "if": {"type": "object", "required": ["services"]},
        "then": mapping_of(FILE),
        "else": mapping_of(SERVICE),
        "$defs": DEFINITIONS,
    }
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"
