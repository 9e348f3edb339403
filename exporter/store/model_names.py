"""Check and shorten names of models, which are labels of every series."""

from __future__ import annotations

from exporter.samples import Model

MAX_NAME = 256
"""Maximum characters of a model's name and of its version."""
SHOWN_NAME = 60
"""Characters of a longer name that messages contain."""


def name_error(model: Model) -> str:
    """Return why a model's name cannot be a label value; empty if it can."""
    if max(map(len, model)) > MAX_NAME:
        return f"its name or version is longer than {MAX_NAME} characters"
    return ""


def shortened(name: str) -> str:
    """Return a name for messages, shortened if it is longer than ``MAX_NAME``."""
    return name if len(name) <= MAX_NAME else f"{name[:SHOWN_NAME]}…"
