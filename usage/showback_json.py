"""The showback report as JSON."""

from __future__ import annotations

import json

from usage.showback import Showback, as_object


def as_json(report: Showback) -> str:
    """Return the report as a JSON document."""
    return json.dumps(as_object(report), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
