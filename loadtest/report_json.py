"""The report of a load test as JSON."""

from __future__ import annotations

import json

from loadtest.report import LoadReport, as_object


def as_json(report: LoadReport) -> str:
    """Return the report as a JSON document."""
    return json.dumps(as_object(report), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
