"""JSON documents that people read and compare."""

from __future__ import annotations

import json
from typing import Any


def json_text(value: Any, *, sort_keys: bool = False) -> str:
    """Return indented JSON, with a line break at its end."""
    return json.dumps(value, indent=2, ensure_ascii=False, sort_keys=sort_keys) + "\n"
