"""Write YAML files of dashboards."""

from __future__ import annotations

from collections.abc import Mapping

from slos.generated_yaml import HEADER
from slos.yaml_text import block


def document(about: str, body: Mapping[str, object], version: str) -> str:
    """Return a YAML document with a header; its SLO file is in the dashboard's description.

    Dashboards of all services must not depend on one of them.
    """
    header = [f"# {about}", f"{HEADER}{version}. Do not edit.", ""]
    return "\n".join([*header, *block(body)]) + "\n"
